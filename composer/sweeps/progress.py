"""Progress on stderr while many points are read and planned."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
NOTE_SECONDS = 5.0
"""Seconds between two lines, and before the first."""


def with_progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items, and print from time to time the number of those done."""
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= NOTE_SECONDS:
            # late: it takes torch, and most sweeps are short
            from composer.inference.lines import write_note

            write_note(f"{what}: {done:,} of {len(items):,}")
            last = time.monotonic()
        yield item
