"""Runs that many tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inference.untrained import ATTENTION, made


@pytest.fixture(scope="session")
def gru(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("gru") / "run")


@pytest.fixture(scope="session")
def attention(tmp_path_factory: pytest.TempPathFactory, gru: Path) -> Path:
    return made(tmp_path_factory.mktemp("attention") / "run", ATTENTION, seed=1, like=gru)
