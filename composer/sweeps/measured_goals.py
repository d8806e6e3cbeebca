"""Goals of a sweep that its data leave out: BLEU of answers of a single word, say."""

from __future__ import annotations

from itertools import islice

from composer.data.pairs import TARGET, available_splits
from composer.data.sources import DataSource
from composer.errors import ComposerError, Fault, RecipeError, fault_at
from composer.metrics.bleu import MANY_LINES
from composer.metrics.table import metric_name, text_metrics
from composer.recipe.recipe import Recipe
from composer.sweeps.sweep import Sweep


def check_goals(sweep: Sweep, recipe: Recipe) -> None:
    """Raise RecipeError with the goals that no training measures, by the references of a recipe.

    Where the recipe names no metrics, or its data cannot be read, there are none.
    """
    if faults := unmeasured_goals(sweep, recipe):
        raise RecipeError(faults)


def unmeasured_goals(sweep: Sweep, recipe: Recipe) -> list[Fault]:
    """Return the faults of these goals."""
    from composer.evaluation.scores import recipe_metrics  # imports torch

    goals = [goal for goal in sweep.rank if metric_name(goal.metric) in text_metrics()]
    splits = [split for split in available_splits(recipe) if split != "train"]
    if not goals or recipe.evaluation.metrics is not None or not recipe.sources or not splits:
        return []
    split = "val" if "val" in splits else splits[0]
    try:
        lines = DataSource(recipe, recipe.folders(sweep.data_dir)).pairs(split).sides[TARGET]
        chosen = recipe_metrics(recipe, [*islice(lines, MANY_LINES)], f" of {split}")
    except ComposerError:  # which reading the data says
        return []
    faults = []
    for goal in goals:
        name = metric_name(goal.metric)
        if goal.mark is None or name in chosen.names:
            continue
        reason = f"the references of {split} choose {', '.join(chosen.names)}"
        if name == "bleu" and chosen.left_out:
            reason = chosen.left_out.removeprefix("no BLEU: ")
        message = f"`{goal.metric}` is never measured: {reason}"
        hint = f"rank by one of {', '.join(chosen.names)}, or write"
        hint += f" `evaluation: {{metrics: [{name}, ...]}}` in the base"
        faults.append(fault_at(goal.mark, "metric", "rank", message, hint))
    return faults
