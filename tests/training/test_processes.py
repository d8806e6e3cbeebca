"""Two processes train as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from composer.data.sources import DataSource
from composer.run_dir import RunDir, read_metrics
from composer.training.claim import ClaimedRun
from composer.training.loggers import ProgressDisplay
from composer.training.setup import setup
from composer.training.start_record import start_record
from composer.training.train import train
from tests.training.tiny_recipes import Tiny

ROOT = Path(__file__).parents[2]
# Adam would make a step of the noise in a gradient that is zero
SAME = (
    "training.optimizer=sgd",
    "model.dropout=0",
    "training.max_steps=6",
    "training.validate_every=3",
    "training.gradient_noise={scale: 0.01}",
)
TWO = "trainer={accelerator: cpu, devices: 2, strategy: ddp}"


def train_with_two(folder: Path, *words: str) -> str:
    """Train the tiny recipe with two processes in the folder `two`, and return what that prints."""
    file, run = str(folder / "recipes" / "tiny.yaml"), str(folder / "two")
    command = [sys.executable, "-m", "composer.cli.main", "train", file, *words, TWO, "--run", run]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes_train_as_one_does(tiny: Tiny, tmp_path: Path) -> None:
    # about the time several processes agree now and then only; about the steps they always know
    train(tiny(*SAME, "training.max_minutes=1000"), tmp_path / "one")
    printed = train_with_two(tmp_path, *SAME, "training.max_minutes=1000")
    assert printed.count("validation at step 3") == 1
    records = [RunDir(tmp_path / name).read() for name in ("one", "two")]
    assert records[0].fingerprints == records[1].fingerprints
    assert records[1].status == "finished"
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-4)
    rows, others = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    for row, other in zip(rows, others, strict=True):
        for name in ("train/loss", "val/loss", "val/token_accuracy", "epoch"):
            assert row.get(name, 0) == pytest.approx(other.get(name, 0), rel=1e-4)


@pytest.mark.parametrize(("dropout", "alike"), [("0", True), ("0.5", False)])
def test_run_json_counts_processes_that_draw_random_numbers(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropout: str, alike: bool
) -> None:
    source = DataSource(tiny(f"model.dropout={dropout}"), [])
    run = ClaimedRun(source.recipe, RunDir(tmp_path / "run"))
    training = setup(run, source, ProgressDisplay(quiet=True), source.recipe.plan())
    one = start_record(training).fingerprints
    monkeypatch.setattr(type(training.trainer), "world_size", 2)
    assert (start_record(training).fingerprints == one) == alike


@pytest.mark.slow
def test_the_fingerprint_counts_processes_where_they_draw_other_random_numbers(
    tiny: Tiny, tmp_path: Path
) -> None:
    words = ["training.optimizer=sgd", "model.dropout=0.5", "training.max_steps=4"]
    train(tiny(*words), tmp_path / "one")
    train_with_two(tmp_path, *words)
    one, two = (RunDir(tmp_path / name).read() for name in ("one", "two"))
    assert {key for key, value in one.fingerprints.items() if value != two.fingerprints[key]} == {
        "run"
    }
    assert one.scores["val/loss"] != pytest.approx(two.scores["val/loss"], rel=1e-4)
