"""The canonical form: whence each value comes, and that the same recipe is the same however it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_recipes import SMALL, loaded

from composer.language.schema import load

TEXT = """recipe: 1
data: {generate: copy}
model:
  width: 64
  %
  decoder:
    - @
"""


def block(folder: Path, written: str, defaults: str = "dropout: 0.0") -> dict[str, Any]:
    """The frozen settings of the only block of a decoder."""
    recipe = loaded(folder, TEXT.replace("@", written).replace("%", defaults))
    ((settings,),) = (list(each.values()) for each in recipe.model["decoder"])
    return settings


@pytest.mark.parametrize(
    ("written", "defaults", "setting", "value"),
    [
        ("self_attention", "stacks: {}", "dropout", 0.0),
        ("self_attention", "dropout: 0.1", "dropout", 0.1),
        ("self_attention", "dropout: 0.1\n  self_attention: {dropout: 0.2}", "dropout", 0.2),
        ("self_attention: {dropout: 0.3}", "dropout: 0.1\n  self_attention: {dropout: 0.2}", "dropout", 0.3),
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
def test_whence_a_setting_comes(tmp_path: Path, written: str, defaults: str, setting: str, value: object) -> None:
    found = block(tmp_path, written, defaults)[setting]
    assert found == value
    assert type(found) is type(value)


def test_every_default_stands(tmp_path: Path) -> None:
    frozen = loaded(tmp_path, TEXT.replace("@", "norm").replace("%", "dropout: 0.1")).frozen
    known = load()["$defs"]
    assert list(frozen) == ["recipe", "name", "data", "model", "training", "decoding", "trainer", "logging"]
    assert set(frozen["training"]) == set(known["training"]["properties"])
    assert frozen["model"] == {
        "width": 64, "embedding": "learned", "dropout": 0.1, "encoder": None, "encoders": None,
        "decoder": [{"norm": {"kind": "layer"}}], "output": {"tie": [], "kind": "linear", "length": None}, "stacks": {},
    }  # fmt: skip
    assert frozen["training"]["optimizer"]["adam"]["learning_rate"] == 0.001
    assert frozen["logging"] == {"wandb": None}
    assert set(frozen["trainer"]) == set(known["trainer"]["properties"])


def test_without_a_budget_there_are_ten_epochs(tmp_path: Path) -> None:
    assert loaded(tmp_path, SMALL).training["max_epochs"] == 10
    recipe = loaded(tmp_path, SMALL + "training: {max_minutes: 1}\n")
    assert (recipe.training["max_epochs"], recipe.training["max_minutes"]) == (None, 1.0)


def test_a_name_inside_is_only_there_when_given(tmp_path: Path) -> None:
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
    "spelled out": """# the same recipe
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
""",
    "with variables": STACKED.replace("width: 32", 'width: "${w}"') + "vars: {w: 32}\n",
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_the_same_recipe_has_the_same_fingerprints(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, text).fingerprints == loaded(tmp_path, STACKED).fingerprints


def test_an_extended_recipe_has_the_fingerprints_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(STACKED.replace("width: 32", "width: 8"))
    recipe = loaded(tmp_path, "extends: base.yaml\nname: other\nmodel: {width: 32}\n")
    assert recipe.fingerprints == loaded(tmp_path, STACKED).fingerprints


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("width: 32", "width: 33", {"model", "run"}),
        ("norm: pre", "norm: post", {"model", "run"}),
        ("train: 10", "train: 11", {"data", "run"}),
        ("optimizer: adam", "optimizer: sgd", {"run"}),
        ("a: [norm], b: [linear]", "a: [linear], b: [norm]", {"model", "run"}),
        ("name: one", "name: two", set()),
    ],
)
def test_what_changes_a_fingerprint(tmp_path: Path, old: str, new: str, changed: set[str]) -> None:
    before, after = loaded(tmp_path, STACKED).fingerprints, loaded(tmp_path, STACKED.replace(old, new)).fingerprints
    assert {key for key in before if before[key] != after[key]} == changed
    assert all(len(value) == 64 for value in after.values())
