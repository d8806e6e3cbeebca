"""The goals of a sweep, `rank` and `tune`: read them, and refuse those that no run measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product

from composer.checks.training import unavailable_metric
from composer.errors import Fault, RecipeError, fault_at
from composer.metrics.table import METRICS, decodes_all, metric_of, training_key
from composer.recipe import schema_generator
from composer.recipe.recipe import from_node
from composer.recipe.yaml_reader import Node
from composer.suggest import did_you_mean
from composer.sweeps.sweep import COSTS, DEFAULT_RANK, Goal, Sweep


def read_goals(root: Node) -> tuple[Goal, ...]:
    """Return the goals of `rank`, by default the validation loss."""
    goals = []
    for pair in root.value["rank"].value if "rank" in root.value else ():
        for metric, direction in pair.value.items():
            goals.append(Goal(metric, direction.value, direction.place))
    return tuple(goals) or DEFAULT_RANK


def rank_metrics() -> list[str]:
    """Return the metrics of a finished trial, by which it may be ranked: scores, costs, minutes."""
    scores = [f"{split}/{name}" for split, name in product(("val", "test"), METRICS)]
    return [*scores, *COSTS, "minutes"]


def rank_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield goals that no finished run has, repeated ones, and a first one that cannot prune."""
    known = rank_metrics()
    metrics: list[str] = []
    for goal in sweep.rank:
        if goal.mark is None:  # the default
            continue
        metric, score = goal.metric, metric_of(goal.metric)
        best = "min" if score is None or score.lower_is_better else "max"
        code = "metric"
        if metric not in known:
            message = f"no finished run has a `{metric}`{did_you_mean(metric, known)}"
            hint = f"the metrics are {', '.join(known)}"
        elif not metrics and sweep.pruner is not None and not metric.startswith("val/"):
            message = f"`{metric}` is computed after training; pruning needs a validation metric"
            hint = "begin with a metric of `val/`, or remove `prune`"
        elif metric in metrics:
            code, message, hint = "duplicate", f"`{metric}` is twice in `rank`", "keep one"
        elif goal.direction != best:
            message = f"`{metric}: {goal.direction}` ranks the worst first"
            hint = f"write `{metric}: {best}`"
        else:
            message = ""
        metrics.append(metric)
        if message:
            yield fault_at(goal.mark, code, "rank", message, hint)


def tune_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield tuned axes that the sweep does not have, and a first goal that is not a score."""
    if "tune" not in sweep.root.value:
        return
    tune = sweep.root.value["tune"]
    names = [axis.name for axis in sweep.axes]
    for item in tune.value:
        if item.value not in names:
            message = f"the sweep has no axis `{item.value}`{did_you_mean(item.value, names)}"
            yield fault_at(item.mark, "axis", "tune", message, f"its axes are {', '.join(names)}")
    metric = sweep.rank[0].metric
    if not metric.startswith(("val/", "test/")):
        message = f"`tune` chooses by a validation score, and `rank` begins with `{metric}`"
        hint = "begin `rank` with a metric of `val/` or `test/`"
        yield fault_at(tune.place, "metric", "tune", message, hint)


def unmeasured_metrics(sweep: Sweep, roots: Sequence[Node]) -> Iterator[Fault]:
    """Yield metrics of `rank` that none of these points would log."""
    recipes = []
    for root in roots:
        with suppress(RecipeError):  # a point may be impossible
            recipes.append(from_node(sweep.base, root, schema_generator.load()))
    marks = [(goal.metric, goal.mark) for goal in sweep.rank if goal.mark is not None]
    if marks and sweep.pruner is not None and decodes_all(marks[0][0]):
        # pruning goes by what is logged during the training
        marks.append((training_key(marks[0][0]), marks[0][1]))
    if marks and "tune" in sweep.root.value:
        marks.append((sweep.rank[0].on_validation.metric, sweep.root.value["tune"].mark))
    for metric, mark in marks:
        reasons = [unavailable_metric(recipe, metric) for recipe in recipes]
        if reasons and (first := reasons[0]) is not None and None not in reasons:
            hint = first[1].text.replace("val/loss", "{val/loss: min}")
            message = f"`{metric}` is never measured: {first[0]}"
            yield fault_at(mark, "metric", "rank", message, hint)
