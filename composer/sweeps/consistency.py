"""Checks of a sweep as a whole: its JSON Schema, references between its parts, and every value tried in the base."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe import schema
from composer.recipe.consistency import unavailable_metric
from composer.recipe.metrics import METRICS
from composer.recipe.node import Node, fault_at
from composer.recipe.recipe import first_setting
from composer.sweeps.axes import COSTS, Axis, Point, Sweep, Value, complete, dependencies, same_value, topological_order
from composer.sweeps.substitution import apply_extensions, apply_point, apply_settings, find_matches, no_match_fault

RANGES = ("uniform", "log_uniform", "int", "log_int")
MAX_BASES = 64
"""Combinations of recipes that extend the base in which an axis looks for what it replaces."""
MAX_TRIED = 256
"""Combinations of the axes that a `when` depends on in which it is looked for one where it holds."""


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of sweeps, from its file; `spec_schema` generates it."""
    rules: dict[str, Any] = json.loads(schema_path().read_text(encoding="utf-8"))
    return rules


def schema_path() -> Path:
    """Return the path of the JSON Schema of sweeps, beside that of recipes."""
    return schema.schema_path().with_name("sweep.schema.json")


def rank_metrics() -> list[str]:
    """Return the names of all metrics and costs by which trials can be ranked."""
    return [*(f"{split}/{name}" for split in ("val", "test") for name in METRICS), *COSTS, "minutes"]


# ------------------------------------------------------------------------------------------- references between parts


def cross_checks(sweep: Sweep) -> Iterator[Fault]:
    """Yield every fault between the parts of a sweep."""
    for check in (_unmatched_selectors, _dependency_faults, _ranges_in_grid, _unknown_metrics, _duplicates):
        yield from check(sweep)


def duplicate_faults(items: Sequence[Node], path: str) -> Iterator[Fault]:
    """Yield a fault for each item of a list that is in it before."""
    seen = set()
    for item in items:
        key = (isinstance(item.value, bool), item.value)  # `true` is not 1
        if key in seen:
            yield fault_at(item.mark, "duplicate", path, f"`{item.text}` stands here a second time", "keep one")
        seen.add(key)


def _unmatched_selectors(sweep: Sweep) -> Iterator[Fault]:
    """Yield axes that replace nothing, whichever recipe extends the base."""
    rules = schema.load()
    extending = [axis for axis in sweep.axes if axis.kind == "extend"]
    roots = []
    for labels in islice(product(*(axis.labels or () for axis in extending)), MAX_BASES):
        root = apply_extensions(sweep.base_root, list(zip(extending, labels, strict=True)))
        roots.append(apply_settings(sweep.root, root, lambda place: first_setting(rules, place)))
    for axis in sweep.axes:
        if axis.kind == "replace" and not any(find_matches(root, axis, rules) for root in roots):
            yield no_match_fault(roots[0], axis, rules)


def _dependency_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield axes that depend on each other in a cycle, and those zipped to what is no list of as many values."""
    for axis in sweep.axes:
        if axis.zipped is not None:
            yield from _zip_faults(sweep, axis)
    known = {axis.name for axis in sweep.axes}
    if any(not dependencies(axis) <= known for axis in sweep.axes):
        return
    stuck = [axis for axis in sweep.axes if axis not in topological_order(sweep.axes)]
    cycle = [axis for axis in stuck if any(axis.name in dependencies(other) for other in stuck)]
    if cycle:
        key = cycle[0].node.value.get("when", cycle[0].node.value.get("zip"))
        message = f"these axes wait for each other: {', '.join(axis.name for axis in cycle)}"
        yield fault_at(key.place, "cycle", f"axes.{cycle[0].name}", message, "break the cycle")


def _zip_faults(sweep: Sweep, axis: Axis) -> Iterator[Fault]:
    leader = sweep.axis(str(axis.zipped))
    others = [other.name for other in sweep.axes if other is not axis]
    if leader is None or leader is axis:
        message = f"there is no other axis `{axis.zipped}`{did_you_mean(str(axis.zipped), others)}"
        hint = f"the others are {', '.join(others)}"
    elif leader.zipped is not None:
        message, hint = f"`{leader.name}` follows `{leader.zipped}` itself", f"write `zip: {leader.zipped}`"
    elif axis.labels is None or leader.labels is None:
        message = f"`{axis.name if axis.labels is None else leader.name}` has a range, and no list of values"
        hint = "write `values: [...]`"
    elif len(axis.labels) != len(leader.labels):
        message = f"`{axis.name}` has {len(axis.labels)} values, and `{leader.name}` {len(leader.labels)}"
        hint = "give both as many"
    else:
        return
    yield fault_at(axis.node.value["zip"].mark, "zip", f"axes.{axis.name}.zip", message, hint)


def _ranges_in_grid(sweep: Sweep) -> Iterator[Fault]:
    for axis in sweep.axes if sweep.search.kind == "grid" else ():
        if axis.labels is None:
            key = next(key for key in RANGES if key in axis.node.value)
            message = f"a grid has no place for all numbers from {axis.low} to {axis.high}"
            hint = "write `values: [...]`, or `search: {tpe: {trials: 40}}`"
            yield fault_at(axis.node.value[key].place, "grid", f"axes.{axis.name}.{key}", message, hint)


def _unknown_metrics(sweep: Sweep) -> Iterator[Fault]:
    """Yield metrics of `rank` that nobody logs, and a first one that pruning cannot use."""
    known = rank_metrics()
    for index, goal in enumerate(sweep.rank if "rank" in sweep.root.value else ()):
        node = _goal_node(sweep, goal.metric)
        if goal.metric not in known:
            message = f"nobody logs `{goal.metric}`{did_you_mean(goal.metric, known)}"
            yield fault_at(node.place, "metric", "rank", message, f"the metrics are {', '.join(known)}")
        elif index == 0 and sweep.pruner is not None and not goal.metric.startswith("val/"):
            message = f"`{goal.metric}` is not known while a trial runs, so `prune` cannot go by it"
            yield fault_at(node.place, "metric", "rank", message, "begin with a metric of `val/`, or remove `prune`")


def _duplicates(sweep: Sweep) -> Iterator[Fault]:
    """Yield seeds and metrics that are listed twice."""
    seeds = sweep.root.value.get("seeds")
    if seeds is not None and isinstance(seeds.value, list):
        yield from duplicate_faults(seeds.value, "seeds")
    metrics = [goal.metric for goal in sweep.rank]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            place = _goal_node(sweep, metric).place
            yield fault_at(place, "duplicate", "rank", f"`{metric}` stands twice in `rank`", "keep one")


def unmeasured_metrics(sweep: Sweep, roots: Sequence[Node]) -> Iterator[Fault]:
    """Yield metrics of `rank` that none of these recipes, which are points of the sweep, would log."""
    for goal in sweep.rank if "rank" in sweep.root.value else ():
        reasons = [unavailable_metric(root, goal.metric.replace("test/", "val/")) for root in roots]
        if (first := reasons[0]) is not None and None not in reasons:
            message, hint = f"`{goal.metric}` is never measured: {first[0]}", first[1]
            hint = hint.replace("val/loss", "{val/loss: min}")
            yield fault_at(_goal_node(sweep, goal.metric).place, "metric", "rank", message, hint)


def _goal_node(sweep: Sweep, metric: str) -> Node:
    goals: list[Node] = sweep.root.value["rank"].value
    return next(goal.value[metric] for goal in goals if metric in goal.value)


# ------------------------------------------------------------------------------------------- values, tried in the base


def value_faults(sweep: Sweep) -> set[Fault]:
    """Return what the recipe language has against the values and blocks of a sweep, before any point is planned.

    Each value is tried at two points, among the first values of the other axes and among their last. What is wrong at
    both is the value's fault; what is wrong at all points that were tried is the base's.
    """
    own: set[Fault] = set()
    everywhere: set[Fault] | None = None
    for axis in sweep.axes:
        for value in axis.ends if axis.labels is None else axis.labels:
            tried = [_point_faults(sweep, point) for point in _points_with(sweep, axis, value)]
            if not tried:
                continue
            common = set.intersection(*tried)
            own |= {fault for fault in common if fault.file == str(sweep.file)}
            everywhere = common if everywhere is None else everywhere & common
        if axis.when is not None and _is_never_active(sweep, axis):
            mark, path = axis.node.value["when"].mark, f"axes.{axis.name}.when"
            hint = "write one that holds somewhere, or remove the axis"
            own.add(fault_at(mark, "condition", path, "this condition never holds", hint))
    return own | (everywhere or set())


def probe_points(sweep: Sweep) -> Iterator[Point]:
    """Yield two points: the one of every axis's first value, and the one of every axis's last."""
    for end in (0, -1):
        yield complete(sweep, {axis.name: axis.ends[end] for axis in sweep.axes})


def _points_with(sweep: Sweep, axis: Axis, value: Value) -> Iterator[Point]:
    """Yield the probe points, changed as little as it takes for the axis to have that value."""
    for end in (0, -1):
        others = {other.name: other.ends[end] for other in sweep.axes}
        for combination in islice(_combinations(_all_dependencies(sweep, axis)), MAX_TRIED):
            point = complete(sweep, others | combination | {axis.name: value})
            if axis.name in point and same_value(point[axis.name], value):
                yield point
                break


def _is_never_active(sweep: Sweep, axis: Axis) -> bool:
    """Return whether no combination activates an axis; False where there are too many to try, or ranges among them."""
    needed = _all_dependencies(sweep, axis)
    tried = list(islice(_combinations(needed), MAX_TRIED))
    if len(tried) == MAX_TRIED or any(other.labels is None for other in needed):
        return False
    return not any(axis.name in complete(sweep, {**combination, axis.name: axis.ends[0]}) for combination in tried)


def _combinations(axes: Sequence[Axis]) -> Iterator[Point]:
    names = [axis.name for axis in axes]
    for values in product(*(axis.labels or axis.ends for axis in axes)):
        yield dict(zip(names, values, strict=True))


def _all_dependencies(sweep: Sweep, axis: Axis) -> list[Axis]:
    """Return the axes on which one depends, directly and through others."""
    names: set[str] = set()
    waiting = set(dependencies(axis))
    while waiting:
        name = waiting.pop()
        names.add(name)
        waiting |= {more for other in sweep.axes if other.name == name for more in dependencies(other)} - names
    return [other for other in sweep.axes if other.name in names]


def _point_faults(sweep: Sweep, point: Point) -> set[Fault]:
    from composer.recipe.validation import schema_faults  # jsonschema takes a tenth of a second to import

    try:
        return set(schema_faults(apply_point(sweep, point), schema.load()))
    except RecipeError as error:
        return set(error.faults)
