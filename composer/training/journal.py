"""Who is told what a training has come to: metrics.jsonl, W&B and the person who watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer.training.metrics_log import MetricsLog
from composer.training.progress import Display
from composer.training.wandb_log import Sample, WandbLog

SHOWN = 3
"""Translations that are shown at a validation."""


@dataclass
class Journal:
    """Tells all of them the same, in the same order."""

    metrics: MetricsLog
    wandb: WandbLog
    display: Display

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
