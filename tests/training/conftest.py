"""What the tests of training share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from composer.processes.signals import EARLY_SIGNALS
from composer.recipe.recipe import Recipe, load
from composer.training.train import train
from tests.training.interruptions import interrupted_at_step, killed_in_batch
from tests.training.tiny_recipes import TINY, Tiny, Undisturbed


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums in the same order at every run."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_signal_before() -> Iterator[None]:
    """A signal that one test has sent is not the next one's."""
    yield
    EARLY_SIGNALS.clear()


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """The recipe, with overrides."""
    file = tmp_path / "recipes" / "tiny.yaml"
    file.parent.mkdir()
    file.write_text(TINY, encoding="utf-8")
    return lambda *overrides: load(file, overrides)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The folder of a run of a recipe that nothing has stopped: one training for all tests, which
    only read it.
    """
    runs: dict[str, Path] = {}

    def run_of(recipe: Recipe) -> Path:
        key = recipe.dump()
        if key not in runs:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            runs[key] = Path(train(recipe, folder).run_dir)
        return runs[key]

    return run_of


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the tiny recipe, which tests copy.

    `killed` was in step 6, and has a checkpoint of step 4; `interrupted` was in step 7, and has one
    of that step too.
    """
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    with killed_in_batch(6):
        train(load(folder / "tiny.yaml"), folder / "killed")
    with interrupted_at_step(7):
        train(load(folder / "tiny.yaml"), folder / "interrupted")
    return folder


@pytest.fixture
def cut(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the run that was killed."""
    return Path(shutil.copytree(stopped / "killed", tmp_path / "cut"))


@pytest.fixture
def interrupted(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the run that was interrupted."""
    return Path(shutil.copytree(stopped / "interrupted", tmp_path / "interrupted"))
