"""What does not fit together in a sweep whose axes and conditions have been read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

from composer.errors import Fault, did_you_mean
from composer.recipe import schema as language
from composer.recipe.consistency import unavailable_metric
from composer.recipe.metrics import METRICS
from composer.recipe.node import Node, fault_at
from composer.recipe.recipe import first_setting
from composer.sweeps.axes import COSTS, Axis, Sweep, in_order, needs
from composer.sweeps.tree_edits import extended, matches, nothing_found, settled

RANGES = ("uniform", "log_uniform", "int", "log_int")
MOST_BASES = 64
"""So many combinations of recipes that extend the base are looked at for what an axis replaces."""
MEASURED = (*COSTS, "minutes")


def mismatches(sweep: Sweep) -> Iterator[Fault]:
    """Every fault between the parts of a sweep."""
    for find in (_unmatched, _unordered, _gridless, _unlogged, _doubled):
        yield from find(sweep)


def doubles(items: Sequence[Node], path: str) -> Iterator[Fault]:
    """What stands in a list a second time."""
    seen: dict[tuple[type, Any], Node] = {}
    for item in items:
        key = (bool if isinstance(item.value, bool) else object, item.value)
        if key in seen:
            yield fault_at(item.mark, "duplicate", path, f"`{item.text}` stands here a second time", "keep one")
        seen[key] = item


def _unmatched(sweep: Sweep) -> Iterator[Fault]:
    """Axes that replace nothing, in any recipe that extends the base."""
    rules = language.load()
    roots = list(_bases(sweep, rules))
    for axis in sweep.axes:
        if axis.kind == "replace" and not any(matches(root, axis, rules) for root in roots):
            yield nothing_found(roots[0], axis, rules)


def _bases(sweep: Sweep, rules: dict[str, Any]) -> Iterator[Node]:
    extending = [axis for axis in sweep.axes if axis.kind == "extend"]
    for labels in islice(product(*(axis.labels or () for axis in extending)), MOST_BASES):
        root = extended(sweep.base_root, list(zip(extending, labels, strict=True)))
        yield settled(sweep.root, root, lambda place: first_setting(rules, place))


def _unordered(sweep: Sweep) -> Iterator[Fault]:
    """Axes that wait for each other, and those that follow what is no list of as many values."""
    for axis in sweep.axes:
        if axis.zipped is not None:
            yield from _ill_zipped(sweep, axis)
    known = {axis.name for axis in sweep.axes}
    if any(not needs(axis) <= known for axis in sweep.axes):
        return
    stuck = [axis for axis in sweep.axes if axis not in in_order(sweep.axes)]
    circle = [axis for axis in stuck if any(axis.name in needs(other) for other in stuck)]
    if circle:
        key = circle[0].node.value.get("when", circle[0].node.value.get("zip"))
        message = f"these axes wait for each other: {', '.join(axis.name for axis in circle)}"
        yield fault_at(key.place, "cycle", f"axes.{circle[0].name}", message, "break the circle")


def _ill_zipped(sweep: Sweep, axis: Axis) -> Iterator[Fault]:
    node = axis.node.value["zip"]
    leader, path = sweep.axis(str(axis.zipped)), f"axes.{axis.name}.zip"
    others = [each.name for each in sweep.axes if each is not axis]
    if leader is None or leader is axis:
        message = f"there is no other axis `{axis.zipped}`{did_you_mean(str(axis.zipped), others)}"
        yield fault_at(node.mark, "zip", path, message, f"the others are {', '.join(others)}")
    elif leader.zipped is not None:
        message = f"`{leader.name}` follows `{leader.zipped}` itself"
        yield fault_at(node.mark, "zip", path, message, f"write `zip: {leader.zipped}`")
    elif axis.labels is None or leader.labels is None:
        message = f"`{axis.name if axis.labels is None else leader.name}` has a range, and no list of values"
        yield fault_at(node.mark, "zip", path, message, "write `values: [...]`")
    elif len(axis.labels) != len(leader.labels):
        message = f"`{axis.name}` has {len(axis.labels)} values, and `{leader.name}` {len(leader.labels)}"
        yield fault_at(node.mark, "zip", path, message, "give both as many")


def _gridless(sweep: Sweep) -> Iterator[Fault]:
    """Ranges in a grid."""
    for axis in sweep.axes if sweep.search.kind == "grid" else ():
        if axis.labels is None:
            key = next(key for key in RANGES if key in axis.node.value)
            message = f"a grid has no place for all numbers from {axis.low} to {axis.high}"
            hint = "write `values: [...]`, or `search: {tpe: {trials: 40}}`"
            yield fault_at(axis.node.value[key].place, "grid", f"axes.{axis.name}.{key}", message, hint)


def _unlogged(sweep: Sweep) -> Iterator[Fault]:
    """Metrics that nobody logs."""
    written = sweep.root.value.get("rank")
    known = metrics()
    for index, goal in enumerate(sweep.rank if written is not None else ()):
        node = _goal_node(written, goal.metric)
        if goal.metric not in known:
            message = f"nobody logs `{goal.metric}`{did_you_mean(goal.metric, known)}"
            yield fault_at(node.place, "metric", "rank", message, f"what is known is {', '.join(known)}")
        elif index == 0 and sweep.prune is not None and not goal.metric.startswith("val/"):
            message = f"`{goal.metric}` is not known while a trial runs, so `prune` cannot go by it"
            yield fault_at(node.place, "metric", "rank", message, "begin with a metric of `val/`, or remove `prune`")


def _doubled(sweep: Sweep) -> Iterator[Fault]:
    """Seeds and metrics that stand twice."""
    seeds = sweep.root.value.get("seeds")
    if seeds is not None and isinstance(seeds.value, list):
        yield from doubles(seeds.value, "seeds")
    metrics = [goal.metric for goal in sweep.rank]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            node = _goal_node(sweep.root.value["rank"], metric)
            yield fault_at(node.place, "duplicate", "rank", f"`{metric}` stands twice in `rank`", "keep one")


def unmeasured_goals(sweep: Sweep, roots: Sequence[Node]) -> Iterator[Fault]:
    """Metrics of `rank` that no recipe of `roots`, which are points of the sweep, would log."""
    for goal in sweep.rank if "rank" in sweep.root.value else ():
        never = [unavailable_metric(root, goal.metric.replace("test/", "val/")) for root in roots]
        if (first := never[0]) is not None and None not in never:
            node = _goal_node(sweep.root.value["rank"], goal.metric)
            message, hint = (
                f"`{goal.metric}` is never measured: {first[0]}",
                first[1].replace("val/loss", "{val/loss: min}"),
            )
            yield fault_at(node.place, "metric", "rank", message, hint)


def _goal_node(written: Node, metric: str) -> Node:
    nodes = written.value if isinstance(written.value, list) else [written]
    return next(node.value[metric] for node in nodes if metric in node.value)


def metrics() -> list[str]:
    """Everything by which points can be ranked."""
    return [*(f"{split}/{name}" for split in ("val", "test") for name in METRICS), *MEASURED]
