"""Goals of a sweep that its data leave out: BLEU of answers of a single word, say."""

from __future__ import annotations

from itertools import islice

from composer.data.pairs import TARGET, available_splits
from composer.data.sources import DataSource
from composer.errors import ComposerError, Fault, RecipeError, fault_at
from composer.metrics.bleu import MANY_LINES
from composer.metrics.choice import TextMetrics
from composer.metrics.table import METRICS, metric_name, text_metrics
from composer.recipe.recipe import Recipe
from composer.sweeps.sweep import Goal, Sweep


def check_goals(sweep: Sweep, recipe: Recipe) -> None:
    """Raise RecipeError with the goals that no training measures, by the references of a recipe.

    Where the recipe names no metrics, or its data cannot be read, there are none.
    """
    if faults := unmeasured_goals(sweep, recipe):
        raise RecipeError(faults)


def unmeasured_goals(sweep: Sweep, recipe: Recipe) -> list[Fault]:
    """Return the faults of these goals."""
    goals = [goal for goal in sweep.rank if metric_name(goal.metric) in text_metrics()]
    if not goals or recipe.evaluation.metrics is not None or not recipe.sources:
        return []
    splits = available_splits(recipe)
    split = "val" if "val" in splits else next((name for name in splits if name != "train"), "")
    if not split:
        return []
    try:
        chosen = _chosen_metrics(sweep, recipe, split)
    except ComposerError:  # which reading the data says
        return []
    faults = []
    for goal in goals:
        if goal.mark is not None and metric_name(goal.metric) not in chosen.names:
            faults.append(_fault(goal, chosen, split))
    return faults


def _chosen_metrics(sweep: Sweep, recipe: Recipe, split: str) -> TextMetrics:
    """Return the metrics that a training chooses by its references. Raises ComposerError."""
    from composer.evaluation.scores import recipe_metrics  # imports torch

    source = DataSource(recipe, recipe.folders(sweep.data_dir))
    references = [*islice(source.pairs(split).sides[TARGET], MANY_LINES)]
    return recipe_metrics(recipe, references, f" of {split}")


def _fault(goal: Goal, chosen: TextMetrics, split: str) -> Fault:
    assert goal.mark is not None
    name = metric_name(goal.metric)
    reason = f"the references of {split} choose {', '.join(chosen.names)}"
    if name == "bleu" and chosen.left_out:
        reason = chosen.left_out.removeprefix("no BLEU: ")
    first = chosen.names[0]
    direction = "min" if METRICS[first].lower_is_better else "max"
    other = goal.metric.replace(name, first)
    hint = (
        f"write `{{{other}: {direction}}}`, or `evaluation: {{metrics: [{name}, ...]}}` in the base"
    )
    return fault_at(
        goal.mark, "metric", "rank", f"`{goal.metric}` is never measured: {reason}", hint
    )
