"""The budget of a training, its clock, and when it ends early."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from composer.recipe.sections import Training
from composer.runs.record import Budget


def budget_of(training: Training) -> Budget:
    """Return the budget of a recipe."""
    return Budget(training.max_steps, training.max_epochs, training.max_minutes)


def replace_budget(
    budgets: Sequence[Budget], new: Budget, step: int, validated: bool
) -> list[Budget]:
    """Return the budgets of a training, in order, in which a new one takes the place of the last
    after `step` steps.
    """
    past = [budget for budget in budgets if (budget.until_step or math.inf) <= step]
    began = past[-1].until_step if past else 0
    if len(past) < len(budgets) and began != step:
        past.append(replace(budgets[len(past)], until_step=step, validated=validated))
    return [*past, new]


class Clock:
    """Minutes of training over all resumptions: process time per thread on a CPU, wall time
    elsewhere.

    Process time makes a budget in minutes independent of other programs on the same CPU.
    """

    def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
        self.on_cpu, self.before = on_cpu, before
        # at the end, when this is read once more, there may be others
        self.threads = torch.get_num_threads()
        self.start = self.now()

    def now(self) -> float:
        """Return the minutes since a moment that stays the same while the process runs."""
        return (time.process_time() / self.threads if self.on_cpu else time.monotonic()) / 60

    def minutes(self) -> float:
        """Return the minutes trained so far."""
        return self.before + self.now() - self.start


def has_stalled(losses: Sequence[float], patience: int) -> bool:
    """Return whether the last validation is worse than the best of those more than `patience`
    before it.

    The trigger of NT-ASGD (Merity et al. 2018, algorithm 1).
    """
    return len(losses) > patience + 1 and losses[-1] > min(losses[: -patience - 1])
