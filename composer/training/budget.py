"""The budget of a training, its clock, and its changes when a run is resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from composer.errors import RecipeError
from composer.recipe.canonical_form import BUDGET_KEYS, DEFAULT_EPOCHS
from composer.recipe.interpolation import substitute
from composer.recipe.recipe import Recipe, from_node
from composer.recipe.sections import Training
from composer.recipe.yaml_reader import COMMAND_LINE, to_data
from composer.run_dir import RunDir, checkpoint_history, checkpoint_step
from composer.runs.record import Budget, RunRecord


def budget_of(training: Training) -> Budget:
    """Return the budget of a recipe."""
    return Budget(training.max_steps, training.max_epochs, training.max_minutes)


def limits_of(budget: Budget) -> Budget:
    """Return a budget without the step at which it ended, to compare it with a recipe's."""
    return replace(budget, until_step=None, validated=False)


def is_spent(recipe: Recipe, record: RunRecord) -> bool:
    """True if a finished run has nothing left of the recipe's budget, or has the same one."""
    budget = budget_of(recipe.training)
    if record.budgets and limits_of(record.budgets[-1]) == budget:
        return True
    if record.steps is None or record.epochs is None:  # an average has neither
        return True
    return budget.spent(record.steps, record.epochs, record.minutes) >= 1.0


def plan_budgets(recipe: Recipe, record: RunRecord | None) -> tuple[Budget, ...]:
    """Return the budgets of a run that begins: the recipe's, or all that a reproduced run followed.

    record: run.json of the reproduced run, None without one.
    """
    return record.budgets if record and record.budgets else (budget_of(recipe.training),)


def resumed_budgets(
    recipe: Recipe, record: RunRecord, checkpoint: Path | None, finish: bool
) -> tuple[Budget, ...]:
    """Return the budgets of a run that is resumed, in order, the recipe's after those of run.json.

    finish: Whether the last one ends at the checkpoint.
    """
    new = budget_of(recipe.training)
    budgets = record.budgets or (new,)
    if not finish and limits_of(budgets[-1]) == new:
        return budgets
    step, history = 0, []
    if checkpoint is not None:
        step, history = checkpoint_step(checkpoint) or 0, checkpoint_history(checkpoint)
    validated = bool(history) and history[-1]["step"] == step
    if finish:  # nothing was trained with another budget of the recipe
        return (*budgets[:-1], replace(budgets[-1], until_step=step, validated=validated))
    return tuple(replace_budget(budgets, new, step, validated))


def replace_budget(
    budgets: Sequence[Budget], new: Budget, step: int, validated: bool
) -> list[Budget]:
    """Return the budgets of a training where `new` replaces the last after `step` steps."""
    past = [budget for budget in budgets if 0 < (budget.until_step or 0) <= step]
    began = past[-1].until_step if past else 0
    if len(past) < len(budgets) and began != step:
        past.append(replace(budgets[len(past)], until_step=step, validated=validated))
    return [*past, new]


def file_budget(recipe: Recipe) -> Budget | None:
    """Return the budget in a recipe's file, without overrides; None if the file has faults."""
    root = recipe.root
    if recipe.unchanged is not None:
        try:
            root = from_node(recipe.file, substitute(recipe.unchanged), recipe.rules).root
        except RecipeError:
            return None
    training = to_data(root).get("training") or {}
    limits = {key: training[key] for key in BUDGET_KEYS if training.get(key) is not None}
    return Budget(**limits) if limits else Budget(max_epochs=DEFAULT_EPOCHS)


@dataclass(frozen=True)
class BudgetChange:
    """A limit that a recipe sets otherwise than the run that it resumes.

    source: Where the new limit was set on purpose, in words; "" if the run keeps its own.
    """

    key: str
    old: float | None
    new: float | None
    source: str

    def describe(self) -> str:
        """Return the change, or the limit that stays, in words."""
        unit = self.key.removeprefix("max_")
        old, new = _limit_text(self.old), _limit_text(self.new)
        if self.source:
            end = unit if self.new else f"of {unit}"
            return f"budget: {old} -> {new} {end} (from the {self.source})"
        limit = f"{old} {unit}" if self.old else f"{old} of {unit}"
        return f"budget: {limit}, as the run has it (the recipe: {new})"


def _limit_text(limit: float | None) -> str:
    return f"{limit:,.10g}" if limit else "no limit"


def budget_changes(recipe: Recipe, run_dir: RunDir, record: RunRecord) -> list[BudgetChange]:
    """Return the limits in which a recipe differs from the run that it resumes.

    A limit was set on purpose by the command line, or by a recipe file that has another than it had
    when the run last began.
    """
    run = record.budgets[-1] if record.budgets else budget_of(recipe.training)
    section = recipe.root.value.get("training")
    in_file = file_budget(recipe)
    is_own = recipe.file.resolve() == run_dir.recipe.resolve()
    before = in_file if is_own else record.recipe_budget or in_file
    changes = []
    for key in BUDGET_KEYS:
        old, new = run.limits[key], recipe.training.limits[key]
        if old == new:
            continue
        node = section and section.value.get(key)
        on_command_line = node and node.place.file == COMMAND_LINE
        source = ""
        if on_command_line or (in_file and new != in_file.limits[key]):
            source = "command line"
        elif in_file and before and in_file.limits[key] != before.limits[key]:
            source = "recipe"
        changes.append(BudgetChange(key, old, new, source))
    return changes


def resumed_recipe(
    recipe: Recipe, run_dir: RunDir, record: RunRecord, finish: bool, say: Callable[[str], None]
) -> Recipe:
    """Return the recipe with the budget with which its run goes on, and say the changes.

    To `finish`, the run keeps all its limits.
    """
    restored: dict[str, float | None] = {}
    for change in budget_changes(recipe, run_dir, record):
        if not finish:
            say(change.describe())
        if finish or not change.source:
            restored[change.key] = change.old
    if not restored:
        return recipe
    training = recipe.explicit.get("training", {}) | restored
    for key, limit in restored.items():
        if limit is None:
            del training[key]
    explicit = recipe.explicit | {"training": training}
    canonical = recipe.canonical | {"training": recipe.canonical["training"] | restored}
    return replace(recipe, explicit=explicit, canonical=canonical)


class Clock:
    """Minutes of training over all resumptions: process time on a CPU, else wall time.

    Process time makes a budget in minutes independent of other programs on the same CPU.
    """

    def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
        self.on_cpu, self.before = on_cpu, before
        # as they are now: at the end of the training the number may differ
        self.threads = torch.get_num_threads()
        self.start = self.now()

    def now(self) -> float:
        """Return the minutes since a moment that stays the same while the process runs."""
        return (time.process_time() / self.threads if self.on_cpu else time.monotonic()) / 60

    def minutes(self) -> float:
        """Return the minutes trained so far."""
        return self.before + self.now() - self.start
