"""What a sweep is, once it has been read: axes, points, and which axes a point has."""

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


@dataclass(frozen=True)
class Goal:
    """A metric, and which way it is better."""

    metric: str
    direction: Literal["min", "max"]


DEFAULT_RANK = (Goal("val/loss", "min"),)
"""What trials are ranked by where a sweep does not say."""


@dataclass(frozen=True)
class Search:
    """In what order points are tried; `trials` is None for a grid."""

    kind: Literal["grid", "random", "tpe"]
    trials: int | None
    seed: int


@dataclass(frozen=True)
class Pruner:
    """When a trial is stopped. `reduction` is hyperband's, `trials` the median's."""

    kind: Literal["hyperband", "median"]
    min_steps: int
    reduction: int = 3
    trials: int = 5


@dataclass(frozen=True, eq=False)
class Axis:
    """One thing in which points differ: its finite `labels`, in order, or a range from `low` to `high`.

    `choices` says for each label what it stands for: a value, blocks, or a recipe that is laid over the base; of a
    range it is the range. `target` is the path or selector as it is written, `node` all that is written of the axis.
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
    whole: bool = False
    when: Condition | None = field(default=None, repr=False)
    zipped: str | None = None

    def choice(self, value: Value) -> Node:
        """What a value of this axis stands for."""
        if self.labels is None:
            return Node(value, self.choices[0].mark, text=str(value))
        return self.choices[self.index(value)]

    def index(self, value: Value) -> int:
        """Which of its labels a value is. Raises ValueError where it is none."""
        return [same_value(value, label) for label in self.labels or ()].index(True)

    def takes(self, value: Any) -> bool:
        """Whether a value is one of its own."""
        if self.labels is not None:
            return any(same_value(value, label) for label in self.labels)
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def same_value(one: Value, other: Value) -> bool:
    """Whether two values are one; `true` is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep that holds together. `axes` are in the order of the file; `fingerprint` is of all that decides."""

    file: Path
    name: str
    base: Path
    axes: tuple[Axis, ...]
    where: tuple[Condition, ...]
    search: Search
    prune: Pruner | None
    seeds: tuple[int, ...]
    rank: tuple[Goal, ...]
    fingerprint: str
    overrides: tuple[str, ...]
    data_dir: Path | None
    root: Node = field(repr=False)
    base_root: Node = field(repr=False)

    def axis(self, name: str) -> Axis | None:
        """The axis of that name."""
        return next((axis for axis in self.axes if axis.name == name), None)

    @property
    def asked(self) -> tuple[Axis, ...]:
        """The axes that a search chooses, each after those that its `when` names; the others follow by `zip`."""
        return tuple(axis for axis in topological_order(self.axes) if axis.zipped is None)


def topological_order(axes: Sequence[Axis]) -> list[Axis]:
    """Axes after those that they depend on, else as they were; without those that depend on themselves."""
    ordered: list[Axis] = []
    waiting = list(axes)
    while waiting:
        done = {axis.name for axis in ordered}
        free = next((axis for axis in waiting if dependencies(axis) <= done), None)
        if free is None:
            break
        ordered.append(free)
        waiting.remove(free)
    return ordered


def dependencies(axis: Axis) -> frozenset[str]:
    """The axes on which one depends."""
    named = axis.when.names if axis.when is not None else frozenset()
    return named | frozenset([axis.zipped] if axis.zipped is not None else [])


def is_active(axis: Axis, point: Mapping[str, Value]) -> bool:
    """Whether an axis has a value beside those of a point, which has all that it depends on."""
    if axis.zipped is not None and axis.zipped not in point:
        return False
    return axis.when is None or holds(axis.when, point)


def complete(sweep: Sweep, chosen: Mapping[str, Value]) -> Point:
    """The point of what was chosen: without what is inactive, and with what follows by `zip`, in the file's order."""
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
