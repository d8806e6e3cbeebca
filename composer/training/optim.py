"""Optimizers and learning-rate schedules that a recipe can name; the training budget, and early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import optim

from blocks.core.contract import Bounds, Count, NonNegative, Positive, Proportion, Rate
from composer.model.trained_parameters import TrainedParameters
from composer.recipe.canonical_form import BUDGET_KEYS
from composer.recipe.metrics import as_maximised


@dataclass(frozen=True)
class Budget:
    """Limits of a training; the first reached ends it. At least one of the three is given.

    until_step: The step after which another budget took its place, or `--finish` ended the training.
    validated: Whether there was a validation after that step.
    """

    max_steps: int | None = None
    max_epochs: int | None = None
    max_minutes: float | None = None
    until_step: int | None = None
    validated: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Budget:
        """Return the budget in `training` of a recipe, or in an entry of run.json's `budgets`."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: settings[name] for name in names if settings.get(name) is not None})

    def as_dict(self) -> dict[str, float | bool]:
        """Return what run.json says of it."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return values if self.until_step is not None else {key: values[key] for key in BUDGET_KEYS if key in values}

    def spent(self, steps: int, epochs: float, minutes: float | None) -> float:
        """Return the share of the budget that is used up, 0 to 1. `minutes` is None where they are not known now."""
        amounts = ((steps, self.max_steps), (epochs, self.max_epochs), (minutes, self.max_minutes))
        shares = [used / limit for used, limit in amounts if limit is not None and used is not None]
        return min(1.0, max(shares, default=0.0))


def replace_budget(budgets: Sequence[Budget], new: Budget, step: int, validated: bool) -> list[Budget]:
    """Return the budgets of a training, in order, in which a new one takes the place of the last after `step` steps."""
    past = [budget for budget in budgets if (budget.until_step or math.inf) <= step]
    began = past[-1].until_step if past else 0
    if len(past) < len(budgets) and began != step:
        past.append(replace(budgets[len(past)], until_step=step, validated=validated))
    return [*past, new]


class Clock:
    """Minutes of training over all resumptions: process time per thread on a CPU, wall time elsewhere.

    Process time makes a budget in minutes independent of other programs on the same CPU.
    """

    def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
        self.on_cpu, self.before = on_cpu, before
        self.threads = torch.get_num_threads()  # at the end, when this is read once more, there may be others
        self.start = self.now()

    def now(self) -> float:
        """Return the minutes since a moment that stays the same while the process runs."""
        return (time.process_time() / self.threads if self.on_cpu else time.monotonic()) / 60

    def minutes(self) -> float:
        """Return the minutes trained so far."""
        return self.before + self.now() - self.start


class Progress(NamedTuple):
    """Progress of a training before its next optimizer step, which a schedule depends on.

    `spent` is the share of the budget used up, 0 to 1; `losses` are the validation losses so far, in order; `epochs`
    those trained on, with the fraction of the current one.
    """

    step: int
    spent: float
    losses: tuple[float, ...] = ()
    epochs: float = 0.0


@dataclass(frozen=True)
class EarlyStopping:
    """Rule that ends a training: `goal` reached, or `patience` validations without `min_delta` of improvement."""

    metric: str
    patience: int | None
    min_delta: float
    goal: float | None

    def should_stop(self, history: Sequence[Mapping[str, float]]) -> bool:
        """Return True if the scores of all validations so far, in order, end the training."""
        if self.goal is not None:
            goal = as_maximised(self.metric, {self.metric: self.goal})
            if any(as_maximised(self.metric, scores) >= goal for scores in history):
                return True
        best, waited = -math.inf, 0
        for scores in history:
            if self.metric in scores:
                value = as_maximised(self.metric, scores)
                best, waited = (value, 0) if value > best + self.min_delta else (best, waited + 1)
        return self.patience is not None and waited >= self.patience


def has_stalled(losses: Sequence[float], patience: int) -> bool:
    """Return whether the last validation is worse than the best of those more than `patience` before it.

    The trigger of NT-ASGD (Merity et al. 2018, algorithm 1).
    """
    return len(losses) > patience + 1 and losses[-1] > min(losses[: -patience - 1])


WARMUP = "optimizer steps until the learning rate is reached; below 1, a share of the budget"
WarmupSteps = Annotated[float, Bounds(minimum=0.0), WARMUP]
PositiveWarmup = Annotated[float, Bounds(above=0.0), WARMUP]
Final = Annotated[Proportion, "factor at the end of the budget"]
LearningRate = Annotated[Positive, "the step size before the schedule's factor"]
WeightDecay = Annotated[NonNegative, "L2 penalty added to the gradient"]
Decay = Annotated[
    Literal["matrices", "all"], "what weight decay falls on: matrices and embeddings, or biases and gains, too"
]
Beta1 = Annotated[Rate, "decay of the mean of the gradients"]
Beta2 = Annotated[Rate, "decay of the mean of their squares"]
Epsilon = Annotated[Positive, "added to the denominator"]
Momentum = Annotated[Rate, "share of the last step that is kept"]
"""Settings that several schedules or optimizers have."""
DecayFactor = Annotated[float, Bounds(above=0.0, below=1.0)]
"""A factor that makes smaller, above 0 and below 1."""
Optimizer = optim.Optimizer


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
    """Return the used-up share of what the warm-up leaves of the budget: 0 at its end, and 1 with the training.

    The warm-up took `spent / warmups` of the budget: of a budget in minutes, too, as much as its steps took on average.
    """
    warmups = max(1.0, count_warmups(at, warmup_steps))
    return at.spent * (1 - 1 / warmups) / (1 - at.spent / warmups) if warmups > 1 else 0.0


def inverse_sqrt(at: Progress, *, warmup_steps: PositiveWarmup = 400) -> float:
    """Linear warm-up to 1, then the inverse square root of the step (Vaswani et al. 2017, section 5.3)."""
    return warm_up(at, warmup_steps) / math.sqrt(max(1.0, count_warmups(at, warmup_steps)))


def cosine(at: Progress, *, warmup_steps: WarmupSteps = 0, final: Final = 0.0) -> float:
    """A linear warm-up, then half a cosine from 1 to `final` over the rest of the budget (Loshchilov & Hutter 2017)."""
    decay = 0.5 * (1 + math.cos(math.pi * spent_after_warmup(at, warmup_steps)))
    return warm_up(at, warmup_steps) * (final + (1 - final) * decay)


def linear(at: Progress, *, warmup_steps: WarmupSteps = 0, final: Final = 0.0) -> float:
    """A linear warm-up, then a straight line from 1 to `final` over the rest of the budget."""
    return warm_up(at, warmup_steps) * (1 - (1 - final) * spent_after_warmup(at, warmup_steps))


def constant(at: Progress, *, warmup_steps: WarmupSteps = 0) -> float:
    """The learning rate as it is, after a linear warm-up."""
    return warm_up(at, warmup_steps)


def plateau(
    at: Progress,
    *,
    factor: DecayFactor = 0.5,
    patience: Count = 2,
    monitor: Literal["loss", "perplexity"] = "loss",
    threshold: NonNegative = 0.0,
    compare_with: Literal["best", "previous"] = "best",
    warmup_steps: WarmupSteps = 0,
) -> float:
    """Made smaller each time that `patience` validations in a row bring no better loss.

    `{patience: 1, monitor: perplexity, threshold: 1, compare_with: previous}` is the schedule of Kim et al. 2016.

    Settings:
        factor: what the learning rate is multiplied with
        patience: validations without a better loss before that
        monitor: what has to fall, the loss or the perplexity of the validation
        threshold: it has to fall by more than this
        compare_with: the validation from which it has to fall: the best so far, or the previous one
    """
    best, waited, cuts = math.inf, 0, 0
    for loss in at.losses:
        value = math.exp(min(loss, 700.0)) if monitor == "perplexity" else loss  # exp(710) is no float any more
        is_better = value < best - threshold
        best = value if is_better or compare_with == "previous" else best
        waited = 0 if is_better else waited + 1
        if waited == patience:
            cuts, waited = cuts + 1, 0
    return warm_up(at, warmup_steps) * factor**cuts


def epoch_decay(at: Progress, *, after: Count = 4, factor: DecayFactor = 0.5, warmup_steps: WarmupSteps = 0) -> float:
    """The learning rate as it is in the first epochs, then made smaller with every epoch (Zaremba et al. 2014).

    Settings:
        after: epochs with the learning rate as it is
        factor: what the learning rate is multiplied with in each later epoch
    """
    return warm_up(at, warmup_steps) * factor ** max(0, math.floor(at.epochs) + 1 - after)


def staircase(
    at: Progress,
    *,
    shares: Sequence[Proportion] = (0.5, 0.75),
    factor: DecayFactor = 0.5,
    warmup_steps: WarmupSteps = 0,
) -> float:
    """Made smaller at given shares of the budget.

    Settings:
        shares: where, as shares of the budget; one that stands there twice counts twice
        factor: what the learning rate is multiplied with at each
    """
    return warm_up(at, warmup_steps) * factor ** sum(at.spent >= share for share in shares)


SCHEDULES: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (inverse_sqrt, cosine, linear, constant, plateau, epoch_decay, staircase)
}
"""Every schedule by the name under which a recipe chooses it."""


def use_fused(trained: TrainedParameters) -> bool | None:
    """Return True on a CPU, where the fused step costs a third. Elsewhere None: torch chooses, and 16 bits can clip."""
    return trained.is_on_cpu() or None


def adam(
    trained: TrainedParameters,
    *,
    learning_rate: LearningRate = 1e-3,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.98,
    eps: Epsilon = 1e-9,
    weight_decay: WeightDecay = 0.0,
    decay: Decay = "matrices",
) -> Optimizer:
    """Adam (Kingma & Ba 2015), with the second beta and eps of Vaswani et al. 2017, section 5.3."""
    betas, fused = (beta1, beta2), use_fused(trained)
    return optim.Adam(trained.groups(weight_decay, decay), learning_rate, betas, eps, weight_decay, fused=fused)


def adamw(
    trained: TrainedParameters,
    *,
    learning_rate: LearningRate = 1e-3,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.98,
    eps: Epsilon = 1e-9,
    weight_decay: WeightDecay = 0.01,
    decay: Decay = "matrices",
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Settings:
        weight_decay: share of each weight taken away per unit of learning rate
    """
    betas, fused = (beta1, beta2), use_fused(trained)
    return optim.AdamW(trained.groups(weight_decay, decay), learning_rate, betas, eps, weight_decay, fused=fused)


def sgd(
    trained: TrainedParameters,
    *,
    learning_rate: LearningRate = 0.1,
    momentum: Momentum = 0.0,
    weight_decay: WeightDecay = 0.0,
    decay: Decay = "matrices",
) -> Optimizer:
    """Stochastic gradient descent."""
    return optim.SGD(
        trained.groups(weight_decay, decay), lr=learning_rate, momentum=momentum, weight_decay=weight_decay
    )


def rmsprop(
    trained: TrainedParameters,
    *,
    learning_rate: LearningRate = 1e-3,
    decay: Rate = 0.99,
    momentum: Momentum = 0.0,
    eps: Epsilon = 1e-8,
    centered: bool = False,
    weight_decay: WeightDecay = 0.0,
    decayed: Decay = "matrices",
) -> Optimizer:
    """RMSProp; with `centered` and momentum the form of Graves 2013, equations 38 to 45.

    Settings:
        decay: decay of the mean of the squared gradients
        centered: divide by the gradients' deviation in place of their size
    """
    return optim.RMSprop(
        trained.groups(weight_decay, decayed), learning_rate, decay, eps, weight_decay, momentum, centered
    )


def adadelta(
    trained: TrainedParameters,
    *,
    learning_rate: LearningRate = 1.0,
    decay: Rate = 0.95,
    eps: Epsilon = 1e-6,
    weight_decay: WeightDecay = 0.0,
    decayed: Decay = "matrices",
) -> Optimizer:
    """Adadelta (Zeiler 2012), with the constants of Bahdanau et al. 2015.

    Settings:
        learning_rate: factor of the step that the rule finds by itself
        decay: decay of the two running means
        eps: added under both roots
    """
    return optim.Adadelta(
        trained.groups(weight_decay, decayed), lr=learning_rate, rho=decay, eps=eps, weight_decay=weight_decay
    )


def adagrad(
    trained: TrainedParameters,
    *,
    learning_rate: LearningRate = 0.01,
    initial: NonNegative = 0.0,
    eps: Epsilon = 1e-10,
    weight_decay: WeightDecay = 0.0,
    decay: Decay = "matrices",
) -> Optimizer:
    """Adagrad (Duchi et al. 2011).

    Settings:
        initial: what the sum of squared gradients starts from
    """
    return optim.Adagrad(
        trained.groups(weight_decay, decay),
        learning_rate,
        weight_decay=weight_decay,
        initial_accumulator_value=initial,
        eps=eps,
    )


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    function.__name__: function for function in (adam, adamw, sgd, rmsprop, adadelta, adagrad)
}
"""Every optimizer by the name under which a recipe chooses it."""
