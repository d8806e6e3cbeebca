"""Processes that end with the one that started them, even if that was killed. On Linux only."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from functools import partial

PR_SET_PDEATHSIG = 1


def ends_with_parent() -> Callable[[], object] | None:
    """Return a `preexec_fn` that sends a child SIGTERM when its parent dies, even by SIGKILL.

    None elsewhere: the lock on its run folder shows a training that outlives its sweep.
    """
    if sys.platform != "linux":
        return None
    return partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_parent() -> None:
    """Have the system send this process SIGTERM when its parent dies."""
    if prepare := ends_with_parent():
        prepare()
