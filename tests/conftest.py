"""Settings for all tests, made before anything imports torch."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

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
