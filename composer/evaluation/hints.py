"""Training hints: what the learning curve of a finished training suggests to try next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MIN_VALIDATIONS = 3
"""With fewer validations nothing is concluded."""
STILL_FALLING = 0.03
"""Relative fall of val/loss in the last quarter of a training that was stopped too early."""
CONVERGED_LOSS = 0.1
"""Below this loss, in nats, ups and downs mean nothing."""
LAST_QUARTER = 0.75
"""Fraction of the steps at which the last quarter begins."""
OVERFITTING = 1.01
"""Final loss as a multiple of the best above which it has risen, rather than fluctuated."""
MIN_EPOCHS = 3
"""With fewer epochs the curve says little about the model."""
MIN_PAIRS = 100
"""With fewer pairs, scores differ by chance more than by what was changed."""


def training_hints(rows: Sequence[Mapping[str, Any]], pairs: Mapping[str, int], epochs: float) -> list[str]:
    """Say what the learning curve of a finished training suggests to try next; [] if too little is known.

    rows: the validations; pairs: the size of each split; epochs: how often the training saw its pairs.
    """
    hints = [hint] if (hint := _curve_hint(rows, epochs)) else []
    small = {split: pairs[split] for split in ("val", "test") if 0 < pairs.get(split, 0) < MIN_PAIRS}
    if small:
        sizes = " and ".join(f"{split} has {size} pair{'s' if size > 1 else ''}" for split, size in small.items())
        hints.append(f"{sizes}: so few that scores vary by chance")
    return hints


def _curve_hint(rows: Sequence[Mapping[str, Any]], epochs: float) -> str:
    if 0 < epochs < MIN_EPOCHS:
        return f"trained for {epochs:.2f} epochs, which is little. Resume with a larger `training.max_minutes`"
    losses = [(row["step"], row["val/loss"]) for row in rows if _is_finite(row.get("val/loss"))]
    if len(losses) < MIN_VALIDATIONS:
        return ""
    (best_step, best), (end, last) = min(losses, key=lambda row: row[1]), losses[-1]
    if best < CONVERGED_LOSS:
        return ""
    if last > OVERFITTING * best:
        return (
            f"val/loss was lowest after step {best_step:,} of {end:,} and rose from then on: the model overfits. More "
            "data helps most, then a larger `model.dropout` or a smaller model"
        )
    # the best loss up to the last quarter, or the first one if the training validated only later
    before = min(loss for step, loss in losses if step <= max(LAST_QUARTER * end, losses[0][0]))
    fall = 1 - last / before
    if fall > STILL_FALLING:
        return (
            f"val/loss was still falling, by {fall:.0%} in the last quarter. Resume with a larger "
            "`training.max_minutes` (or steps, or epochs)"
        )
    return (
        f"val/loss had converged, it changed by {abs(fall):.1%} in the last quarter: more data or another model will "
        "help more than more time"
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
