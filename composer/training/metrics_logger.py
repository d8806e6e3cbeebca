"""Who is told what a training has come to: metrics.jsonl, W&B and the person who watches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write
from composer.training.progress import ProgressDisplay
from composer.training.wandb_logger import Sample, WandbLogger

SHOWN = 3
"""Translations that are shown at a validation."""


@dataclass
class MetricsLogger:
    """Tells all of them the same, in the same order."""

    metrics: JsonLinesWriter
    wandb: WandbLogger
    display: ProgressDisplay

    def begin(self, spent: float) -> None:
        """The first step is about to be made."""
        self.display.begin(spent)

    def row(self, row: Mapping[str, Any], spent: float) -> None:
        """A row of training metrics."""
        self.write(row)
        self.display.row(row, spent)

    def validating(self, step: int, spent: float) -> None:
        """A validation begins, which takes a while."""
        self.display.validating(step, spent)

    def validated(self, row: Mapping[str, float], samples: Sequence[Sample]) -> None:
        """A row of validation scores, and translations beside their references."""
        self.write(row)
        self.display.validated(row, samples[:SHOWN])
        self.wandb.samples(int(row["step"]), samples)

    def note(self, text: str) -> None:
        """A line for the person who watches."""
        self.display.say(text)

    def write(self, row: Mapping[str, Any]) -> None:
        self.metrics.write(row)
        self.wandb.write({name: value for name, value in row.items() if not isinstance(value, list)})

    def close(self, status: int) -> None:
        """Ends everything; `status` is 0 where all went well."""
        self.display.close()
        self.metrics.close()
        self.wandb.finish(status)


PACE = "pace"


class JsonLinesWriter:
    """Appends rows to metrics.jsonl; a run that goes on from step `after` forgets the rows that came later.

    And those without an `epoch`: they are of its end, which is measured again.
    """

    def __init__(self, path: Path, after: int | None = None) -> None:
        if after is not None and path.exists():
            kept = [row for row in read_rows(path) if row["step"] <= after and "epoch" in row]
            atomic_write(path, "".join(map(line_of, kept)).encode())
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
