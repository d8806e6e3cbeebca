"""What a person sees of a training: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from composer.formatting import make_console
from composer.inference.run import Sample
from composer.recipe.metrics import METRICS

PLAIN_SECONDS = 15.0
"""Seconds between two plain lines."""
LIVE_SECONDS = 0.25
SAMPLE_SECONDS = 60.0
"""Seconds between two validations whose translations are shown."""
MAX_SAMPLE_LENGTH = 160
"""Characters of a sentence that are shown."""


class UnfailingStream:
    """Text stream that ignores write errors: a closed pipe, a full disk."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self.file.write(text)
        self.discard()
        return 0

    def flush(self) -> None:
        try:
            self.file.flush()
        except OSError:
            self.discard()

    def discard(self) -> None:
        """Redirect what is still buffered to the null device, or the interpreter fails over it at exit."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


class ProgressDisplay:
    """Progress on a terminal, drawn when a row comes and never by a thread; plain lines elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        # a training does not end because nobody watches it any more
        self.console = make_console(soft_wrap=True, quiet=quiet, file=UnfailingStream(sys.stdout))
        self.bar: Progress | None = None
        self.scores = ""
        self.shown = 0.0
        self.sampled = -math.inf
        self.loss = math.nan
        self.began = (time.monotonic(), 0.0)

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self.console.is_terminal

    def say(self, text: str) -> None:
        """Print one line, above the bar."""
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def begin(self, spent: float) -> None:
        """Measure the pace from here on; `spent` is the share of the budget that was spent before."""
        self.began = (time.monotonic(), spent)
        self.shown = 0.0

    def row(self, row: Mapping[str, float], spent: float) -> None:
        """Show a row of training metrics, and the share of the budget that is spent."""
        now = time.monotonic()
        if now - self.shown < (LIVE_SECONDS if self.is_live else PLAIN_SECONDS):
            return
        self.shown = now
        began, spent_then = self.began
        left = "? left"
        if spent > spent_then and now > began:
            left = f"{format_duration((now - began) / (spent - spent_then) * (1.0 - spent))} left"
        level = f"level {row['train/level']:.0f}  " if "train/level" in row else ""
        text = f"step {row['step']:,}  epoch {row['epoch']:.2f}  {level}loss {row['train/loss']:.3f}"
        pace = f"{row['train/tokens_per_second']:,.0f} tokens/s"
        if self.is_live:  # the least important comes last: a narrow terminal cuts it off
            scores = f"  val {self.scores}" if self.scores else ""
            self.draw(f"{left}  {text}{scores}  {pace}", spent)
        else:
            self.say(f"{spent:4.0%}  {text}  {pace}  {left}")

    def validating(self, step: int, spent: float) -> None:
        """Show that a validation has begun, on a terminal."""
        if self.is_live:
            self.draw(f"step {step:,}  validating ...", spent)

    def validated(self, row: Mapping[str, float], samples: Sequence[Sample]) -> None:
        """Show the scores of a validation, and a few translations if the last ones were shown a while ago."""
        self.scores = format_scores({key: row[key] for key in ("val/loss", "val/bleu") if key in row})
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
            texts = [text if len(text) <= MAX_SAMPLE_LENGTH else f"{text[:MAX_SAMPLE_LENGTH]} ..." for text in sample]
            source, reference, translation = texts
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


def format_scores(row: Mapping[str, float]) -> str:
    """Write the scores of a row on one line, each by the label and in the format of its metric."""
    scores = {key.partition("/")[2]: value for key, value in row.items() if key.startswith(("val/", "test/"))}
    measured = [(metric, scores[name]) for name, metric in METRICS.items() if name in scores]
    return "  ".join(f"{metric.label} {metric.format(score)}" for metric, score in measured)


def format_duration(seconds: float) -> str:
    """Write a duration as h:mm:ss or m:ss."""
    total = int(seconds + 0.5)
    hours, minutes = divmod(total // 60, 60)
    return f"{hours}:{minutes:02}:{total % 60:02}" if hours else f"{minutes}:{total % 60:02}"
