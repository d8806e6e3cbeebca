"""What the language of recipes has against the values and blocks of a sweep, before any point is planned.

A choice is tried in two points, among the first choices of the other axes and among their last, with its own `when`
kept. What is wrong in both is the choice's fault; what is wrong in all points that are tried, the base's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

from composer.errors import Fault, RecipeError
from composer.recipe import schema
from composer.recipe.node import fault_at
from composer.sweeps.axes import Axis, Point, Sweep, Value, complete, needs, same
from composer.sweeps.tree_edits import edited

MOST_TRIED = 256
"""So many combinations of the axes that a `when` names are looked at for one where it holds."""


def wrong_choices(sweep: Sweep) -> set[Fault]:
    """The faults of choices at their lines, and those that every point has."""
    own: set[Fault] = set()
    everywhere: set[Fault] | None = None
    for axis in sweep.axes:
        for value in ends(axis) if axis.labels is None else axis.labels:
            found = [_faults(sweep, point) for point in _with_choice(sweep, axis, value)]
            own |= {fault for fault in set.intersection(*found) if fault.file == str(sweep.file)} if found else set()
            everywhere = (
                set.intersection(*found, *([] if everywhere is None else [everywhere])) if found else everywhere
            )
        if axis.when is not None and _never(sweep, axis):
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


def tried_points(sweep: Sweep) -> Iterator[Point]:
    """Two points: of every axis its first choice, and its last."""
    for end in (0, -1):
        yield complete(sweep, {axis.name: ends(axis)[end] for axis in sweep.axes})


def ends(axis: Axis) -> tuple[Value, ...]:
    """The first and the last value of an axis."""
    if axis.labels is not None:
        return axis.labels[0], axis.labels[-1]
    assert axis.low is not None
    assert axis.high is not None
    return axis.low, axis.high


def _with_choice(sweep: Sweep, axis: Axis, value: Value) -> Iterator[Point]:
    """The tried points, changed as little as it takes for the axis to have that value."""
    named = [each for each in sweep.axes if each.name in _all_needs(sweep, axis)]
    for end in (0, -1):
        others = {each.name: ends(each)[end] for each in sweep.axes}
        for chosen in islice(_choices(named), MOST_TRIED):
            point = complete(sweep, others | chosen | {axis.name: value})
            if axis.name in point and same(point[axis.name], value):
                yield point
                break


def _never(sweep: Sweep, axis: Axis) -> bool:
    """Whether an axis is never active; not where that cannot be known by trying."""
    named = [each for each in sweep.axes if each.name in _all_needs(sweep, axis)]
    tried = list(islice(_choices(named), MOST_TRIED))
    if len(tried) == MOST_TRIED or any(each.labels is None for each in named):
        return False
    return not any(axis.name in complete(sweep, {**chosen, axis.name: ends(axis)[0]}) for chosen in tried)


def _choices(axes: list[Axis]) -> Iterator[Point]:
    names = [axis.name for axis in axes]
    for chosen in product(*(ends(axis) if axis.labels is None else axis.labels for axis in axes)):
        yield dict(zip(names, chosen, strict=True))


def _all_needs(sweep: Sweep, axis: Axis) -> set[str]:
    """The axes on which one depends, and those on which they depend."""
    found: set[str] = set()
    waiting = set(needs(axis))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= {more for each in sweep.axes if each.name == name for more in needs(each)} - found
    return found


def _faults(sweep: Sweep, point: Point) -> set[Fault]:
    """What the schema has against a point."""
    from composer.recipe.validation import schema_faults

    try:
        return set(schema_faults(edited(sweep, point), schema.load()))
    except RecipeError as error:
        return set(error.faults)
