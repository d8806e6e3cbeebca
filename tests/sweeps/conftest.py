"""What the tests of running sweeps share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.stub_sweeps import plan, train_by_stub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the stub trains."""
    train_by_stub(tmp_path, monkeypatch)
    plan(tmp_path)
    return tmp_path
