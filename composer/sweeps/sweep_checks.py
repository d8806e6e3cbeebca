"""Faults across the keys of a sweep: overrides, ranges of a grid, dependent axes, goals."""

from __future__ import annotations

from collections.abc import Iterator

from composer.errors import Fault, Mark, fault_at
from composer.recipe.yaml_reader import COMMAND_LINE
from composer.suggest import did_you_mean
from composer.sweeps.goals import rank_faults, tune_faults
from composer.sweeps.substitution import key_path
from composer.sweeps.sweep import Axis, Sweep, topological_order

MAX_POINTS = 10_000
"""Points of a grid at most."""


def sweep_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield the faults of a sweep that need none of its points."""
    for check in (_override_faults, _grid_faults, _dependency_faults, rank_faults, tune_faults):
        yield from check(sweep)


def _override_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield overrides that name an axis, or undo one."""
    for override in sweep.overrides:
        name = override.partition("=")[0]
        mark, path = Mark(COMMAND_LINE, 1, 1, len(name), override), key_path(name)
        for axis in sweep.axes:
            target = () if axis.kind == "extend" else key_path(axis.target.value)
            if name == axis.name or (path and target[: len(path)] == path):
                message = f"the axis `{axis.name}` of this sweep changes `{name}`"
                hint = f"remove it, or train one point: `seqcomposer train {sweep.file}"
                hint += f" {axis.name}=...`"
                yield fault_at(mark, "axis", name, message, hint)


def _grid_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield the ranges of a grid, and the fault of a grid that is too large."""
    if sweep.search.kind != "grid":
        return
    for axis in sweep.axes:
        if axis.labels is None:
            message = f"grid search cannot enumerate the range {axis.low} to {axis.high}"
            hint = "write `values: [...]`, or `search: {tpe: {trials: 40}}`"
            yield fault_at(axis.choices[0].place, "grid", f"axes.{axis.name}", message, hint)
    number = sweep.num_structures
    if number > MAX_POINTS:
        message = f"these axes make {number:,} points, and a grid has at most {MAX_POINTS:,}"
        hint = "write `search: {random: {trials: 40}}`"
        yield fault_at(sweep.root.value["axes"].place, "size", "axes", message, hint)


def _dependency_faults(sweep: Sweep) -> list[Fault]:
    """Return the faults of each `zip`, or else of axes that depend on each other."""
    faults: list[Fault] = []
    for axis in sweep.axes:
        if axis.zipped is not None:
            faults += _zip_faults(sweep, axis, axis.zipped)
    ordered = topological_order(sweep.axes)
    cycle = [axis for axis in sweep.axes if axis not in ordered]
    if faults or not cycle:
        return faults
    message = f"these axes depend on each other: {', '.join(axis.name for axis in cycle)}"
    key = cycle[0].node.value.get("when", cycle[0].node.value.get("zip"))
    return [fault_at(key.place, "cycle", f"axes.{cycle[0].name}", message, "break the cycle")]


def _zip_faults(sweep: Sweep, axis: Axis, name: str) -> Iterator[Fault]:
    """Yield the fault of a zipped axis, which needs another one with a list of as many values."""
    leader = sweep.axis(name)
    if leader is None or leader is axis:
        others = [other.name for other in sweep.axes if other is not axis]
        message = f"there is no other axis `{name}`{did_you_mean(name, others)}"
        hint = f"the others are {', '.join(others)}"
    elif leader.zipped or not leader.labels or len(leader.labels) != len(axis.labels or ()):
        message = f"`{axis.name}` cannot follow `{leader.name}`"
        hint = "give both a list of the same number of values, and `zip` to one of them alone"
    else:
        return
    yield fault_at(axis.node.value["zip"].mark, "zip", f"axes.{axis.name}.zip", message, hint)
