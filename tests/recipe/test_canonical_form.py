"""The canonical form: where each value comes from, and that the same recipe is the same however it
is written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.recipe.canonical_form import TRAINER_WITH_EFFECT, TRAINING_WITHOUT_EFFECT
from composer.recipe.fingerprints import fingerprints
from composer.recipe.schema_generator import load
from composer.recipe.yaml_reader import dump, read
from tests.samples import sampled
from tests.small_recipes import SMALL, loaded

RECIPES = [
    path
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("**/*.yaml"))
    if "fragments" not in path.parts and "sweep" not in read(path, path.name).value
]

TEXT = """recipe: 1
data: {generate: copy}
model:
  width: 64
  %
  decoder:
    - @
"""


def block(folder: Path, written: str, defaults: str = "dropout: 0.0") -> dict[str, Any]:
    """The canonical settings of the only block of a decoder."""
    recipe = loaded(folder, TEXT.replace("@", written).replace("%", defaults))
    (only,) = recipe.model.decoder
    return only.settings


@pytest.mark.parametrize(
    ("written", "defaults", "setting", "value"),
    [
        ("self_attention", "stacks: {}", "dropout", 0.0),
        ("self_attention", "dropout: 0.1", "dropout", 0.1),
        ("self_attention", "dropout: 0.1\n  self_attention: {dropout: 0.2}", "dropout", 0.2),
        (
            "self_attention: {dropout: 0.3}",
            "dropout: 0.1\n  self_attention: {dropout: 0.2}",
            "dropout",
            0.3,
        ),
        ("self_attention: {heads: 2}", "self_attention: {heads: 4, window: 5}", "heads", 2),
        ("self_attention: {heads: 2}", "self_attention: {heads: 4, window: 5}", "window", 5),
        ("self_attention: {window: null}", "self_attention: {heads: 4, window: 5}", "window", None),
        ("self_attention", "self_attention: 4", "heads", 4),
        ("self_attention: 2", "stacks: {}", "heads", 2),
        ("dropout", "dropout: 0.1", "rate", 0.1),
        ("dropout: 0.2", "dropout: 0.1", "rate", 0.2),
        ("dropout", "stacks: {}", "rate", 0.0),
        ("residual: [norm]", "residual: {norm: pre}", "norm", "pre"),
        ("residual: {stack: [norm], norm: post}", "residual: {norm: pre}", "norm", "post"),
        ("concat: a", "stacks: {}", "of", ["a"]),
        ("concat: [a, b]", "stacks: {}", "of", ["a", "b"]),
        ("linear: {as: x}", "stacks: {}", "as", "x"),
        ("residual: {stack: [norm], scale: 1}", "stacks: {}", "scale", 1.0),
    ],
)
def test_the_closest_default_takes_precedence(
    tmp_path: Path, written: str, defaults: str, setting: str, value: object
) -> None:
    actual = block(tmp_path, written, defaults)[setting]
    assert actual == value
    assert type(actual) is type(value)


def test_every_default_is_filled_in(tmp_path: Path) -> None:
    canonical = loaded(tmp_path, TEXT.replace("@", "norm").replace("%", "dropout: 0.1")).canonical
    known = load()["$defs"]
    assert list(canonical) == [
        *(
            "recipe",
            "name",
            "data",
            "model",
            "training",
            "decoding",
            "evaluation",
            "trainer",
            "logging",
        )
    ]
    assert set(canonical["training"]) == set(known["training"]["properties"])
    assert canonical["model"] == {
        "width": 64,
        "embedding": {"learned": {"scale": True}},
        "embedding_dropout": 0.0,
        "dropout": 0.1,
        "encoder": None,
        "encoders": None,
        "decoder": [{"norm": {"kind": "layer", "eps": 1e-5}}],
        "output": {"tie": [], "kind": "linear", "length": None, "ctc": None, "bias": True},
        "stacks": {},
    }
    assert canonical["training"]["optimizer"]["adam"]["learning_rate"] == 0.001
    assert canonical["logging"] == {"wandb": None}
    assert set(canonical["trainer"]) == set(known["trainer"]["properties"])


def test_without_a_budget_there_are_ten_epochs(tmp_path: Path) -> None:
    assert loaded(tmp_path, SMALL).training.max_epochs == 10
    recipe = loaded(tmp_path, SMALL + "training: {max_minutes: 1}\n")
    assert (recipe.training.max_epochs, recipe.training.max_minutes) == (None, 1.0)


def test_as_has_no_default(tmp_path: Path) -> None:
    assert "as" not in block(tmp_path, "linear")


STACKED = """recipe: 1
name: one
data: {generate: {copy: {train: 10}}}
model:
  width: 32
  residual: {norm: pre}
  encoder:
    - parallel: {branches: {a: [norm], b: [linear]}, merge: concat}
    - residual: [{self_attention: 4}]
  decoder: [norm]
training: {optimizer: adam, label_smoothing: 0}
"""

SAME = {
    "spelled out": (
        """# the same recipe
training: {label_smoothing: 0.0, optimizer: {adam: {learning_rate: 1e-3}}, max_epochs: 10, clip_norm: null}
name: another
description: of other names
logging: {wandb: false}
trainer: {devices: 2}
model:
  decoder:
    - norm: {kind: layer}
  encoder:
    - parallel:
        merge: concat
        branches: {b: [{linear: {}}], a: [{norm: layer}]}
    - residual: {norm: pre, stack: [{self_attention: {window: null, heads: 4}}]}
  width: 0x20
  dropout: 0.0
data: {tokenizer: {word: {joint: false}}, generate: {copy: {train: 10, seed: 1}}}
recipe: 1
"""
    ),
    "with variables": STACKED.replace("width: 32", 'width: "${w}"') + "vars: {w: 32}\n",
    "with what Windows ends lines by": STACKED.replace("\n", "\r\n"),
    "with a mark at its start": "\ufeff" + STACKED,
    "with other ways to write numbers": (
        STACKED.replace("32", "0o40").replace("smoothing: 0", "smoothing: 0e5")
    ),
    "with comments": "".join(f"{line}  # {line.strip()}\n" for line in STACKED.splitlines()),
    "with defaults of a block": (
        STACKED.replace("{self_attention: 4}", "self_attention").replace(
            "  residual:", "  self_attention: {heads: 4}\n  residual:"
        )
    ),
    "with a default of all blocks, undone in each": (
        STACKED.replace("width: 32", "width: 32\n  dropout: 0.5")
        .replace("{self_attention: 4}", "{self_attention: {heads: 4, dropout: 0}}")
        .replace("residual: [{", "residual: {dropout: 0, stack: [{")
        .replace("}}]\n", "}}]}\n")
    ),
    "with a default that nothing here has": STACKED.replace(
        "width: 32", "width: 32\n  rnn: {cell: lstm}"
    ),
    "with no encoders": STACKED.replace("width: 32", "width: 32\n  encoders: null"),
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_the_same_recipe_has_the_same_fingerprints(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, text).fingerprints == loaded(tmp_path, STACKED).fingerprints


def test_an_extended_recipe_has_the_fingerprints_of_the_merged_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(STACKED.replace("width: 32", "width: 8"))
    recipe = loaded(tmp_path, "extends: base.yaml\nname: other\nmodel: {width: 32}\n")
    assert recipe.fingerprints == loaded(tmp_path, STACKED).fingerprints


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("width: 32", "width: 32\n  dropout: 0.1", {"model", "run"}),
        ("decoder: [norm]", "decoder: [{norm: {as: x}}]", {"model", "run"}),
        ("label_smoothing: 0", "workers: 2", set()),
        ("label_smoothing: 0", "seed: 2", {"run"}),
        ("label_smoothing: 0", "max_epochs: 11", {"run"}),
        (
            "recipe: 1",
            "recipe: 1\ntrainer: {devices: 2, deterministic: true, benchmark: true}",
            set(),
        ),
        ("recipe: 1", "recipe: 1\ntrainer: {limit_val_batches: 1}", {"run"}),
        ("recipe: 1", "recipe: 1\ntrainer: {limit_val_batches: 1.0}", set()),
        ("recipe: 1", "recipe: 1\ndecoding: {beam: 2}", {"run"}),
        ("recipe: 1", "recipe: 1\nlogging: {wandb: {project: other}}", set()),
        ("recipe: 1", "recipe: 1\ndescription: another", set()),
        ("width: 32", "width: 33", {"model", "run"}),
        ("norm: pre", "norm: post", {"model", "run"}),
        ("train: 10", "train: 11", {"data", "run"}),
        ("optimizer: adam", "optimizer: sgd", {"run"}),
        ("a: [norm], b: [linear]", "a: [linear], b: [norm]", {"model", "run"}),
        ("name: one", "name: two", set()),
    ],
)
def test_each_setting_changes_its_fingerprints(
    tmp_path: Path, old: str, new: str, changed: set[str]
) -> None:
    before, after = (
        loaded(tmp_path, STACKED).fingerprints,
        loaded(tmp_path, STACKED.replace(old, new)).fingerprints,
    )
    assert {key for key in before if before[key] != after[key]} == changed
    assert all(len(value) == 64 for value in after.values())


def test_tied_sides_have_no_order(tmp_path: Path) -> None:
    text = STACKED.replace("train: 10}}}", "train: 10}}, tokenizer: {word: {joint: true}}}")
    ties = [
        text.replace("decoder: [norm]", f"decoder: [norm]\n  output: {{tie: {tie}}}")
        for tie in ("[source, target]", "[target, source]", "[target]")
    ]
    one, other, less = (loaded(tmp_path, item).fingerprints for item in ties)
    assert one == other
    assert one["model"] != less["model"]


def test_file_and_name_do_not_change_fingerprints(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    text = STACKED.replace("name: one\n", "")
    one, other = (
        loaded(tmp_path, text, name="a.yaml"),
        loaded(tmp_path / "elsewhere", text, name="b.yaml"),
    )
    assert one.name != other.name
    assert one.fingerprints == other.fingerprints


@pytest.mark.parametrize(
    "path", sampled(RECIPES, 40, slow=40), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_recipe_with_everything_spelt_out_is_the_same(tmp_path: Path, path: Path) -> None:
    recipe = composer.load(path)
    data = {key: value for key, value in recipe.canonical["data"].items() if value is not None}
    if data.get("parallel"):
        splits = {split: output for split, output in data["parallel"].items() if output}
        data["parallel"] = {
            split: {key: file for key, file in output.items() if file is not None}
            for split, output in splits.items()
        }
    if data.get("table"):
        data["table"] = {key: column for key, column in data["table"].items() if column is not None}
    spelt = dump(turned({**recipe.canonical, "data": data}))
    assert loaded(tmp_path, spelt).fingerprints == recipe.fingerprints


def test_a_stack_counts_where_it_is_used(tmp_path: Path) -> None:
    def model_of(stacks: str) -> str:
        text = (
            "recipe: 1\ndata: {generate: copy}\nmodel:\n  width: 8\n  decoder: [{use: a}]\n "
            f" stacks: {stacks}\n"
        )
        return loaded(tmp_path, text).fingerprints["model"]

    used = model_of("{a: [{use: {stack: b}}, rnn], b: [norm]}")
    assert used == model_of("{a: [{use: b}, rnn], b: [norm], c: [rnn]}")
    assert used != model_of("{a: [{use: b}, rnn], b: [rnn], c: [rnn]}")


def test_a_zero_below_zero_is_zero() -> None:
    one, other = (loaded_with(f"training.label_smoothing={value}") for value in ("0.0", "-0.0"))
    assert one == other


def loaded_with(*overrides: str) -> dict[str, str]:
    return composer.load(RECIPES[0], overrides).fingerprints


def turned(value: Any) -> Any:
    """A tree with all its mappings the other way round."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a tree that holds nothing further."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    if not inner or not value:
        yield path
    for key, item in inner:
        yield from leaves(item, (*path, key))


def test_every_setting_counts_where_it_should() -> None:
    """Each setting of each block, optimizer, task ... that a recipe here has is changed once, and
    it alone.
    """
    seen: set[tuple[Any, ...]] = set()
    for path in RECIPES:
        recipe = composer.load(path)
        canonical, known = recipe.canonical, recipe.fingerprints
        for place in leaves({key: value for key, value in canonical.items() if key != "recipe"}):
            kind = (place[0], *(step for step in place[-2:] if isinstance(step, str)))
            if kind not in seen:
                seen.add(kind)
                actual = fingerprints(changed(canonical, place), recipe.rules)
                assert {key for key in known if known[key] != actual[key]} == counted(place), (
                    path.name,
                    place,
                )
    assert len(seen) > 300


def changed(canonical: dict[str, Any], place: tuple[Any, ...]) -> dict[str, Any]:
    """A canonical recipe with another value, of whatever kind, at a place."""
    actual = copy.deepcopy(canonical)
    inner: Any = actual
    for step in place[:-1]:
        inner = inner[step]
    other = {"tie": ["another"], "stacks": {"another": ["block"]}}.get(
        place[-1], ["another", inner[place[-1]]]
    )
    inner[place[-1]] = "another" if "tie" in place[:-1] else other
    return actual


def counted(place: tuple[Any, ...]) -> set[str]:
    """Which fingerprints a setting changes, by where it stands."""
    section, key = place[0], place[1] if len(place) > 1 else ""
    if section in ("data", "model"):
        if place in (("model", "dropout"), ("model", "stacks")):  # no stack is used here
            return set()
        return {section, "run"}
    if section == "decoding" and place[-1] == "engine":
        return set()
    if section == "trainer":
        return {"run"} if key in TRAINER_WITH_EFFECT else set()
    decides = section in ("decoding", "evaluation") or (
        section == "training" and key not in TRAINING_WITHOUT_EFFECT
    )
    return {"run"} if decides else set()


READER = "[rnn, {residual: [{cross_attention: {from: z, heads: 2}}]}]"
ENCODERS = {
    "by name": ("{b: [rnn], a: [rnn]}", ["a", "b"]),
    "after the one that it reads": (f"{{a: {READER}, b: [rnn], z: [rnn]}}", ["b", "z", "a"]),
    "however they are written": (f"{{z: [rnn], b: [rnn], a: {READER}}}", ["b", "z", "a"]),
    "what a block in it has named": (
        "{a: [{concat: z.mean}], z: [{pool: {as: mean}}, rnn]}",
        ["z", "a"],
    ),
    "by a named stack": ("{a: [rnn, {use: reads}], z: [rnn]}", ["z", "a"]),
    "in turn": (f"{{a: [{{concat: b.x}}], b: {READER}, z: [rnn]}}", ["z", "b", "a"]),
    "by each other": (f"{{a: {READER}, z: [{{concat: a.x}}]}}", ["a", "z"]),
}


@pytest.mark.parametrize(("encoders", "order"), ENCODERS.values(), ids=ENCODERS)
def test_an_encoder_comes_after_those_that_it_reads(
    tmp_path: Path, encoders: str, order: list[str]
) -> None:
    columns = "{train: a.tsv, a: a, b: b, z: z, target: t}"
    for side in {"a", "b", "z"} - {*order}:
        columns = columns.replace(f" {side}: {side},", "")
    model = f"{{width: 8, stacks: {{reads: {READER}}}, encoders: {encoders}, decoder: [rnn]}}"
    recipe = loaded(tmp_path, f"recipe: 1\ndata: {{table: {columns}}}\nmodel: {model}\n")
    assert list(recipe.model.encoders) == order
