"""`benchmarks/results.py`: which runs belong to which recipe, and what is published of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import composer
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
    collected = results.collect(
        results.find_finished([root / "runs"]), results.list_recipes(root), root
    )
    return collected["recipes/small.yaml"]["runs"] if collected else []


def published(root: Path) -> dict[str, Any]:
    entry = results.read_results(root / "recipes/small.yaml", root)
    assert entry is not None
    return entry


def test_a_run_of_the_recipe_counts(root: Path) -> None:
    write_run(root, "a")
    (only,) = collect_runs(root)
    assert only["command"] == "seqcomposer train recipes/small.yaml"
    assert only["scores"] == {"test/loss": 1.0}
    assert only["versions"] == {"torch": "2"}
    assert (only["commit"], only["machine"]) == (None, None)
    assert "secret" not in json.dumps(only)


def test_the_commit_and_the_machine_of_a_run_are_published(root: Path) -> None:
    write_run(root, "a", git={"commit": "1" * 40}, machine={"cpu": "fast", "cuda": "none"})
    (only,) = collect_runs(root)
    assert (only["commit"], only["machine"]) == ("1" * 40, {"cpu": "fast"})


def test_differing_settings_are_listed(root: Path) -> None:
    write_run(root, "a", RECIPE.replace("5}", "7, seed: 3}"))
    write_run(root, "b", RECIPE + "decoding: {beam: {size: 3}}\n")
    write_run(root, "c", RECIPE + "trainer: {devices: 1}\n", ended_at="2026-01-03")
    beam, longer = sorted(map(results.overrides, collect_runs(root)))[1:]
    assert longer == ["training.max_steps=7", "training.seed=3"]
    assert beam[0].startswith("decoding={beam: {size: 3")
    assert not results.overrides(collect_runs(root)[-1])


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
    results.add_results([root / "runs"], root)
    assert [run["steps"] for run in published(root)["runs"]] == [2]


def test_results_belong_to_a_recipe_by_fingerprint(root: Path) -> None:
    write_run(root, "a")
    results.add_results([root / "runs"], root)
    path = root / "recipes/small.yaml"
    path.write_text(f"# the same\n{RECIPE}", encoding="utf-8")
    assert results.is_current(composer.load(path), published(root))
    path.write_text(RECIPE.replace("max_steps: 5", "max_steps: 6"), encoding="utf-8")
    assert not results.is_current(composer.load(path), published(root))


def test_results_are_merged_with_those_of_the_same_recipe(root: Path) -> None:
    def commands() -> list[str]:
        results.add_results([root / "runs"], root)
        return [run["command"] for run in published(root)["runs"]]

    write_run(root, "a", RECIPE.replace("5}", "7}"))
    command = "seqcomposer train recipes/small.yaml"
    assert commands() == [f"{command} training.max_steps=7"]
    (root / "runs" / "a").rename(root / "a")
    write_run(root, "b")
    assert commands() == [command, f"{command} training.max_steps=7"]
    wider = RECIPE.replace("width: 8", "width: 16")
    (root / "recipes/small.yaml").write_text(wider, encoding="utf-8")
    write_run(root, "c", wider)
    assert commands() == [command]


def test_published_results_are_of_recipes() -> None:
    files = set((ROOT / "docs/results").rglob("*.json"))
    assert files <= {results.result_file(recipe) for recipe in results.list_recipes()}
    for file in files:
        entry = json.loads(file.read_text(encoding="utf-8"))
        recipe = f"recipes/{file.relative_to(ROOT / 'docs/results').with_suffix('.yaml')}"
        for run in entry["runs"]:
            assert run["command"].startswith(f"seqcomposer train {recipe}")
            assert run["commit"]
