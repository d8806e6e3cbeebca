"""Two processes train as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from composer.run_dir import RunDir, read_metrics
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


@pytest.mark.slow
def test_two_processes_train_as_one_does(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(*SAME), tmp_path / "one")
    # about the time several processes agree now and then only; about the steps they always know
    words = [*SAME, "training.max_minutes=1000", TWO]
    command = [sys.executable, "-m", "composer.cli.main", "train", str(tmp_path / "recipes" / "tiny.yaml"), *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "two")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("validation at step 3") == 1
    assert RunDir(tmp_path / "two").read()["status"] == "finished"
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-4)
    rows, others = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    for row, other in zip(rows, others, strict=True):
        for name in ("train/loss", "val/loss", "val/token_accuracy", "epoch"):
            assert row.get(name, 0) == pytest.approx(other.get(name, 0), rel=1e-4)
