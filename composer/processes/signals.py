"""Signals before and after a training handles them: the process ends, by the first one alone."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM."""
EARLY_SIGNALS: list[int] = []
"""Signals received before a training handles them."""


def interrupt(number: int, _: object) -> NoReturn:
    """Handle SIGINT once: a terminal sends it to all processes, and so does their launcher."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def terminate(number: int, _: object) -> NoReturn:
    """Handle SIGTERM by an exit; a second one must not interrupt the cleanup after the first."""
    EARLY_SIGNALS.append(number)
    signal.signal(number, signal.SIG_IGN)
    sys.exit(TERMINATED)
