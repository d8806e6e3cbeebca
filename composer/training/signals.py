"""Handling of SIGINT and SIGTERM during training: note the signal, act between two steps.

Apart from `distributed`, which imports torch, because the command line listens before it imports anything heavy.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM)
EARLY_SIGNALS: list[int] = []
"""Signals received before a training listened: a module that is being imported may swallow what a handler raises."""


class TrainingInterrupted(Exception):
    """Raised when a training was asked to end and has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class SignalHandler:
    """Handler that remembers the first signal; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received = 0
        self.before = {number: signal.getsignal(number) for number in HANDLED}

    def listen(self) -> None:
        """Install the handler, over whatever has been installed since this was made; only a main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                signal.signal(number, self._note)
            self.received = self.received or (EARLY_SIGNALS.pop() if EARLY_SIGNALS else 0)

    def restore(self) -> None:
        """Reinstall the handlers that were there when this was made."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = number
        else:
            raise SystemExit(128 + number)
