"""Every example runs from an empty folder, and the README of the folder lists it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import composer
from tests.docs.fenced import ROOT

FOLDER = ROOT / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Tip:" not in done.stdout + done.stderr  # of Lightning


def test_every_example_is_listed() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [
        script.name for script in SCRIPTS if f"python examples/{script.name}`" not in text
    ] == []


def test_the_sweep_of_the_examples_has_no_fault() -> None:
    assert [point.faults for point in composer.sweep_points(FOLDER / "sweep.yaml")] == [[]] * 4
