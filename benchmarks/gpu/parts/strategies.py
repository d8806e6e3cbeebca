"""The strategies ddp and fsdp on one device, killed and resumed, against the training without a
strategy.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import safetensors.torch

from benchmarks.gpu import FAILED, OK, Outcome, Settings
from benchmarks.gpu.compare import relative_error
from benchmarks.gpu.trainings import SMALL_STEPS, STEPS, command, train

TOLERANCE = 1e-3
"""Relative difference of the final weights: the strategies may add up in another order."""


def cases(settings: Settings) -> list[str]:
    return ["fsdp"] if settings.small else ["ddp", "fsdp"]


def run(strategy: str, settings: Settings) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        plain, killed = Path(folder, "plain"), Path(folder, strategy)
        train(command(plain, settings), plain)
        half = (SMALL_STEPS if settings.small else STEPS) // 2
        train(command(killed, settings, strategy), killed, kill_at=half)
        train(command(killed, settings, strategy), killed)
        mine, theirs = (
            safetensors.torch.load_file(run / "model.safetensors") for run in (killed, plain)
        )
    error = relative_error([mine[name] for name in theirs], list(theirs.values()))
    text = f"killed and resumed; final weights differ from those without a strategy by {error:.2g}"
    return Outcome(OK if error <= TOLERANCE else FAILED, text)
