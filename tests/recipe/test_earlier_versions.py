"""What a new setting and another default change: no fingerprint, and no run that was trained
before.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import composer
from composer.recipe import earlier_versions
from composer.recipe.canonical_form import fill_defaults
from composer.recipe.earlier_versions import (
    TRAINED_WITH,
    TRAINING_CHANGES,
    changes_since,
    concerning_changes,
    earlier_rules,
)
from composer.recipe.fingerprints import fingerprints, without_defaults
from composer.recipe.recipe import Recipe, load, load_text
from composer.recipe.schema_generator import load as load_rules
from composer.recipe.schema_reader import Schema
from composer.run_dir import RunDir
from tests.recipe.defaults import FILE, defaults
from tests.recipe.test_canonical_form import RECIPES
from tests.run_records import change_record

RUNS = Path(__file__).parents[1] / "versions" / "0.1.0"
MISSING = "a setting without a default"


def test_no_default_changes_unseen() -> None:
    """If this fails, read the docstring of composer/recipe/earlier_versions.py."""
    before, now = json.loads(FILE.read_text(encoding="utf-8")), defaults()
    changed = {
        key: before.get(key, MISSING)
        for key in before | now
        if before.get(key, MISSING) != now.get(key, MISSING)
    }
    unknown = {
        key: value
        for key, value in changed.items()
        if value is MISSING or TRAINED_WITH.get(key) != value
    }
    advice = "add a line to TRAINED_WITH where older runs were trained with another value, then"
    assert not unknown, f"{advice} `python -m tests.recipe.defaults`: {', '.join(unknown)}"
    assert not changed, "write the snapshot again: `python -m tests.recipe.defaults`"


def test_each_line_of_the_table_says_another_value_than_the_default() -> None:
    earlier, now = defaults(earlier_rules(load_rules())), defaults()
    others = {key: value for key, value in TRAINED_WITH.items() if not key.endswith(".dropout")}
    assert {key: earlier[key] for key in earlier if earlier[key] != now[key]} == others


TEXT = "data: {text: {train: a.txt, val: 2}}"
CONCERNED = {
    "forget_gate": (
        f"{TEXT}\nmodel: {{width: 8, decoder: [{{residual: [{{mlstm: {{forget_gate: exp}}}}]}}]}}\n"
    ),
    "texts_after_end": f"{TEXT}\nmodel: {{width: 8, decoder: [rnn]}}\ntraining: {{window: 8}}\n",
    "impossible_ctc": (
        "data: {generate: copy}\nmodel: {width: 8, encoder: [rnn], decoder: [rnn], output: {ctc:"
        " {weight: 0.3}}}\n"
    ),
    "counted_experts": (
        f"{TEXT}\nmodel: {{width: 8, decoder: [rnn, {{mixture_of_experts: {{stack: [{{linear:"
        " {}}]}}]}\n"
    ),
    "sampled_validation": (
        f"{TEXT}\nmodel: {{width: 8, decoder: [rnn]}}\ntrainer: {{limit_val_batches: 0.5}}\n"
    ),
    "mean_of_tied": (
        f"{TEXT}\nmodel: {{width: 8, decoder: [rnn]}}\ntraining: {{precision: 64,"
        " average_checkpoints: 2}\n"
    ),
}


@pytest.mark.parametrize("name", TRAINING_CHANGES)
def test_a_change_of_training_concerns_the_recipes_that_it_changes(name: str) -> None:
    recipe = load_text(f"recipe: 1\n{CONCERNED[name]}")
    assert concerning_changes(recipe.canonical) == [name]
    assert changes_since(recipe.canonical, TRAINING_CHANGES.keys() - {name}) == [
        TRAINING_CHANGES[name].sentence
    ]
    assert not changes_since(recipe.canonical, {name})
    now, before = (
        fingerprints(recipe.canonical, recipe.rules, changes=known)
        for known in (TRAINING_CHANGES, ())
    )
    assert now["run"] != before["run"]
    assert now == recipe.fingerprints


def test_of_a_recipe_that_no_change_concerns_the_training_is_that_of_the_first_version() -> None:
    unused = "stacks: {shelf: [{mlstm: {forget_gate: exp}}]}"
    for more in ("", f", {unused}"):
        recipe = load_text(f"recipe: 1\n{TEXT}\nmodel: {{width: 8, decoder: [mlstm, rnn]{more}}}\n")
        assert not concerning_changes(recipe.canonical)
        assert recipe.fingerprints == fingerprints(recipe.canonical, recipe.rules, changes=())


def test_the_changes_of_training_are_parts_of_a_sentence() -> None:
    assert not any(change.sentence.endswith(".") for change in TRAINING_CHANGES.values())


# -------------------------------------------------------------------------------------------
# fingerprints

NEW = {
    "newest_number": {"anyOf": [{"type": "number"}], "default": 7},
    "newest_switch": {"anyOf": [{"type": "boolean"}], "default": False},
    "newest_choice": {"$ref": "#/$defs/newest", "default": "one"},
    "newest_section": {
        "anyOf": [{"type": "object"}, {"type": "null"}],
        "properties": {},
        "additionalProperties": False,
    },
    "newest_section_that_is_on": {"$ref": "#/$defs/newest.two", "default": {}},
}
SIZE = {
    "properties": {"size": {"type": "integer", "default": 3}},
    "required": [],
    "additionalProperties": False,
}
NEW_DEFINITIONS = {
    "newest": {
        "x-choice": "newest",
        "properties": {word: {"$ref": f"#/$defs/newest.{word}"} for word in ("one", "two")},
    },
    "newest.one": {"x-first": "size", **SIZE},
    "newest.two": SIZE,
}


def with_new_settings(rules: Schema) -> Schema:
    """The schema with new settings in every block, choice and section, at every depth."""
    newer = copy.deepcopy(rules)
    for mapping in mappings_of_settings(newer["$defs"]):
        mapping["properties"] = {**NEW, **mapping["properties"]}
    newer["$defs"] |= NEW_DEFINITIONS
    return newer


def mappings_of_settings(value: Any) -> Iterator[dict[str, Any]]:
    """Every part of a schema that describes settings, the inner before the outer; no choice, and no
    new setting.
    """
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from mappings_of_settings(inner)
    if (
        isinstance(value, dict)
        and isinstance(value.get("properties"), dict)
        and "x-choice" not in value
    ):
        yield value


def test_new_settings_with_defaults_change_no_fingerprint() -> None:
    newer = with_new_settings(load_rules())
    for path in RECIPES:
        recipe = load(path)
        canonical = fill_defaults(recipe.explicit, newer, recipe.name)
        assert "newest_number" in canonical["training"]
        assert fingerprints(canonical, newer) == recipe.fingerprints, path


def test_other_values_of_new_settings_change_fingerprints() -> None:
    newer, recipe = with_new_settings(load_rules()), load(RECIPES[0])
    canonical = fill_defaults(recipe.explicit, newer, recipe.name)
    size = {"size": 4}
    others = {
        "newest_number": 8.0,
        "newest_switch": True,
        "newest_choice": {"one": size},
        "newest_section": {},
    }
    others |= {"newest_section_that_is_on": size}
    places = [
        section
        for section in mappings_with("newest_number", canonical)
        if section is not canonical["trainer"]
    ]
    places = [
        place
        for place in places
        if all(place is not inner for inner in mappings_with("", canonical["logging"]))
    ]
    assert len(places) > 10
    for section in places:
        for key, value in others.items():
            before, section[key] = section[key], value
            assert fingerprints(canonical, newer)["run"] != recipe.fingerprints["run"], (
                key,
                section,
            )
            section[key] = before


def mappings_with(key: str, value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a tree that has a key."""
    if isinstance(value, dict) and (not key or key in value):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from mappings_with(key, inner)


def test_what_is_left_out_can_be_filled_in_again() -> None:
    """So recipes that mean something else have other fingerprints."""
    for path in RECIPES:
        recipe = load(path)
        left = without_defaults(recipe.canonical, recipe.rules)
        again = fill_defaults(left, earlier_rules(recipe.rules), recipe.name)
        # `model.dropout` is in the blocks by now, and columns of tables have the settings of their
        # kinds
        own = {**recipe.canonical, "model": {**recipe.canonical["model"], "dropout": 0.0}}
        left["model"].pop("dropout", None)
        again = fill_defaults(left, earlier_rules(recipe.rules), recipe.name)
        assert json.dumps(again, sort_keys=True) == json.dumps(own, sort_keys=True), path


# ------------------------------------------------------------------------------------------- runs
# of before


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(Path(shutil.copytree(RUNS / "pairs" / "run", tmp_path / "run")))


EARLIER = {
    "optimizers.adamw.weight_decay": 0.5,
    "block.self_attention.window": 3,
    "block.feed_forward.dropout": 0.0,  # that of `model` did not reach it
    "data.parallel.decontaminate": True,
    "decoders.beam.length_penalty": 0.25,
    "training.max_steps": 5,  # which is written, so nothing changes
}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_versions, "TRAINED_WITH", EARLIER)


def means_as_before(recipe: Recipe) -> bool:
    settings = recipe.model.encoder[1].settings["stack"][0]["self_attention"]
    other = recipe.model.encoder[2].settings["stack"][0]["feed_forward"]
    return (
        recipe.training.optimizer.weight_decay == 0.5
        and (settings["window"], settings["dropout"], other["dropout"]) == (3, 0.1, 0.0)
        and recipe.data.parallel.decontaminate
        and recipe.decoding.length_penalty == 0.25
        and recipe.training.max_steps == 80
    )


@pytest.mark.usefixtures("table")
def test_a_run_that_is_older_than_a_setting_keeps_its_meaning(run: RunDir, tmp_path: Path) -> None:
    recipe = load(run.recipe)
    assert means_as_before(recipe)
    # what a reproduction and the next checkpoint write
    assert means_as_before(load_text(recipe.dump()))
    assert not means_as_before(load(shutil.copy(run.recipe, tmp_path / "new.yaml")))
    assert load(run.recipe, ["decoding.beam.length_penalty=2"]).decoding.length_penalty == 2.0


def test_fingerprints_are_of_what_the_first_runs_were_trained_with(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # which is not new here
    table = {key: value for key, value in EARLIER.items() if not key.endswith(".dropout")}
    monkeypatch.setattr(earlier_versions, "TRAINED_WITH", table)
    before, new = load(run.recipe), load(shutil.copy(run.recipe, tmp_path / "new.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(earlier_versions, "TRAINED_WITH", {})
        unchanged = load(tmp_path / "new.yaml").fingerprints
    assert before.fingerprints == unchanged
    assert all(new.fingerprints[key] != unchanged[key] for key in unchanged)


def test_a_run_keeps_the_defaults_that_it_stores(run: RunDir) -> None:
    canonical = copy.deepcopy(load(run.recipe).canonical)
    canonical["decoding"]["beam"]["length_penalty"] = 0.25
    canonical["model"]["decoder"][1]["residual"]["stack"][0]["rnn"]["layers"] = 2
    canonical["training"]["validation_sample"]["decoding"] = {"sample": {"temperature": 0.5}}
    canonical["training"]["max_steps"] = 7
    canonical["from_a_later_version"] = 1
    change_record(run, canonical=canonical)
    recipe = load(run.recipe)
    assert recipe.decoding.length_penalty == 0.25
    assert recipe.model.decoder[1].settings["stack"][0]["rnn"]["layers"] == 2
    assert recipe.training.validation_sample.decoding.temperature == 0.5
    assert recipe.training.max_steps == 80


def test_what_a_run_stores_is_of_its_own_recipe_alone(run: RunDir) -> None:
    """Who edits the file means what it says now."""
    canonical = copy.deepcopy(load(run.recipe).canonical)
    text = yaml.safe_load(run.recipe.read_text(encoding="utf-8"))
    del text["model"]["dropout"]
    change_record(run, canonical=canonical)
    run.recipe.write_text(yaml.safe_dump(text), encoding="utf-8")
    assert load(run.recipe).model.encoder[1].settings["dropout"] == 0.0


def test_a_recipe_beside_no_run_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    shutil.copy(RUNS / "pairs" / "pairs.yaml", file)
    assert composer.load(file).fingerprints == load(RUNS / "pairs" / "pairs.yaml").fingerprints
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    assert composer.load(file).fingerprints == load(RUNS / "pairs" / "pairs.yaml").fingerprints
