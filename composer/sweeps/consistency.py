"""What does not fit together in a sweep whose axes and conditions have been read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe import schema
from composer.recipe import schema as language
from composer.recipe.consistency import unavailable_metric
from composer.recipe.metrics import METRICS
from composer.recipe.node import Node, fault_at
from composer.recipe.recipe import first_setting
from composer.sweeps.axes import COSTS, Axis, Point, Sweep, Value, complete, dependencies, same_value, topological_order
from composer.sweeps.substitution import apply_extensions, apply_point, apply_settings, find_matches, no_match_fault

RANGES = ("uniform", "log_uniform", "int", "log_int")
MAX_BASES = 64
"""So many combinations of recipes that extend the base are looked at for what an axis replaces."""
MEASURED = (*COSTS, "minutes")


def cross_checks(sweep: Sweep) -> Iterator[Fault]:
    """Every fault between the parts of a sweep."""
    for find in (_unmatched_selectors, _dependency_faults, _ranges_in_grid, _unknown_metrics, _duplicates):
        yield from find(sweep)


def duplicate_faults(items: Sequence[Node], path: str) -> Iterator[Fault]:
    """What stands in a list a second time."""
    seen: dict[tuple[type, Any], Node] = {}
    for item in items:
        key = (bool if isinstance(item.value, bool) else object, item.value)
        if key in seen:
            yield fault_at(item.mark, "duplicate", path, f"`{item.text}` stands here a second time", "keep one")
        seen[key] = item


def _unmatched_selectors(sweep: Sweep) -> Iterator[Fault]:
    """Axes that replace nothing, in any recipe that extends the base."""
    rules = language.load()
    roots = list(_base_variants(sweep, rules))
    for axis in sweep.axes:
        if axis.kind == "replace" and not any(find_matches(root, axis, rules) for root in roots):
            yield no_match_fault(roots[0], axis, rules)


def _base_variants(sweep: Sweep, rules: dict[str, Any]) -> Iterator[Node]:
    extending = [axis for axis in sweep.axes if axis.kind == "extend"]
    for labels in islice(product(*(axis.labels or () for axis in extending)), MAX_BASES):
        root = apply_extensions(sweep.base_root, list(zip(extending, labels, strict=True)))
        yield apply_settings(sweep.root, root, lambda place: first_setting(rules, place))


def _dependency_faults(sweep: Sweep) -> Iterator[Fault]:
    """Axes that wait for each other, and those that follow what is no list of as many values."""
    for axis in sweep.axes:
        if axis.zipped is not None:
            yield from _zip_faults(sweep, axis)
    known = {axis.name for axis in sweep.axes}
    if any(not dependencies(axis) <= known for axis in sweep.axes):
        return
    stuck = [axis for axis in sweep.axes if axis not in topological_order(sweep.axes)]
    circle = [axis for axis in stuck if any(axis.name in dependencies(other) for other in stuck)]
    if circle:
        key = circle[0].node.value.get("when", circle[0].node.value.get("zip"))
        message = f"these axes wait for each other: {', '.join(axis.name for axis in circle)}"
        yield fault_at(key.place, "cycle", f"axes.{circle[0].name}", message, "break the circle")


def _zip_faults(sweep: Sweep, axis: Axis) -> Iterator[Fault]:
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


def _ranges_in_grid(sweep: Sweep) -> Iterator[Fault]:
    """Ranges in a grid."""
    for axis in sweep.axes if sweep.search.kind == "grid" else ():
        if axis.labels is None:
            key = next(key for key in RANGES if key in axis.node.value)
            message = f"a grid has no place for all numbers from {axis.low} to {axis.high}"
            hint = "write `values: [...]`, or `search: {tpe: {trials: 40}}`"
            yield fault_at(axis.node.value[key].place, "grid", f"axes.{axis.name}.{key}", message, hint)


def _unknown_metrics(sweep: Sweep) -> Iterator[Fault]:
    """Metrics that nobody logs."""
    written = sweep.root.value.get("rank")
    known = rank_metrics()
    for index, goal in enumerate(sweep.rank if written is not None else ()):
        node = _goal_node(written, goal.metric)
        if goal.metric not in known:
            message = f"nobody logs `{goal.metric}`{did_you_mean(goal.metric, known)}"
            yield fault_at(node.place, "metric", "rank", message, f"what is known is {', '.join(known)}")
        elif index == 0 and sweep.prune is not None and not goal.metric.startswith("val/"):
            message = f"`{goal.metric}` is not known while a trial runs, so `prune` cannot go by it"
            yield fault_at(node.place, "metric", "rank", message, "begin with a metric of `val/`, or remove `prune`")


def _duplicates(sweep: Sweep) -> Iterator[Fault]:
    """Seeds and metrics that stand twice."""
    seeds = sweep.root.value.get("seeds")
    if seeds is not None and isinstance(seeds.value, list):
        yield from duplicate_faults(seeds.value, "seeds")
    metrics = [goal.metric for goal in sweep.rank]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            node = _goal_node(sweep.root.value["rank"], metric)
            yield fault_at(node.place, "duplicate", "rank", f"`{metric}` stands twice in `rank`", "keep one")


def unmeasured_metrics(sweep: Sweep, roots: Sequence[Node]) -> Iterator[Fault]:
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


def rank_metrics() -> list[str]:
    """Everything by which points can be ranked."""
    return [*(f"{split}/{name}" for split in ("val", "test") for name in METRICS), *MEASURED]


MAX_TRIED = 256
"""So many combinations of the axes that a `when` names are looked at for one where it holds."""


def choice_faults(sweep: Sweep) -> set[Fault]:
    """The faults of choices at their lines, and those that every point has."""
    own: set[Fault] = set()
    everywhere: set[Fault] | None = None
    for axis in sweep.axes:
        for value in end_values(axis) if axis.labels is None else axis.labels:
            found = [_point_faults(sweep, point) for point in _points_with(sweep, axis, value)]
            own |= {fault for fault in set.intersection(*found) if fault.file == str(sweep.file)} if found else set()
            everywhere = (
                set.intersection(*found, *([] if everywhere is None else [everywhere])) if found else everywhere
            )
        if axis.when is not None and _is_never_active(sweep, axis):
            mark = axis.node.value["when"].mark
            own.add(
                fault_at(
                    mark,
                    "condition",
                    f"axes.{axis.name}.when",
                    "this condition never holds",
                    "write one that holds somewhere, or remove the axis",
                )
            )
    return own | (everywhere or set())


def probe_points(sweep: Sweep) -> Iterator[Point]:
    """Two points: of every axis its first choice, and its last."""
    for end in (0, -1):
        yield complete(sweep, {axis.name: end_values(axis)[end] for axis in sweep.axes})


def end_values(axis: Axis) -> tuple[Value, ...]:
    """The first and the last value of an axis."""
    if axis.labels is not None:
        return axis.labels[0], axis.labels[-1]
    assert axis.low is not None
    assert axis.high is not None
    return axis.low, axis.high


def _points_with(sweep: Sweep, axis: Axis, value: Value) -> Iterator[Point]:
    """The tried points, changed as little as it takes for the axis to have that value."""
    named = [each for each in sweep.axes if each.name in _transitive_dependencies(sweep, axis)]
    for end in (0, -1):
        others = {each.name: end_values(each)[end] for each in sweep.axes}
        for chosen in islice(_combinations(named), MAX_TRIED):
            point = complete(sweep, others | chosen | {axis.name: value})
            if axis.name in point and same_value(point[axis.name], value):
                yield point
                break


def _is_never_active(sweep: Sweep, axis: Axis) -> bool:
    """Whether an axis is never active; not where that cannot be known by trying."""
    named = [each for each in sweep.axes if each.name in _transitive_dependencies(sweep, axis)]
    tried = list(islice(_combinations(named), MAX_TRIED))
    if len(tried) == MAX_TRIED or any(each.labels is None for each in named):
        return False
    return not any(axis.name in complete(sweep, {**chosen, axis.name: end_values(axis)[0]}) for chosen in tried)


def _combinations(axes: list[Axis]) -> Iterator[Point]:
    names = [axis.name for axis in axes]
    for chosen in product(*(end_values(axis) if axis.labels is None else axis.labels for axis in axes)):
        yield dict(zip(names, chosen, strict=True))


def _transitive_dependencies(sweep: Sweep, axis: Axis) -> set[str]:
    """The axes on which one depends, and those on which they depend."""
    found: set[str] = set()
    waiting = set(dependencies(axis))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= {more for each in sweep.axes if each.name == name for more in dependencies(each)} - found
    return found


def _point_faults(sweep: Sweep, point: Point) -> set[Fault]:
    """What the schema has against a point."""
    from composer.recipe.validation import schema_faults

    try:
        return set(schema_faults(apply_point(sweep, point), schema.load()))
    except RecipeError as error:
        return set(error.faults)
