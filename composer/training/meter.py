"""Steps, time and tokens since the last row of metrics."""

from __future__ import annotations

import time

ROW_STEPS = 10
"""Steps between two rows of metrics; only then does the host wait for the device."""


class Meter:
    """What a row of metrics covers: the steps after `since`, their time and their target tokens."""

    def __init__(self, since: int = 0) -> None:
        self.since, self.started, self.tokens = since, time.monotonic(), 0.0

    def tokens_per_second(self) -> float:
        """Return the speed since the last row."""
        return self.tokens / max(time.monotonic() - self.started, 1e-9)
