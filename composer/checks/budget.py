"""Rules of the budget, by the size of an epoch: what no training within it reaches.

All are warnings. Of a budget in minutes nothing is known, nor without the size of an epoch how many
steps it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from blocks.core.fixes import Fix, Remove, remove
from composer.checks.problem import Problems, faults, unused, warning
from composer.data.sources import is_endless
from composer.errors import Fault, KeyPath
from composer.recipe.recipe import Recipe

LONG_WARMUP, USUAL_WARMUP = 0.2, 0.05
"""Shares of the budget: above which a warm-up of the learning rate is reported, and what is
suggested instead.
"""
PAIR_SECONDS, PAIR_BYTES = 20e-6, 500
"""Of a pair that a task draws, about; it is more of long ones."""
ESTIMATE_ERROR, ESTIMATE_STEPS = 0.25, 2
"""Share and number of steps by which an epoch may have more or fewer than a sample of its lengths
says.
"""
SHORTER_WARMUP = f"lower `warmup_steps`; {USUAL_WARMUP} is a twentieth of the budget"
CURRICULUM = ("training", "curriculum")


class EpochSize(NamedTuple):
    """Steps of an epoch of all pairs, and its bounds, 0 if unknown.

    `is_exact` if all epochs have as many.
    """

    steps: float
    is_exact: bool = True
    longest: int = 0
    shortest: int = 0


class Reach(NamedTuple):
    """How many steps, epochs and validations before its last one a training has at most."""

    steps: float
    epochs: float
    validations: float


Rule = Callable[[Recipe, EpochSize | None], Problems]


def warnings(recipe: Recipe, epoch: EpochSize | None) -> list[Fault]:
    """Return a warning of each setting for which the budget is too small."""
    warned: list[Fault] = []
    for rule in RULES:
        warned += faults(recipe, rule(recipe, epoch))
    return warned


def steps_of_epoch(recipe: Recipe, epoch: EpochSize | None) -> tuple[float, float]:
    """Return the lowest and the highest possible number of steps of an epoch."""
    if epoch is None:
        return 1.0, math.inf
    slack = 1.0 if epoch.is_exact else 1 + ESTIMATE_ERROR + ESTIMATE_STEPS / epoch.steps
    # an epoch of a curriculum has fewer pairs, and one step or more
    fewest = 1.0 if recipe.training.curriculum else max(1.0, epoch.steps / slack)
    return fewest, epoch.steps * slack


def reach(recipe: Recipe, epoch: EpochSize | None) -> Reach:
    """Return the bounds of the steps, epochs and validations of a training."""
    fewest, most = steps_of_epoch(recipe, epoch)
    steps, epochs = recipe.training.max_steps or math.inf, recipe.training.max_epochs or math.inf
    steps, epochs = min(steps, epochs * most), min(epochs, steps / fewest)
    every = recipe.training.validate_every
    validations = math.inf
    if steps < math.inf:
        validations = max(0.0, math.ceil(steps / every if every else epochs) - 1.0)
    return Reach(steps, epochs, validations)


def two_budgets(recipe: Recipe, epoch: EpochSize | None) -> Problems:
    """Either of two budgets may end the training."""
    fewest, most = steps_of_epoch(recipe, epoch)
    steps, epochs = recipe.training.max_steps or math.inf, recipe.training.max_epochs or math.inf
    for key, limit, end in (
        ("max_steps", steps, epochs * most),
        ("max_epochs", epochs, steps / fewest),
    ):
        if end < limit < math.inf:
            path, message = ("training", key), "the other budget always ends the training first"
            yield warning("budget", path, message, remove(path, ", or lower it"))


def drawing(recipe: Recipe, epoch: EpochSize | None) -> Problems:
    """The pairs of a task are drawn before the first step in less than minutes."""
    task = recipe.data.generate
    if task and (minutes := task.train * PAIR_SECONDS / 60) > 1:
        gib = task.train * PAIR_BYTES / 2**30
        times = " in every epoch" if is_endless(recipe) else ""
        message = (
            f"drawing so many pairs takes about {minutes:,.0f} minutes and {gib:,.1f} GiB of"
            f" memory{times}"
        )
        yield warning(
            "budget",
            (*task.at, "train"),
            message,
            "write fewer; with `endless`, every epoch has new ones",
        )


def describe_long_warmup(recipe: Recipe, steps: float) -> str:
    """Say that the warm-up takes a large part of so many steps; "" if it does not."""
    warmup = recipe.training.schedule.warmup_steps
    share = warmup / steps if warmup >= 1 else warmup
    if share > 1:
        return (
            f"the learning rate never reaches its value: that takes {warmup:,.0f} steps, not"
            f" {steps:,.0f}"
        )
    return (
        f"the learning rate rises during {share:.0%} of the training" if share > LONG_WARMUP else ""
    )


def schedule(recipe: Recipe, epoch: EpochSize | None) -> Problems:
    """The learning rate rises in a small part of the training, and falls if its schedule waits."""
    chosen, limits = recipe.training.schedule, reach(recipe, epoch)
    if message := describe_long_warmup(recipe, limits.steps):
        yield warning(
            "budget", (*chosen.at, "warmup_steps"), message, f"{SHORTER_WARMUP}, or train longer"
        )
    if (wait := chosen.wait) is None:
        return
    if wait.validations and wait.validations >= limits.validations:
        message = f"the learning rate never falls: {_too_few(wait.validations + 1, limits)}"
        yield warning(
            "budget", (*chosen.at, wait.setting), message, "validate more often, or train longer"
        )
    if wait.epochs and wait.epochs >= limits.epochs:
        message = f"the learning rate never falls: there are {limits.epochs:,.4g} epochs at most"
        yield warning(
            "budget", (*chosen.at, wait.setting), message, "write a smaller number, or train longer"
        )


def validations(recipe: Recipe, epoch: EpochSize | None) -> Problems:
    """There are as many validations as averages and early stopping wait for."""
    training, limits = recipe.training, reach(recipe, epoch)
    if (asgd := training.asgd) and asgd.patience + 2 > limits.validations:
        message = f"nothing is averaged: {_too_few(asgd.patience + 2, limits)}"
        yield warning(
            "budget",
            (*asgd.at, "patience"),
            message,
            "lower it, validate more often, or train longer",
        )
    stopping, averaged = training.early_stopping, training.average_checkpoints
    if stopping and stopping.patience and stopping.patience >= limits.validations:
        path: KeyPath = (*stopping.at, "patience")
        if stopping.goal is None or recipe.locate(path).is_written:
            message = f"nothing is stopped early: {_too_few(stopping.patience + 1, limits)}"
            yield warning(
                "budget", path, message, "lower `patience`, validate more often, or train longer"
            )
    if averaged > limits.validations + 1:
        message = (
            f"no more than {limits.validations + 1:.0f} checkpoints will be available to average"
        )
        hint = "write a smaller number, validate more often, or train longer"
        yield warning("budget", ("training", "average_checkpoints"), message, hint)


def _too_few(needed: int, limits: Reach) -> str:
    return (
        f"that takes {needed} validations before the last one, and there are"
        f" {limits.validations:.0f} at most"
    )


def curriculum(recipe: Recipe, epoch: EpochSize | None) -> Problems:
    """A curriculum leaves pairs out, and reaches the longest ones."""
    settings = recipe.training.curriculum
    if settings is None or recipe.window:  # of windows the plan says that it changes nothing
        return
    epochs, start = reach(recipe, epoch).epochs, settings.start
    longest = epoch.longest if epoch else start + 1
    # a shortest length is known where all lengths are
    if epoch and epoch.shortest and max(start, epoch.shortest) >= longest:
        hint, which = "write a smaller `start`, or remove it", "no pair has more than"
        if epoch.shortest == longest:
            hint, which = "remove it, or choose by another side", "all pairs have"
        message = f"{which} {longest} tokens, so every epoch has all of them"
        yield unused(CURRICULUM, message, Fix(hint, Remove(CURRICULUM)))
    elif epochs < math.inf:
        level = start + settings.step * (max(0, math.ceil(epochs) - 1) // 2)
        if level < longest and (epoch or level == start):
            message = (
                f"{math.ceil(epochs):,} epochs at most raise its level to {level}: each level takes"
                " two or more"
            )
            message += f"; the longest pairs have {longest} tokens" if epoch else ""
            yield warning(
                "budget", CURRICULUM, message, "write a larger `start` or `step`, or train longer"
            )


RULES: Sequence[Rule] = (two_budgets, drawing, schedule, validations, curriculum)
