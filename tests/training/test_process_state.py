"""A training leaves its process as it found it, whether it ends well or in an error."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.errors import ComposerError
from composer.training.preflight import check_recipe
from composer.training.train import train
from composer.training.trial_run import time_training
from tests.training.tiny_recipes import Tiny

CHANGES = (
    "trainer.deterministic=true",
    "trainer.benchmark=false",
    "training.precision=bf16-mixed",
    "training.max_steps=2",
    "training.validate_every=2",
)


def state() -> dict[str, Any]:
    """What a process has for all its code."""
    loggers = [
        None,
        "pytorch_lightning",
        "lightning_fabric",
        "lightning.pytorch",
        "pytorch_lightning.profilers",
    ]
    return {
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "loggers": [
            (logging.getLogger(name).level, list(logging.getLogger(name).handlers))
            for name in loggers
        ],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "hooks": (sys.excepthook, threading.excepthook, sys.stdout, sys.stderr),
        "folder": os.getcwd(),
    }


def trained(recipe: Any, folder: Path) -> None:
    train(recipe, folder / "run")


def failed(recipe: Any, folder: Path) -> None:
    (folder / "run").write_text("a file")
    with pytest.raises((ComposerError, OSError)):
        train(recipe, folder / "run")


def checked(recipe: Any, folder: Path) -> None:
    check_recipe(recipe)


def timed(recipe: Any, folder: Path) -> None:
    time_training(recipe)


@pytest.mark.parametrize("act", [trained, failed, checked, timed])
def test_a_process_is_as_it_was(
    act: Callable[[Any, Path], None], tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(*CHANGES)
    for name in ("warm", "again"):
        (tmp_path / name).mkdir()
    act(recipe, tmp_path / "warm")  # what is imported once stays
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    torch.use_deterministic_algorithms(False)
    logging.getLogger("pytorch_lightning").setLevel(logging.DEBUG)
    warnings.simplefilter("default", ResourceWarning)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = state()
    act(recipe, tmp_path / "again")
    after = state()
    assert {key: after[key] for key in before if after[key] != before[key]} == {}
