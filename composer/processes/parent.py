"""Processes that end with the one that started them, even if that was killed. On Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def ends_with_parent() -> Callable[[], object] | None:
    """Return a `preexec_fn` that sends a child SIGTERM when its parent dies, even by SIGKILL.

    None elsewhere: the lock on its run folder shows a training that outlives its sweep.
    """
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died already
            os._exit(128 + signal.SIGTERM)

    return prepare


def end_with_parent() -> None:
    """Have the system send this process SIGTERM when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
