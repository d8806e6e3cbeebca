"""Runs that the tests of the report share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from composer.recipe.recipe import load
from composer.training.train import train
from tests.inference.untrained import made
from tests.training.tiny_recipes import TINY


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums in the same order at every run."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gru(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights."""
    return made(tmp_path_factory.mktemp("gru") / "run")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has been trained, with W&B offline."""
    home = tmp_path_factory.mktemp("trained")
    (home / "tiny.yaml").write_text(
        TINY.replace("{wandb: false}", "{wandb: {project: p}}"), encoding="utf-8"
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_MODE", "WANDB_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(home))
        train(load(home / "tiny.yaml", ["training.validate_every=2"]), home / "run")
    assert "WANDB_DATA_DIR" not in os.environ
    return home / "run"


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
