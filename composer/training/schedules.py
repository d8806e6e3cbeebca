"""Learning-rate schedules by their words in a recipe: the factor of the learning rate in each step.

Importing this imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from blocks.core.settings import Bounds, Count, NonNegative, Proportion
from composer.recipe.choices import Progress, Schedule, Wait

WARMUP = "optimizer steps until the learning rate is reached; below 1, a share of the budget"
WarmupSteps = Annotated[float, Bounds(minimum=0.0), WARMUP]
PositiveWarmup = Annotated[float, Bounds(above=0.0), WARMUP]
Final = Annotated[Proportion, "factor at the end of the budget"]
"""Settings that several schedules have."""
DecayFactor = Annotated[float, Bounds(above=0.0, below=1.0)]
"""A factor that makes smaller, above 0 and below 1."""


def count_warmups(at: Progress, warmup_steps: float) -> float:
    """Return the progress in units of the warm-up: 1 at its end.

    Of a warm-up in steps, the first has 1 / warmup_steps rather than 0, so that it is not lost.
    """
    if not warmup_steps:
        return math.inf
    return at.spent / warmup_steps if warmup_steps < 1 else (at.step + 1) / warmup_steps


def warm_up(at: Progress, warmup_steps: float) -> float:
    """Return the factor of a linear warm-up, which ends at 1."""
    return min(1.0, count_warmups(at, warmup_steps))


def spent_after_warmup(at: Progress, warmup_steps: float) -> float:
    """Return the share of the budget after the warm-up that is used up: 0 to 1.

    The warm-up took `spent / warmups` of the budget: of a budget in minutes, too, as much as its
    steps took on average.
    """
    warmups = max(1.0, count_warmups(at, warmup_steps))
    return at.spent * (1 - 1 / warmups) / (1 - at.spent / warmups) if warmups > 1 else 0.0


class InverseSqrt(Schedule):
    """Linear warm-up, then the inverse square root of the step (Vaswani et al. 2017, sec. 5.3)."""

    word = "inverse_sqrt"
    warmup_steps: PositiveWarmup = 400

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        warmups = count_warmups(progress, self.warmup_steps)
        return warm_up(progress, self.warmup_steps) / math.sqrt(max(1.0, warmups))


class Cosine(Schedule):
    """Linear warm-up, then half a cosine from 1 to `final` (Loshchilov & Hutter 2017)."""

    word = "cosine"
    warmup_steps: WarmupSteps = 0
    final: Final = 0.0

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        decay = 0.5 * (1 + math.cos(math.pi * spent_after_warmup(progress, self.warmup_steps)))
        return warm_up(progress, self.warmup_steps) * (self.final + (1 - self.final) * decay)


class Linear(Schedule):
    """A linear warm-up, then a straight line from 1 to `final` over the rest of the budget."""

    word = "linear"
    warmup_steps: WarmupSteps = 0
    final: Final = 0.0

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        fallen = (1 - self.final) * spent_after_warmup(progress, self.warmup_steps)
        return warm_up(progress, self.warmup_steps) * (1 - fallen)


class Constant(Schedule):
    """The learning rate as it is, after a linear warm-up."""

    word = "constant"
    warmup_steps: WarmupSteps = 0

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        return warm_up(progress, self.warmup_steps)


class Plateau(Schedule):
    """Made smaller each time that `patience` validations in a row bring no better loss.

    `{patience: 1, monitor: perplexity, threshold: 1, compare_with: previous}` is the schedule of
    Kim et al. 2016.

    Settings:
        factor: what the learning rate is multiplied with
        patience: validations without a better loss before that
        monitor: what has to fall, the loss or the perplexity of the validation
        threshold: it has to fall by more than this
        compare_with: the validation from which it has to fall: the best so far, or the previous one
    """

    word = "plateau"
    factor: DecayFactor = 0.5
    patience: Count = 2
    monitor: Literal["loss", "perplexity"] = "loss"
    threshold: NonNegative = 0.0
    compare_with: Literal["best", "previous"] = "best"
    warmup_steps: WarmupSteps = 0

    @property
    def wait(self) -> Wait:
        """Its patience."""
        return Wait("patience", validations=self.patience)

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        best, waited, cuts = math.inf, 0, 0
        for loss in progress.losses:
            # exp(710) is no float
            value = math.exp(min(loss, 700.0)) if self.monitor == "perplexity" else loss
            is_better = value < best - self.threshold
            best = value if is_better or self.compare_with == "previous" else best
            waited = 0 if is_better else waited + 1
            if waited == self.patience:
                cuts, waited = cuts + 1, 0
        return warm_up(progress, self.warmup_steps) * self.factor**cuts


class EpochDecay(Schedule):
    """Constant in the first epochs, then smaller with every epoch (Zaremba et al. 2014).

    Settings:
        after: epochs with the learning rate as it is
        factor: what the learning rate is multiplied with in each later epoch
    """

    word = "epoch_decay"
    after: Count = 4
    factor: DecayFactor = 0.5
    warmup_steps: WarmupSteps = 0

    @property
    def wait(self) -> Wait:
        """Its first epochs."""
        return Wait("after", epochs=self.after)

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        epochs = max(0, math.floor(progress.epochs) + 1 - self.after)
        return warm_up(progress, self.warmup_steps) * self.factor**epochs


class Staircase(Schedule):
    """Made smaller at given shares of the budget.

    Settings:
        shares: where, as shares of the budget; one that stands there twice counts twice
        factor: what the learning rate is multiplied with at each
    """

    word = "staircase"
    shares: Sequence[Proportion] = (0.5, 0.75)
    factor: DecayFactor = 0.5
    warmup_steps: WarmupSteps = 0

    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""
        steps = sum(progress.spent >= share for share in self.shares)
        return warm_up(progress, self.warmup_steps) * self.factor**steps


SCHEDULES: dict[str, type[Schedule]] = {
    kind.word: kind
    for kind in (InverseSqrt, Cosine, Linear, Constant, Plateau, EpochDecay, Staircase)
}
"""Every schedule by its word in a recipe."""
