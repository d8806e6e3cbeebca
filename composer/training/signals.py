"""SIGINT and SIGTERM: noted when they come, acted upon between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

NOTED = (signal.SIGINT, signal.SIGTERM)
EARLY: list[int] = []
"""What came before a training listened: a module that is being imported may swallow what a handler raises."""


class Stopped(Exception):
    """A training was asked to end, and has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Remembers the first signal; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received = 0
        self.before: dict[int, Any] = {}

    def listen(self) -> None:
        """Takes the signals over; only a main thread can."""
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in NOTED}
            self.received = self.received or (EARLY.pop() if EARLY else 0)

    def restore(self) -> None:
        """Gives the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)
