"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from composer.recipe.recipe import load
from composer.training import EARLY_SIGNALS
from tests.training.tiny_recipes import TINY, Tiny


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
