"""What the course of a finished training says of it, and what to try next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

VALIDATIONS = 3
"""From fewer validations nothing is concluded."""
FALLEN = 0.03
"""What val/loss falls by in the last quarter of a training that was stopped too early, or more."""
LEARNED = 0.1
"""Below this loss, in nats, ups and downs mean nothing."""
LAST = 0.75
"""Where the last quarter of a training begins."""
RISEN = 1.01
"""Times the best loss above which it has risen, and not swung."""
SEEN = 3
"""Who has seen its text less often has not learned what is in it."""
MEASURABLE = 100
"""With fewer pairs, scores differ by chance more than by what was changed."""


def training_hints(rows: Sequence[Mapping[str, Any]], pairs: Mapping[str, int], epochs: float) -> list[str]:
    """What the course of a finished training says of it, and what to try next; nothing where too little is known.

    rows: its validations; pairs: how many each split has; epochs: how often it saw its pairs.
    """
    small = {split: pairs[split] for split in ("val", "test") if 0 < pairs.get(split, 0) < MEASURABLE}
    told = " and ".join(f"{split} has {size} pair{'s' if size > 1 else ''}" for split, size in small.items())
    few = f"{told}: so few that scores rise and fall by chance"
    return [*filter(None, [_course_told(rows, epochs)]), *([few] if small else [])]


def _course_told(rows: Sequence[Mapping[str, Any]], epochs: float) -> str:
    if 0 < epochs < SEEN:
        return f"it saw every pair {epochs:.2f} times (epochs), which is little: more `training.max_minutes` will help"
    losses = [(row["step"], row["val/loss"]) for row in rows if _is_number(row.get("val/loss"))]
    if len(losses) < VALIDATIONS:
        return ""
    (at, best), (end, last) = min(losses, key=lambda each: each[1]), losses[-1]
    before = min(loss for step, loss in losses if step <= max(LAST * end, losses[0][0]))
    if best < LEARNED:
        return ""
    if last > RISEN * best:
        return (
            f"val/loss was lowest after step {at:,} of {end:,} and rose from then on: it began to learn its training "
            "text by heart. More text helps most, then a larger `model.dropout` or a smaller model"
        )
    fell = 1 - last / before
    if fell > FALLEN:
        return (
            f"val/loss was still falling, by {fell:.0%} in the last quarter: more `training.max_minutes` (or steps, or "
            "epochs) will help"
        )
    return (
        f"val/loss had come to rest, {abs(fell):.1%} in the last quarter: more text or another model will help "
        "more than more time"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
