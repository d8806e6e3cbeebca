"""Loggers: metrics.jsonl and the terminal, and both together with Weights & Biases."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from composer import formatting
from composer.atomic_io import atomic_write
from composer.inference.run import Sample
from composer.metrics.table import format_scores, metric_name, text_metrics
from composer.run_dir import read_metrics
from composer.training.wandb_logger import WandbLogger

SHOWN_SAMPLES = 3
"""Translations that are shown at a validation."""


@dataclass
class MetricsLogger:
    """Logger that writes the same rows to metrics.jsonl, W&B and the terminal."""

    metrics: JsonLinesWriter
    wandb: WandbLogger
    display: ProgressDisplay

    def row(self, row: Mapping[str, Any], spent: float) -> None:
        """Log a row of training metrics."""
        self.write(row)
        self.display.row(row, spent)

    def validated(self, row: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        """Log a row of validation scores, and translations beside their references."""
        self.write(row)
        self.display.validated(row, samples[:SHOWN_SAMPLES])
        self.wandb.samples(int(row["step"]), samples)

    def write(self, row: Mapping[str, Any]) -> None:
        self.metrics.write(row)
        self.wandb.write(row)

    def close(self, status: int) -> None:
        """Close all of them; `status` is 0 if all went well."""
        self.display.close()
        self.metrics.close()
        self.wandb.finish(status)


class JsonLinesWriter:
    """Writer that appends rows to metrics.jsonl.

    A run that resumes from step `after` first drops later rows. It also drops rows of this step
    without an `epoch`: they are of the end of a training, which will be measured again, unless that
    was the end of a budget that `is_extended` now.
    """

    def __init__(self, path: Path, after: int | None = None, is_extended: bool = False) -> None:
        if after is not None and path.exists():
            text = ""
            for row in read_metrics(path):
                is_of_end = row["step"] == after and "epoch" not in row and not is_extended
                if row["step"] <= after and not is_of_end:
                    text += f"{formatting.to_json(row, None)}\n"
            atomic_write(path, text.encode())
        # without a buffer: what a full disk did not take must not come back when the file is closed
        self.file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, which has a `step`. Raises OSError if the disk is full."""
        left = f"{formatting.to_json(row, None)}\n".encode()
        while left:
            left = left[self.file.write(left) :]

    def close(self) -> None:
        self.file.close()


PLAIN_SECONDS = 15.0
"""Seconds between two plain lines."""
LIVE_SECONDS = 0.25
SAMPLE_SECONDS = 60.0
"""Seconds between two validations whose translations are shown."""
MAX_SAMPLE_LENGTH = 160
"""Characters of a sentence that are shown."""


class ProgressDisplay:
    """Progress on a terminal, drawn when a row comes, never by a thread; else plain lines."""

    def __init__(self, quiet: bool = False) -> None:
        # a training does not end because nobody watches it any more
        self.console = formatting.make_console(
            soft_wrap=True, quiet=quiet, file=formatting.UnfailingStream(sys.stdout)
        )
        self.bar: Progress | None = None
        self.scores = ""
        self.shown = 0.0
        self.sampled = -math.inf
        self.loss = math.nan
        self.began = (time.monotonic(), 0.0)

    def say(self, text: str) -> None:
        """Print one line, above the bar."""
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def begin(self, spent: float) -> None:
        """Measure the pace from here on; `spent` is the share of the budget spent before."""
        self.began = (time.monotonic(), spent)
        self.shown = 0.0

    def row(self, row: Mapping[str, float], spent: float) -> None:
        """Show a row of training metrics, and the share of the budget that is spent."""
        now = time.monotonic()
        if now - self.shown < (LIVE_SECONDS if self.console.is_terminal else PLAIN_SECONDS):
            return
        self.shown = now
        began, spent_then = self.began
        left = "? left"
        if spent > spent_then and now > began:
            seconds = (now - began) / (spent - spent_then) * (1.0 - spent)
            left = f"{formatting.format_duration(seconds)} left"
        level = f"level {row['train/level']:.0f}  " if "train/level" in row else ""
        text = (
            f"step {row['step']:,}  epoch {row['epoch']:.2f}  {level}loss {row['train/loss']:.3f}"
        )
        pace = f"{row['train/tokens_per_second']:,.0f} tokens/s"
        # the least important comes last: a narrow terminal cuts it off
        if self.console.is_terminal:
            scores = f"  val {self.scores}" if self.scores else ""
            self.draw(f"{left}  {text}{scores}  {pace}", spent)
        else:
            self.say(f"{spent:4.0%}  {text}  {pace}  {left}")

    def validating(self, step: int, spent: float) -> None:
        """Show that a validation has begun, on a terminal."""
        if self.console.is_terminal:
            self.draw(f"step {step:,}  validating ...", spent)

    def validated(self, row: Mapping[str, float], samples: Sequence[Sample]) -> None:
        """Show the scores of a validation, and now and then a few translations."""
        # the one that suits the data
        best = next((key for key in row if metric_name(key) in text_metrics()), "")
        self.scores = format_scores({key: row[key] for key in ("val/loss", best) if key in row})
        before, self.loss = self.loss, row.get("val/loss", math.nan)
        change = f"  (loss {self.loss - before:+.3f})" if math.isfinite(self.loss - before) else ""
        self.say(f"validation at step {row['step']:,}: {format_scores(row)}{change}")
        now = time.monotonic()
        if now - self.sampled >= SAMPLE_SECONDS:
            self.sampled = now
            self.show(samples)

    def show(self, samples: Sequence[Sample]) -> None:
        """Show a few translations, each below its source."""
        for sample in samples:
            source, reference, translation = map(_cut, sample)
            self.say(f"    {source}\n      -> {translation}\n       = {reference}")

    def draw(self, text: str, spent: float) -> None:
        if self.bar is None:
            percentage = TextColumn("{task.percentage:>3.0f}%", table_column=Column(min_width=4))
            text_column = TextColumn("{task.description}", table_column=Column(no_wrap=True))
            columns = (BarColumn(12), percentage, text_column)
            self.bar = Progress(*columns, console=self.console, auto_refresh=False, transient=True)
            self.bar.add_task("", total=1.0)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=spent, description=escape(text))
        self.bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SAMPLE_LENGTH else f"{text[:MAX_SAMPLE_LENGTH]} ..."
