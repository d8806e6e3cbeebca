"""metrics.jsonl: one object a row, each with its `step`, on the disk as soon as it is known.

Of a training whose budget is in minutes a row also has `pace`: the share of the budget that was spent after each step
from the last row's to its own. A machine is never as fast twice, and what depends on that share, such as the learning
rate, can so be repeated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer.whole import write_whole

PACE = "pace"


class MetricsLog:
    """Appends rows to metrics.jsonl; a run that goes on from step `after` forgets the rows that came later.

    And those without an `epoch`: they are of its end, which is measured again.
    """

    def __init__(self, path: Path, after: int | None = None) -> None:
        if after is not None and path.exists():
            kept = [row for row in read_rows(path) if row["step"] <= after and "epoch" in row]
            write_whole(path, "".join(map(line_of, kept)).encode())
        # without a buffer: what a full disk did not take must not come back when the file is closed
        self.file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds one row, which has a `step`. Raises OSError where the disk is full."""
        left = line_of(row).encode()
        while left:
            left = left[self.file.write(left) :]

    def close(self) -> None:
        self.file.close()


def pace_of(path: Path) -> dict[int, float]:
    """The share of the budget that was spent after each step, where a metrics.jsonl has it; it may not be there."""
    found: dict[int, float] = {}
    for row in read_rows(path) if path.is_file() else ():
        pace = row.get(PACE)
        if isinstance(pace, list) and all(isinstance(each, float) and 0.0 <= each <= 1.0 for each in pace):
            found.update(enumerate(pace, start=row["step"] + 1 - len(pace)))
    return found


def line_of(row: Mapping[str, Any]) -> str:
    """A row as a line. NaN and infinities are not JSON: they become null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
    }
    return json.dumps(plain, ensure_ascii=False) + "\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a line that was cut off by a crash, or is damaged, is left out."""
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows
