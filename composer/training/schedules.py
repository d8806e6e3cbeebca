"""The schedules a recipe can name: pure functions from the progress of a training to a factor of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from blocks.core.contract import Bounds, Count

Steps = Annotated[int, Bounds(minimum=0)]
"""A number of optimizer steps, 0 or more."""
Share = Annotated[float, Bounds(minimum=0.0, maximum=1.0)]
"""A share, 0 to 1."""
Cut = Annotated[float, Bounds(above=0.0, below=1.0)]
"""A factor that makes smaller, above 0 and below 1."""


class Progress(NamedTuple):
    """How far a training has come, before its next optimizer step.

    `spent` is the share of the budget used up, 0 to 1; `losses` are the validation losses so far, in order.
    """

    step: int
    spent: float
    losses: tuple[float, ...] = ()


def warm_up(step: int, warmup_steps: int) -> float:
    """Rises linearly to 1 over the first steps; the first step is not lost: it has 1 / warmup_steps."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def inverse_sqrt(at: Progress, *, warmup_steps: Count = 400) -> float:
    """Linear warm-up to 1, then the inverse square root of the step (Vaswani et al. 2017, section 5.3).

    Settings:
        warmup_steps: optimizer steps until the learning rate is reached
    """
    step = at.step + 1
    return min(step / warmup_steps, math.sqrt(warmup_steps / step))


def cosine(at: Progress, *, warmup_steps: Steps = 0, final: Share = 0.0) -> float:
    """Half a cosine from 1 to `final` over the budget (Loshchilov & Hutter 2017), after a linear warm-up.

    Settings:
        warmup_steps: optimizer steps until the learning rate is reached
        final: factor at the end of the budget
    """
    return warm_up(at.step, warmup_steps) * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * at.spent)))


def linear(at: Progress, *, warmup_steps: Steps = 0, final: Share = 0.0) -> float:
    """A straight line from 1 to `final` over the budget, after a linear warm-up.

    Settings:
        warmup_steps: optimizer steps until the learning rate is reached
        final: factor at the end of the budget
    """
    return warm_up(at.step, warmup_steps) * (1 - (1 - final) * at.spent)


def constant(at: Progress, *, warmup_steps: Steps = 0) -> float:
    """The learning rate as it is, after a linear warm-up.

    Settings:
        warmup_steps: optimizer steps until the learning rate is reached
    """
    return warm_up(at.step, warmup_steps)


def plateau(at: Progress, *, factor: Cut = 0.5, patience: Count = 2, warmup_steps: Steps = 0) -> float:
    """Made smaller each time that `patience` validations in a row bring no better loss.

    Settings:
        factor: what the learning rate is multiplied with
        patience: validations without a better loss before that
        warmup_steps: optimizer steps until the learning rate is reached
    """
    best, waited, cuts = math.inf, 0, 0
    for loss in at.losses:
        best, waited = (loss, 0) if loss < best else (best, waited + 1)
        if waited == patience:
            cuts, waited = cuts + 1, 0
    return warm_up(at.step, warmup_steps) * factor**cuts


def staircase(
    at: Progress, *, shares: Sequence[Share] = (0.5, 0.75), factor: Cut = 0.5, warmup_steps: Steps = 0
) -> float:
    """Made smaller at given shares of the budget.

    Settings:
        shares: where, as shares of the budget; one that stands there twice counts twice
        factor: what the learning rate is multiplied with at each
        warmup_steps: optimizer steps until the learning rate is reached
    """
    return warm_up(at.step, warmup_steps) * factor ** sum(at.spent >= share for share in shares)


SCHEDULES: dict[str, Callable[..., float]] = {
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "plateau": plateau,
    "staircase": staircase,
}
