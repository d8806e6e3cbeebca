"""`benchmarks/results.py`: which runs belong to which recipe, and what is published of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from tests.docs.fenced import ROOT

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


def write_run(root: Path, name: str, text: str = RECIPE, **changes: Any) -> None:
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    defaults = {
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
    (folder / "run.json").write_text(json.dumps({**defaults, **changes}), encoding="utf-8")


def collect_runs(root: Path) -> list[dict[str, Any]]:
    results_by_recipe = results.collect(
        results.find_finished([root / "runs"]), results.list_recipes(root), root
    )
    assert json.loads(results.to_json(results_by_recipe)) == results_by_recipe
    return results_by_recipe["recipes/small.yaml"]["runs"] if results_by_recipe else []


def test_a_run_of_the_recipe_counts(root: Path) -> None:
    write_run(root, "a")
    (only,) = collect_runs(root)
    assert only["differs"] == []
    assert only["scores"] == {"test/loss": 1.0}
    assert only["versions"] == {"torch": "2"}
    assert "secret" not in json.dumps(only)


def test_differing_settings_are_listed(root: Path) -> None:
    write_run(root, "a", RECIPE.replace("5}", "7, seed: 3}"))
    write_run(root, "b", RECIPE + "decoding: greedy\n")
    write_run(root, "c", RECIPE + "trainer: {devices: 1}\n", ended_at="2026-01-03")
    assert [run["differs"] for run in collect_runs(root)][1:] == [
        ["training.max_steps=7", "training.seed=3"]
    ]


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
def test_a_run_of_another_recipe_does_not_count(root: Path, change: tuple[str, str]) -> None:
    write_run(root, "a", RECIPE.replace(*change))
    assert collect_runs(root) == []


def test_an_unfinished_run_does_not_count(root: Path) -> None:
    write_run(root, "a", status="running")
    assert collect_runs(root) == []


def test_the_latest_of_equal_runs_counts(root: Path) -> None:
    write_run(root, "a", ended_at="2026-01-02", steps=2)
    write_run(root, "b", ended_at="2026-01-01", steps=1)
    assert [run["steps"] for run in collect_runs(root)] == [2]


def test_a_changed_recipe_has_no_results(root: Path) -> None:
    write_run(root, "a")
    path = root / "recipes/small.yaml"
    (entry,) = results.collect(
        results.find_finished([root / "runs"]), results.list_recipes(root), root
    ).values()
    path.write_text(f"# the same\n{RECIPE}", encoding="utf-8")
    assert results.is_current(path, entry)
    path.write_text(RECIPE.replace("max_steps: 5", "max_steps: 6"), encoding="utf-8")
    assert not results.is_current(path, entry)


def test_new_results_are_merged_with_those_that_are_current(root: Path) -> None:
    def collected() -> dict[str, Any]:
        return results.collect(
            results.find_finished([root / "runs"]), results.list_recipes(root), root
        )

    def differing(merged: dict[str, Any]) -> list[Any]:
        return [run["differs"] for entry in merged.values() for run in entry["runs"]]

    write_run(root, "a", RECIPE.replace("5}", "7}"))
    old = collected()
    (root / "runs" / "a").rename(root / "a")
    write_run(root, "b")
    assert differing(results.merge(old, collected(), root)) == [[], ["training.max_steps=7"]]
    path = root / "recipes/small.yaml"
    path.write_text(RECIPE.replace("width: 8", "width: 16"), encoding="utf-8")
    assert differing(results.merge(old, collected(), root)) == []


def test_published_results_are_of_current_recipes() -> None:
    published = json.loads(results.TARGET.read_text(encoding="utf-8"))
    assert published
    assert [
        path for path, entry in published.items() if not results.is_current(ROOT / path, entry)
    ] == []
