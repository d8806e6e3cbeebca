"""Settings for all tests, made before anything imports torch."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LANGUAGE = (
    "test_errors.py",
    "test_suggest.py",
    "checks/test_no_effect.py",
    "errors/test_snapshots.py",
    "recipe/test_extends_and_overrides.py",
    "recipe/test_faults.py",
    "recipe/test_recipe.py",
    "recipe/test_section.py",
    "recipe/test_syntax_faults.py",
    "recipe/test_validation.py",
    "recipe/test_yaml_reader.py",
)
CORE = (
    "blocks/test_delta_rule.py",
    "blocks/test_kv_cache.py",
    "blocks/test_linear_recurrence.py",
    "blocks/test_named.py",
    "blocks/test_oracles.py",
    "blocks/test_recurrent.py",
    "blocks/test_rotary.py",
    "blocks/test_stream.py",
)
KEEP_LAWS = ("cgru", "cross_attention", "ntm", "recurrent", "repeat", "rnn", "self_attention")
QUICK = (
    *LANGUAGE,
    *CORE,
    *(f"laws/test_blocks.py::test_a_block_keeps_every_law[{block}]" for block in KEEP_LAWS),
    "training/test_train.py::test_a_finished_run_folder_has_all_its_files",
)
"""What `pytest -m quick` runs in less than a minute on two cores: files of tests/, single tests."""

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what a GPU changes is for `python -m benchmarks.gpu`
# W&B costs more than a tiny training; those who test it delete this
os.environ["WANDB_MODE"] = "disabled"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest runs as many processes as there are cores
# two threads that spin take the cores of all other tests
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# commands and scripts that a test starts import this checkout, and `tests` too
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# what one process of the tests compiles, the next ones read: our modules, and tests with their
# assertions rewritten
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# nothing is taken from the user's cache, nor left there
STORE = tempfile.TemporaryDirectory(prefix="seqcomposer-")
os.environ["SEQCOMPOSER_STORE"] = STORE.name


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip other files for `-m quick`: to import them takes as long as its tests."""
    if config.option.markexpr != "quick" or collection_path.is_dir():
        return None
    name = collection_path.relative_to(ROOT / "tests").as_posix()
    return None if any(test.startswith(name) for test in QUICK) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of QUICK, except those that are marked as slow."""
    for item in items:
        file, _, test = item.nodeid.removeprefix("tests/").partition("::")
        marks = {mark.name for mark in item.iter_markers()}
        if (file in QUICK or f"{file}::{test}" in QUICK) and "slow" not in marks:
            item.add_marker("quick")
