"""SIGINT and SIGTERM where no training handles them."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

SAME_SIGNAL_SECONDS = 1.0
"""Seconds in which a signal counts once: a terminal sends it to all processes, and so does a
launcher.
"""
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


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect signals, so that none interrupts a library in the middle of a file.

    The caller looks at the list, and calls `end_by`. One that comes twice within a second counts
    once. In another thread than the main one nothing is collected.
    """
    received: list[int] = []
    last = -math.inf

    def collect(number: int, _: object) -> None:
        nonlocal last
        if time.monotonic() - last > SAME_SIGNAL_SECONDS:
            received.append(number)
            last = time.monotonic()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, collect)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_by(number: int) -> NoReturn:
    """Raise what a signal means: KeyboardInterrupt, or SystemExit."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(TERMINATED)
