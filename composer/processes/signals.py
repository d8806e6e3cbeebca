"""SIGTERM before a training handles signals: the process ends, and remembers the signal."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM."""
EARLY_SIGNALS: list[int] = []
"""Signals received before a training handles them."""


def terminate(number: int, _: object) -> NoReturn:
    """Handle SIGTERM by an exit; a second one must not interrupt the cleanup after the first."""
    EARLY_SIGNALS.append(number)
    signal.signal(number, signal.SIG_IGN)
    sys.exit(TERMINATED)
