"""`benchmarks/results.py`: which runs count for which recipe, and what is told of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.fenced import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import results

RECIPE = """\
recipe: 1
name: small
data: {generate: copy}
model: {width: 8, decoder: [norm]}
training: {max_steps: 5}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/small.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def run(root: Path, name: str, text: str = RECIPE, **told: Any) -> None:
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    given = {
        "status": "finished",
        "seed": 1,
        "steps": 5,
        "epochs": 1.0,
        "minutes": 0.1,
        "parameters": 9,
        "ended_at": "2026-01-01",
        "data": {"pairs": {"train": 3}, "folders": ["/secret"]},
        "scores": {"test/loss": 1.0},
        "versions": {"torch": "2", "other": "3"},
    }
    (folder / "run.json").write_text(json.dumps({**given, **told}), encoding="utf-8")


def collected(root: Path) -> list[dict[str, Any]]:
    found = results.collected(results.finished([root / "runs"]), results.recipes(root), root)
    assert json.loads(results.text(found)) == found
    return found["recipes/small.yaml"]["runs"] if found else []


def test_a_run_of_the_recipe_counts(root: Path) -> None:
    run(root, "a")
    (only,) = collected(root)
    assert only["differs"] == []
    assert only["scores"] == {"test/loss": 1.0}
    assert only["versions"] == {"torch": "2"}
    assert "secret" not in json.dumps(only)


def test_what_differs_is_told(root: Path) -> None:
    run(root, "a", RECIPE.replace("5}", "7, seed: 3}"))
    run(root, "b", RECIPE + "decoding: greedy\n")
    run(root, "c", RECIPE + "trainer: {devices: 1}\n", ended_at="2026-01-03")
    assert [each["differs"] for each in collected(root)][1:] == [["training.max_steps=7", "training.seed=3"]]


@pytest.mark.parametrize(
    "change",
    [
        ("width: 8", "width: 16"),
        ("name: small", "name: other"),
        ("copy", "reverse"),
        ("max_steps: 5", "max_steps: 5, clip_norm: 1.0"),
        ("recipe: 1", "recipe: 1000"),
    ],
)
def test_another_recipe_does_not_count(root: Path, change: tuple[str, str]) -> None:
    run(root, "a", RECIPE.replace(*change))
    assert collected(root) == []


def test_what_has_not_finished_does_not_count(root: Path) -> None:
    run(root, "a", status="running")
    assert collected(root) == []


def test_the_later_run_counts(root: Path) -> None:
    run(root, "a", ended_at="2026-01-02", steps=2)
    run(root, "b", ended_at="2026-01-01", steps=1)
    assert [each["steps"] for each in collected(root)] == [2]


def test_a_recipe_that_has_changed_has_no_results(root: Path) -> None:
    run(root, "a")
    path = root / "recipes/small.yaml"
    (told,) = results.collected(results.finished([root / "runs"]), results.recipes(root), root).values()
    path.write_text(f"# the same\n{RECIPE}", encoding="utf-8")
    assert results.still(path, told)
    path.write_text(RECIPE.replace("max_steps: 5", "max_steps: 6"), encoding="utf-8")
    assert not results.still(path, told)


def test_what_is_committed_is_of_recipes_as_they_stand() -> None:
    told = json.loads(results.TARGET.read_text(encoding="utf-8"))
    assert told
    assert [path for path, each in told.items() if not results.still(ROOT / path, each)] == []
