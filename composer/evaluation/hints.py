"""Hints from the learning curve of a finished training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from composer.recipe.canonical_form import BUDGET_KEYS
from composer.recipe.training_sections import Training

MIN_VALIDATIONS = 3
"""Validations that a learning curve needs before anything is concluded from it."""
MIN_EPOCHS = 3
"""Epochs below which the curve says little about the model."""
MIN_PAIRS = 100
"""Pairs below which scores differ by chance more than by what was changed."""
STILL_FALLING = 0.03
"""Relative fall of val/loss in the last quarter of a training that was stopped too early."""
CONVERGED_LOSS = 0.1
"""Loss, in nats, below which ups and downs mean nothing."""
OVERFITTING = 1.01
"""Final loss as a multiple of the best above which it has risen, rather than fluctuated."""
MOSTLY_UNKNOWN = 0.5
"""Share of unknown tokens above which the loss of a validation says nothing about the model."""


@dataclass(frozen=True)
class Point:
    """A value of a metric after a step."""

    step: int
    value: float


def training_hints(
    rows: Sequence[Mapping[str, object]],
    pairs: Mapping[str, int],
    epochs: float,
    training: Training,
    unknown: float = 0.0,
) -> list[str]:
    """Return in words what the learning curve suggests to try next; [] if too little is known.

    rows: Those of metrics.jsonl.
    pairs: The size of each split.
    epochs: Number of times that the training saw its pairs.
    training: The recipe's section, which has the budget.
    unknown: The share of the validation's tokens that the tokenizer does not know.
    """
    keys = [f"`training.{key}`" for key in BUDGET_KEYS if training.limits[key] is not None]
    longer = f"`--resume` with a larger {' and '.join(keys)} goes on"
    if training.early_stopping:
        longer += ", unless `training.early_stopping` has ended it"
    hints = [_curve_hint(rows, epochs, unknown, longer), _size_hint(pairs)]
    return [hint for hint in hints if hint]


def _size_hint(pairs: Mapping[str, int]) -> str:
    """Return a hint about small splits; "" if they are large enough."""
    sizes = []
    for split in ("val", "test"):
        size = pairs.get(split, 0)
        if 0 < size < MIN_PAIRS:
            sizes.append(f"{split} has {size} pair{'s' if size > 1 else ''}")
    return f"{' and '.join(sizes)}: so few that scores vary by chance" if sizes else ""


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    """Return the finite values of a metric."""
    points = []
    for row in rows:
        value = row.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            points.append(Point(int(row["step"]), value))
    return points


def _curve_hint(
    rows: Sequence[Mapping[str, object]], epochs: float, unknown: float, longer: str
) -> str:
    """Return a hint from the validation losses; "" if there are few, or they are very small.

    longer: How the training goes on, in words.
    """
    if unknown > MOSTLY_UNKNOWN:
        message = (
            f"{unknown:.0%} of the validation's tokens are unknown to the tokenizer, so that"
            " val/loss says little"
        )
        return f"{message}: validate with texts in the alphabet and language of the training's"
    if 0 < epochs < MIN_EPOCHS:
        return f"trained for only {epochs:.2f} epochs: {longer}"
    losses = _curve(rows, "val/loss")
    if len(losses) < MIN_VALIDATIONS:
        return ""
    best, last = min(losses, key=lambda point: point.value), losses[-1]
    if best.value < CONVERGED_LOSS:
        return ""
    if last.value > OVERFITTING * best.value:
        return _risen_hint(losses, best, _curve(rows, "train/loss"), longer)
    # the best loss before the last quarter, or the first one if the training validated only later
    quarter = max(0.75 * last.step, losses[0].step)
    before = min(point.value for point in losses if point.step <= quarter)
    fall = 1 - last.value / before
    if fall > STILL_FALLING:
        curve = f"val/loss was still falling, by {fall:.0%} in the last quarter"
        return f"{curve}. {longer}"
    curve = f"val/loss had converged, it changed by {abs(fall):.1%} in the last quarter"
    return f"{curve}: more data or another model will help more than more time"


def _risen_hint(losses: Sequence[Point], best: Point, trained: Sequence[Point], longer: str) -> str:
    """Return a hint for a val/loss that has risen after its best: overfitting, or only chance."""
    curve = f"val/loss was lowest after step {best.step:,} of {losses[-1].step:,}"
    if losses[-2].step <= best.step:
        return f"{curve}, and one validation after it says little: {longer}"
    previous = max((point.step for point in losses if point.step < best.step), default=0)
    until = [point.value for point in trained if previous < point.step <= best.step]
    since = [point.value for point in trained if point.step > best.step]
    if until and since and mean(since) >= mean(until):
        return f"{curve}, and train/loss has not fallen since, so this is no overfitting: {longer}"
    fell = ", while train/loss fell" if since else ""
    return (
        f"{curve} and rose from then on{fell}: the model overfits. More data helps most, then a"
        " larger `model.dropout` or a smaller model"
    )
