"""Variables, `null` and `extends` that change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.recipe.recipe import load
from tests.small_recipes import faults_of

BASE = (
    "recipe: 1\nvars: {wide: 16, other: 3}\ndata: {generate: copy}\nmodel: {width: $wide, decoder:"
    " [linear]}\n"
)


def refused_lines(folder: Path, own: str) -> list[str]:
    (folder / "base.yaml").write_text(BASE)
    (folder / "mine.yaml").write_text(f"recipe: 1\n{own}")
    faults = faults_of(lambda: load(folder / "mine.yaml"))
    return [f"{fault.line} {fault.code} {fault.path}" for fault in faults]


@pytest.mark.parametrize(
    ("own", "fault"),
    [
        ("extends: base.yaml\nvars: {widht: 3}\n", "3 unused vars.widht"),
        ("extends: base.yaml\nvars: {a: 3, b: $a}\n", "3 unused vars.a"),
        ("extends: base.yaml\nmodel: {encoder: null}\n", "3 unused model.encoder"),
        ("extends: []\n", "2 unused extends"),
        ("extends: null\n", "2 unused extends"),
    ],
)
def test_what_changes_nothing_is_a_fault(tmp_path: Path, own: str, fault: str) -> None:
    assert fault in refused_lines(tmp_path, own)


@pytest.mark.parametrize("training", ["", "training: {early_stopping: {min_delta: 0.1}}\n"])
def test_a_null_that_sets_a_key_whose_default_is_another_is_kept(
    tmp_path: Path, training: str
) -> None:
    (tmp_path / "base.yaml").write_text(BASE + training)
    own = "recipe: 1\nextends: base.yaml\ntraining: {early_stopping: {patience: null, goal: 1}}\n"
    (tmp_path / "mine.yaml").write_text(own)
    assert load(tmp_path / "mine.yaml").training.early_stopping.patience is None


def test_a_fragment_may_have_variables_that_nothing_reads(tmp_path: Path) -> None:
    assert refused_lines(tmp_path, "extends: base.yaml\n") == []


def test_an_override_may_leave_a_variable_without_a_reader(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE.replace(", other: 3", ""))
    assert not load(tmp_path / "base.yaml", ["model.width=8"]).warnings
