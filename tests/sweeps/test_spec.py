"""A sweep's file and what it means: points, recipes, costs, the listing, the schema."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from composer.errors import RecipeError
from composer.recipe.cache import PIN_SCHEMA
from composer.recipe.recipe import load
from composer.recipe.yaml_reader import read, to_data
from composer.sweeps.dry_run import dry_run_json, dry_run_text
from composer.sweeps.goals import rank_metrics
from composer.sweeps.points import cost_point, grid_points, list_points, point_recipe, random_points
from composer.sweeps.spec import RANGES, load_schema, read_sweep
from composer.sweeps.sweep import Goal, Pruner, SearchAlgorithm
from tests.sweeps.small_sweeps import BASE, ENCODER, sweep, write

# ------------------------------------------------------------------------------------------- what
# it means


def test_every_key_of_a_sweep_is_read(tmp_path: Path) -> None:
    axes = """
  encoder: {replace: model.encoder..self_attention, with: {attention: {self_attention: {heads: 4}}, rnn: {rnn: lstm}}}
  rate: {set: training.optimizer.adam.learning_rate, log_uniform: [1e-4, 1e-2], when: encoder == "rnn"}
  width: {set: vars.width, values: [8, 16, 32]}
  heads: {set: vars.heads, values: [1, 2, 2], zip: width}
  steps: {set: training.max_steps, log_int: [1, 100]}"""
    rest = """name: all
description: Everything at once.
set: {training.max_minutes: 8, data.generate.reverse.train: 50}
where: [parameters < 20M, flops < 2G]
search: {tpe: {trials: 40, seed: 3}}
prune: {hyperband: {min_steps: 500}}
seeds: 3
rank: [{val/bleu: max}, {parameters: min}]"""
    read = sweep(tmp_path, axes, rest)
    assert (read.name, read.seeds, read.base) == ("all", (1, 2, 3), tmp_path / "base.yaml")
    assert read.search == SearchAlgorithm("tpe", 40, 3)
    assert read.pruner == Pruner("hyperband", 500, 3)
    assert read.rank == (Goal("val/bleu", "max"), Goal("parameters", "min"))
    assert [axis.name for axis in read.free_axes] == ["encoder", "rate", "width", "steps"]
    read = replace(read, overrides=(*read.overrides, "training.seed=5"))
    recipe = point_recipe(read, {"encoder": "rnn", "rate": 0.001, "width": 32, "steps": 9})
    assert recipe.training.optimizer.learning_rate == 0.001
    assert (recipe.training.max_minutes, recipe.training.max_steps, recipe.training.seed) == (
        8.0,
        9,
        5,
    )
    assert recipe.data.generate.train == 50
    assert recipe.model.width == 32
    encoder, decoder = recipe.model.encoder, recipe.model.decoder
    assert encoder[0].settings["stack"][0]["rnn"]["cell"] == "lstm"
    assert decoder[0].settings["stack"][0]["self_attention"]["heads"] == 2


def test_missing_keys_have_defaults(tmp_path: Path) -> None:
    read = sweep(tmp_path, ENCODER)
    assert (read.name, read.seeds, read.search.kind, read.pruner) == ("tried", (7,), "grid", None)
    assert read.rank == (Goal("val/loss", "min"),)
    assert sweep(tmp_path, ENCODER, "prune: median").pruner == Pruner("median", None, 3, 5)
    assert sweep(tmp_path, ENCODER, "search: {random: 9}").search == SearchAlgorithm("random", 9, 1)
    assert sweep(tmp_path, ENCODER, "seeds: [1, 5]").seeds == (1, 5)
    assert sweep(tmp_path, ENCODER, "where:\nprune:\nname:").where == ()


def test_the_study_may_be_in_a_database(tmp_path: Path) -> None:
    url = "postgresql://me@host:5432/studies?sslmode=require"
    assert sweep(tmp_path, ENCODER).storage is None
    assert sweep(tmp_path, ENCODER, f"study: {{storage: '{url}'}}").storage == url


def test_a_sweep_is_refused_where_a_recipe_is_loaded_or_extended(tmp_path: Path) -> None:
    file = write(tmp_path, ENCODER)
    (tmp_path / "mine.yaml").write_text(f"extends: {file.name}\n", encoding="utf-8")
    for path in (file, tmp_path / "mine.yaml"):
        with pytest.raises(RecipeError) as raised:
            load(path)
        assert [(fault.file, fault.code) for fault in raised.value.faults] == [(str(file), "sweep")]
    load(tmp_path / "base.yaml")


def test_a_grid_has_every_point_once_and_in_order(tmp_path: Path) -> None:
    axes = f"""{ENCODER}
  kind: {{set: vars.heads, values: [1, 2], when: encoder == "same"}}
  width: {{set: vars.width, values: [8, 16]}}
  train: {{set: data.generate.reverse.train, values: [50, 60], zip: width}}"""
    points = grid_points(sweep(tmp_path, axes))
    widths: list[dict[str, Any]] = [{"width": 8, "train": 50}, {"width": 16, "train": 60}]
    structures: list[dict[str, Any]] = [
        {"encoder": "same", "kind": 1},
        {"encoder": "same", "kind": 2},
        {"encoder": "rnn"},
        {"encoder": "none"},
    ]
    assert points == [one | two for one in structures for two in widths]
    assert [list(point) for point in points[:1]] == [["encoder", "kind", "width", "train"]]


def test_conditions_may_name_axes_that_are_written_later(tmp_path: Path) -> None:
    axes = f'  heads: {{set: vars.heads, values: [1, 2], when: encoder == "same"}}\n{ENCODER}'
    assert grid_points(sweep(tmp_path, axes)) == [
        {"heads": 1, "encoder": "same"},
        {"encoder": "rnn"},
        {"encoder": "none"},
        {"heads": 2, "encoder": "same"},
    ]


def test_axes_that_depend_on_an_inactive_axis_are_inactive(tmp_path: Path) -> None:
    axes = f"""{ENCODER}
  heads: {{set: vars.heads, values: [1, 2], when: encoder == "same"}}
  train: {{set: data.generate.reverse.train, values: [50, 60], zip: heads}}
  steps: {{set: training.max_steps, values: [1, 2], when: heads == 2}}"""
    read = sweep(tmp_path, axes)
    assert read.complete({"encoder": "rnn", "heads": 2, "steps": 1}) == {"encoder": "rnn"}
    assert read.complete({"encoder": "same", "heads": 2, "steps": 1, "train": 1}) == {
        "encoder": "same",
        "heads": 2,
        "train": 60,
        "steps": 1,
    }


def test_an_axis_can_extend_the_base(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text(
        "recipe: 1\nmodel: {encoder: [rnn, rnn]}\ntraining: {seed: null}\n"
    )
    (tmp_path / "flat.yaml").write_text(
        "recipe: 1\nextends: deep.yaml\nmodel: {encoder: [{conv: 3}]}\n"
    )
    axes = """
  stack: {extend: {deep: deep.yaml, flat: flat.yaml}}
  first: {replace: model.encoder..rnn, with: {same: rnn, norm: norm}, when: stack == "deep"}"""
    read = sweep(tmp_path, axes, "seeds: 1")
    alone = load(tmp_path / "base.yaml")
    for point, stack in zip(
        grid_points(read), ("[rnn, rnn]", "[norm, norm]", "[{conv: 3}]"), strict=True
    ):
        recipe = point_recipe(read, point)
        assert recipe.model == load(tmp_path / "base.yaml", [f"model.encoder={stack}"]).model
        assert (recipe.data, recipe.training.seed, alone.training.seed) == (alone.data, 1, 7)


def test_a_point_equals_a_recipe_written_by_hand(tmp_path: Path) -> None:
    read = sweep(tmp_path, ENCODER)
    mine = load(tmp_path / "base.yaml", ["model.encoder=[norm]"])
    recipe = point_recipe(read, {"encoder": "none"})
    assert recipe.fingerprints == mine.fingerprints
    assert (
        point_recipe(read, {"encoder": "same"}).fingerprints
        == load(tmp_path / "base.yaml").fingerprints
    )
    assert (
        recipe.name
        == recipe.explicit["name"]
        == f"tried-{cost_point(read, {'encoder': 'none'}).fingerprint}"
    )
    written = tmp_path / "again.yaml"
    written.write_text(recipe.dump(), encoding="utf-8")
    assert load(written).canonical == recipe.canonical


def test_seeds_change_the_run_and_not_the_point(tmp_path: Path) -> None:
    read = sweep(tmp_path, ENCODER)
    seeded = (replace(read, overrides=(f"training.seed={seed}",)) for seed in (1, 2))
    one, two = (point_recipe(sweep, {"encoder": "rnn"}) for sweep in seeded)
    assert one.name == two.name
    assert one.fingerprints["run"] != two.fingerprints["run"]


def test_overrides_apply_to_every_point(tmp_path: Path) -> None:
    file = write(tmp_path, "  width: {set: vars.width, values: [8, 16]}")
    read = read_sweep(file, ["training.max_steps=2", "vars.heads=1"])
    assert {point_recipe(read, point).training.max_steps for point in grid_points(read)} == {2}
    assert read.fingerprint != read_sweep(file).fingerprint


def test_the_fingerprint_covers_what_changes_the_points(tmp_path: Path) -> None:
    first = sweep(tmp_path, ENCODER).fingerprint
    assert (
        sweep(tmp_path, ENCODER, "name: other\ndescription: text  # comment").fingerprint == first
    )
    storage = 'study: {storage: "postgresql://me@host/studies"}'
    assert sweep(tmp_path, ENCODER, storage).fingerprint == first
    # seeds may be added
    assert sweep(tmp_path, ENCODER, "seeds: 2\nsearch: grid").fingerprint == first
    assert sweep(tmp_path, ENCODER, "seeds: 2\nseeds_where: flops > 1").fingerprint == first
    drawn_by = [
        sweep(tmp_path, ENCODER, f"search: {{random: {output}}}").fingerprint
        for output in ("{trials: 3}", "{trials: 9, seed: 1}", "{trials: 3, seed: 2}")
    ]
    assert drawn_by[0] == drawn_by[1]
    assert len({first, *drawn_by}) == 3
    sweep(tmp_path, ENCODER)
    (tmp_path / "base.yaml").write_text(BASE.replace("symbols: 6", "symbols: 7"), encoding="utf-8")
    assert read_sweep(tmp_path / "tried.yaml").fingerprint != first


def test_random_points_are_the_same_each_time_and_within_bounds(tmp_path: Path) -> None:
    axes = f"""{ENCODER}
  rate: {{set: training.optimizer.adam.learning_rate, log_uniform: [1e-4, 1e-2], when: encoder != "none"}}
  steps: {{set: training.max_steps, int: [3, 4]}}
  warm: {{set: training.validate_every, log_int: [1, 9]}}"""
    read = sweep(tmp_path, axes, "search: {random: {trials: 30, seed: 2}}")
    points = random_points(read)
    assert points == random_points(read)
    assert len({json.dumps(point) for point in points}) == len(points) == 30
    for point in points:
        assert point["encoder"] == "none" or 1e-4 <= float(point["rate"]) <= 1e-2
        assert ("rate" in point) == (point["encoder"] != "none")
        assert point["steps"] in (3, 4)
        assert point["warm"] in range(1, 10)
    assert {point["steps"] for point in points} == {3, 4}
    assert points != random_points(sweep(tmp_path, axes, "search: {random: {trials: 30, seed: 3}}"))


def test_a_random_search_samples_each_point_once_at_most(tmp_path: Path) -> None:
    assert len(random_points(sweep(tmp_path, ENCODER, "search: {random: 20}"))) == 3


# ------------------------------------------------------------------------------------------- costs
# and the listing


def test_costs_equal_those_of_the_plan(tmp_path: Path) -> None:
    read = sweep(tmp_path, ENCODER)
    for item in list_points(read):
        # six symbols and the space
        plan = point_recipe(read, item.point).plan({"source": 11, "target": 11})
        assert (item.parameters, item.flops, item.state_bytes) == (
            plan.parameters,
            plan.flops,
            plan.state_bytes,
        )
        assert (item.status, item.at_most) == ("trained", False)


def test_where_excludes_points(tmp_path: Path) -> None:
    sizes = {
        str(item.point["encoder"]): item.parameters
        for item in list_points(sweep(tmp_path, ENCODER))
    }
    most = max(sizes.values())
    result = list_points(
        sweep(tmp_path, ENCODER, f"where: ['encoder != \"same\"', parameters < {most}]")
    )
    excluded = {
        str(item.point["encoder"]): item.condition for item in result if item.status == "excluded"
    }
    largest = next(name for name, size in sizes.items() if size == most)
    assert excluded == {"same": 'encoder != "same"'} | (
        {} if largest == "same" else {largest: f"parameters < {most}"}
    )


def test_what_the_steps_of_points_never_reach_is_a_warning_once_with_their_numbers(
    tmp_path: Path,
) -> None:
    axes = """
  width: {set: model.width, values: [8, 16]}
  steps: {set: training.max_steps, values: [10, 500]}
  schedule: {set: training.schedule.cosine.warmup_steps, values: [100]}"""
    text = dry_run_text(read := sweep(tmp_path, axes), list_points(read))
    assert "trained, points 1, 3:" in text
    assert text.count("the learning rate never reaches its value: that takes 100 steps") == 1


def test_impossible_and_duplicate_points_are_listed(tmp_path: Path) -> None:
    axes = """
  heads: {set: vars.heads, values: [2, 3]}
  encoder: {replace: model.encoder..self_attention, with: {one: {rnn: gru}, two: {rnn: {cell: gru}}}}"""
    read = sweep(tmp_path, axes)
    result = list_points(read)
    assert [(row.status, row.same_as) for row in result] == [
        ("trained", None),
        ("duplicate", 1),
        ("impossible", None),
        ("impossible", None),
    ]
    impossible = result[2]
    with pytest.raises(RecipeError) as caught:
        point_recipe(read, impossible.point).plan()
    assert impossible.faults == caught.value.faults
    output = dry_run_text(read, result)
    assert impossible.faults[0].message in output
    assert "impossible, points 3, 4:" in output
    assert "1 point to train; 1 duplicate, 2 impossible" in output
    data = json.loads(json.dumps(dry_run_json(read, result)))
    assert [point["status"] for point in data["points"]] == [
        "trained",
        "duplicate",
        "impossible",
        "impossible",
    ]
    assert data["points"][2]["errors"][0]["line"] > 0


def test_a_search_lists_its_candidate_structures(tmp_path: Path) -> None:
    axes = f"""{ENCODER}
  rate: {{set: training.optimizer.adam.learning_rate, log_uniform: [1e-4, 1e-2], when: encoder == "rnn"}}
  width: {{set: vars.width, int: [8, 12]}}"""
    read = sweep(tmp_path, axes, "search: {tpe: 5}")
    assert [cost.point["width"] for cost in list_points(read)] == [8, 12] * 3
    output = dry_run_text(read, list_points(read))
    assert "tpe chooses 5 points among 6 structures" in output
    assert "0.0001 to 0.01" in output


# ------------------------------------------------------------------------------------------- the
# schema


def test_the_schema_agrees_with_the_code() -> None:
    result = load_schema()
    keys = (
        "sweep",
        "name",
        "description",
        "base",
        "set",
        "axes",
        "where",
        "match",
        "search",
        "prune",
        "seeds",
    )
    assert tuple(result["properties"]) == (
        *keys,
        "seeds_where",
        "resources",
        "study",
        "tune",
        "retries",
        "rank",
    )
    assert set(result["$defs"]["axis"]["properties"]) == {
        *("set", "values", *RANGES, "replace", "with", "extend", "when", "zip")
    }
    for table, kind in (("searches", SearchAlgorithm), ("prunings", Pruner)):
        choice, names = result["$defs"][table], get_args(get_type_hints(kind)["kind"])
        assert tuple(choice["properties"]) == tuple(choice["anyOf"][0]["enum"]) == names
        entries = [result["$defs"][f"{table}.{name}"] for name in names]
        assert [entry["description"] for entry in entries] == choice["anyOf"][0]["enumDescriptions"]
        settings = {field.name: field.default for field in fields(kind) if field.name != "kind"}
        for entry in entries:
            assert entry["properties"].keys() <= settings.keys()
            assert all(
                settings[name] in (MISSING, None, rule.get("default"))
                for name, rule in entry["properties"].items()
            )


def test_a_base_is_pulled_as_a_recipe_is() -> None:
    result = load_schema()
    for rules in (
        result["properties"]["base"],
        result["$defs"]["axis"]["properties"]["extend"]["additionalProperties"],
    ):
        assert {key: rules[key] for key in PIN_SCHEMA if key != "type"} == {
            key: rule for key, rule in PIN_SCHEMA.items() if key != "type"
        }


def test_editors_accept_what_we_accept(tmp_path: Path) -> None:
    judge = Draft202012Validator(load_schema())
    Draft202012Validator.check_schema(load_schema())
    for path in sorted(Path(__file__).parents[2].glob("recipes/sweeps/*.yaml")):
        judge.validate(to_data(read(path, str(path))))
    assert not judge.is_valid(to_data(read(write(tmp_path, ENCODER, "axis: 3"), "s.yaml")))


def test_every_key_of_the_schema_has_a_description() -> None:
    result = load_schema()
    for keys in (
        result["properties"],
        *(
            item.get("properties", {})
            for item in result["$defs"].values()
            if "x-choice" not in item
        ),
    ):
        assert all(item["description"] for item in keys.values())


def test_metrics_are_those_of_the_recipes_language() -> None:
    assert {
        "val/loss",
        "val/bleu",
        "test/bleu",
        "parameters",
        "flops",
        "state_bytes",
        "minutes",
    } <= set(rank_metrics())


def test_reading_a_sweep_needs_no_torch(tmp_path: Path) -> None:
    file = write(tmp_path, ENCODER)
    code = f"""
import sys
from composer.sweeps.points import grid_points, point_recipe
from composer.sweeps.spec import read_sweep
sweep = read_sweep({str(file)!r})
point_recipe(sweep, grid_points(sweep)[0])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
