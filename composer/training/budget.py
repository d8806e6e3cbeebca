"""The budget of a training, its clock, and when it ends early."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from composer.recipe.canonical_form import BUDGET_KEYS


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


def has_stalled(losses: Sequence[float], patience: int) -> bool:
    """Return whether the last validation is worse than the best of those more than `patience` before it.

    The trigger of NT-ASGD (Merity et al. 2018, algorithm 1).
    """
    return len(losses) > patience + 1 and losses[-1] > min(losses[: -patience - 1])
