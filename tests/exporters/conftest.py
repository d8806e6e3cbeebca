"""Runs that are exported once for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from composer.exporters.runner import Runner
from composer.inference.run import Run, open_run
from tests.exporters.runs import exported
from tests.inference.untrained import ATTENTION, GRU, LANGUAGE, SWAPPED, made

KINDS = {"gru": GRU, "attention": ATTENTION, "language": LANGUAGE, "two": SWAPPED}
Exports = Callable[[str], tuple[Run, Runner]]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    pairs: dict[str, tuple[Run, Runner]] = {}

    def export(kind: str) -> tuple[Run, Runner]:
        if kind not in pairs:
            folder = tmp_path_factory.mktemp(kind)
            run = open_run(made(folder / "run", KINDS[kind]))
            pairs[kind] = run, exported(run, folder / "export")
        return pairs[kind]

    return export


@pytest.fixture(scope="module")
def folder(exports: Exports) -> Path:
    """The export `two`."""
    run, _ = exports("two")
    return run.run_dir.path.parent / "export"
