"""A sweep in memory: axes, points, which axes are active at a point, goals, search and pruner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from composer.recipe.node import Node
from composer.sweeps.conditions import Condition, holds

Value = str | int | float | bool
Point = dict[str, Value]

COSTS = ("parameters", "flops", "state_bytes")
"""Costs of a model, known before it trains and the same for every seed."""


@dataclass(frozen=True)
class Goal:
    """A metric, and which direction is better."""

    metric: str
    direction: Literal["min", "max"]


DEFAULT_RANK = (Goal("val/loss", "min"),)


@dataclass(frozen=True)
class Search:
    """The search algorithm; `trials` is None for a grid."""

    kind: Literal["grid", "random", "tpe"]
    trials: int | None
    seed: int


@dataclass(frozen=True)
class Pruner:
    """When a trial is stopped early. `reduction` is hyperband's; `trials` is the median's number of start-up trials."""

    kind: Literal["hyperband", "median"]
    min_steps: int
    reduction: int = 3
    trials: int = 5


@dataclass(frozen=True, eq=False)
class Axis:
    """One dimension of the search space: its finite `labels`, in order, or a range from `low` to `high`.

    `choices` holds what each label stands for: a value, blocks, or a recipe that extends the base; for a range it holds
    the range. `target` is the path or selector as written, `node` the whole mapping of the axis.
    """

    name: str
    kind: Literal["set", "replace", "extend"]
    node: Node = field(repr=False)
    target: Node | None = field(repr=False)
    labels: tuple[Value, ...] | None
    choices: tuple[Node, ...] = field(repr=False)
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    integer: bool = False
    when: Condition | None = field(default=None, repr=False)
    zipped: str | None = None

    @property
    def ends(self) -> tuple[Value, ...]:
        """The first and the last value."""
        if self.labels is not None:
            return self.labels[0], self.labels[-1]
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def choice(self, value: Value) -> Node:
        """Return what a value of this axis stands for."""
        if self.labels is None:
            return Node(value, self.choices[0].mark, text=str(value))
        return self.choices[self.index(value)]

    def index(self, value: Value) -> int:
        """Return the index of a value among the labels. Raises ValueError if it is none of them."""
        return [same_value(value, label) for label in self.labels or ()].index(True)

    def accepts(self, value: Any) -> bool:
        """Return whether a value is a label of this axis, or within its range."""
        if self.labels is not None:
            return any(same_value(value, label) for label in self.labels)
        if isinstance(value, bool) or not isinstance(value, int if self.integer else (int, float)):
            return False
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def same_value(one: Value, other: Value) -> bool:
    """Return whether two values are equal and of one kind; `true` is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep that passed all checks. `axes` are in the order of the file.

    `fingerprint` is of everything that decides which trials are run and how they are ranked; trials and seeds, which
    may be added later, are not in it.
    """

    file: Path
    name: str
    base: Path
    axes: tuple[Axis, ...]
    where: tuple[Condition, ...]
    search: Search
    pruner: Pruner | None
    seeds: tuple[int, ...]
    rank: tuple[Goal, ...]
    fingerprint: str
    overrides: tuple[str, ...]
    data_dir: Path | None
    root: Node = field(repr=False)
    base_root: Node = field(repr=False)

    def axis(self, name: str) -> Axis | None:
        """Return the axis of that name."""
        return next((axis for axis in self.axes if axis.name == name), None)

    @property
    def free_axes(self) -> tuple[Axis, ...]:
        """The axes that a search chooses, each after those that its `when` names; `zip` decides the others."""
        return tuple(axis for axis in topological_order(self.axes) if axis.zipped is None)


def topological_order(axes: Sequence[Axis]) -> list[Axis]:
    """Return axes after those that they depend on; axes on a cycle are dropped."""
    ordered: list[Axis] = []
    waiting = list(axes)
    while waiting:
        done = {axis.name for axis in ordered}
        ready = next((axis for axis in waiting if dependencies(axis) <= done), None)
        if ready is None:
            break
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


def dependencies(axis: Axis) -> frozenset[str]:
    """Return the names of the axes that this one's `when` and `zip` name."""
    named = axis.when.names if axis.when is not None else frozenset()
    return named | frozenset([axis.zipped] if axis.zipped is not None else [])


def is_active(axis: Axis, point: Mapping[str, Value]) -> bool:
    """Return whether an axis has a value at a point that has the axes it depends on."""
    if axis.zipped is not None and axis.zipped not in point:
        return False
    return axis.when is None or holds(axis.when, point)


def complete(sweep: Sweep, chosen: Mapping[str, Value]) -> Point:
    """Return the point of the chosen values: inactive axes left out, zipped ones filled in, in the file's order."""
    point: Point = {}
    for axis in topological_order(sweep.axes):
        if not is_active(axis, point):
            continue
        leader = sweep.axis(axis.zipped) if axis.zipped is not None else None
        if leader is not None and axis.labels is not None:
            point[axis.name] = axis.labels[leader.index(point[leader.name])]
        elif axis.name in chosen:
            point[axis.name] = chosen[axis.name]
    return {axis.name: point[axis.name] for axis in sweep.axes if axis.name in point}
