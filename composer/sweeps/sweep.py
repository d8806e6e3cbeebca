"""A sweep: axes, points, goals, resources; the paths of its directory, and sweep.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from composer.atomic_io import parse_json, read_text
from composer.errors import Fault, Mark, RunError, fault_at
from composer.formatting import count_noun
from composer.recipe.schema_reader import scalar_text
from composer.recipe.training_sections import Training
from composer.recipe.yaml_reader import Node
from composer.sweeps.conditions import Condition, holds
from composer.sweeps.size_match import SizeMatch

Value = str | int | float | bool
Point = dict[str, Value]

COSTS = ("parameters", "flops", "state_bytes")
"""Costs of a model, known before it trains and the same for every seed."""


class CostedPoint(Protocol):
    """A point and its costs, by which conditions are decided."""

    @property
    def point(self) -> Point: ...
    @property
    def parameters(self) -> int: ...
    @property
    def flops(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...


@dataclass(frozen=True)
class Goal:
    """A metric, its better direction, and its place in the sweep's file."""

    metric: str
    direction: Literal["min", "max"]
    mark: Mark | None = field(default=None, compare=False, repr=False)

    @property
    def on_validation(self) -> Goal:
        """The goal of the same metric on the validation part."""
        return Goal(self.metric.replace("test/", "val/", 1), self.direction)


DEFAULT_RANK = (Goal("val/loss", "min"),)
SWEEP_AXIS = "sweep"
"""The axis that names the sweep of a trial on a leaderboard of several sweeps."""
ERROR_RATE = 0.05
"""The share of sweeps without any difference in which one is reported."""


@dataclass(frozen=True)
class SearchAlgorithm:
    """The search algorithm; `trials` is None for a grid."""

    kind: Literal["grid", "random", "tpe"]
    trials: int | None = None
    seed: int = 1


@dataclass(frozen=True)
class Pruner:
    """Rule of early stopping. `reduction` is hyperband's, `trials` median's start-up trials."""

    kind: Literal["hyperband", "median"]
    min_steps: int | None = None
    reduction: int = 3
    trials: int = 5

    def first_step(self, max_steps: int | None) -> int:
        """Return the first step at which a trial may be stopped."""
        return self.min_steps or (500 if max_steps is None else max(1, max_steps // 10))


MEMORY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Resources:
    """The resources of one trial; None if the sweep's file does not set them.

    `gpus` is a whole number, or below 1 a share of one that several trials use at once; `memory` is
    in bytes. After `minutes` Slurm ends a worker, and the next one resumes its trial.
    """

    gpus: float | None = None
    cpus: int | None = None
    memory: int | None = None
    minutes: float | None = None

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        """Return the resources of the key `resources` of a sweep, which its schema has checked."""
        memory = settings.get("memory")  # `16G` or `1.5G`
        size = None if memory is None else int(float(memory[:-1]) * MEMORY_UNITS[memory[-1]])
        return cls(settings.get("gpus"), settings.get("cpus"), size, settings.get("minutes"))

    @property
    def trials_per_gpu(self) -> int:
        """The number of trials that share a GPU; a share is never split over two."""
        return int(1 / self.gpus) if self.gpus and self.gpus < 1 else 1

    def describe(self) -> str:
        """Return the resources in words: `2 GPUs, 4 CPUs, 16 GiB`."""
        parts = [count_noun(self.cpus or 1, "CPU")]
        if self.gpus:
            parts.insert(0, count_noun(f"{self.gpus:g}", "GPU"))
        if self.memory:
            parts.append(f"{self.memory / MEMORY_UNITS['G']:.3g} GiB")
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Axis:
    """One dimension of the search space: finite `labels`, in order, or a range `low` to `high`.

    `choices` holds the meaning of each label: a value, blocks, or a recipe that extends the base;
    for a range, the range itself. `node` is the whole mapping of the axis.
    """

    name: str
    kind: Literal["set", "replace", "extend"]
    node: Node = field(repr=False)
    labels: tuple[Value, ...] | None
    choices: tuple[Node, ...] = field(repr=False)
    low: float | int = 0
    high: float | int = 0
    log: bool = False
    integer: bool = False
    when: Condition | None = field(default=None, repr=False)
    zipped: str | None = None

    @property
    def target(self) -> Node:
        """The path or selector as written, or the recipes that extend the base."""
        node: Node = self.node.value[self.kind]
        return node

    @property
    def ends(self) -> tuple[Value, ...]:
        """The first and the last value."""
        return (self.low, self.high) if self.labels is None else (self.labels[0], self.labels[-1])

    def choice(self, value: Value) -> Node:
        """Return the meaning of a value: the node to set, insert or merge."""
        if self.labels is None:
            return Node(value, self.choices[0].mark, text=str(value))
        return self.choices[self.index(value)]

    def index(self, value: Value) -> int:
        """Return the index of a value among the labels. Raises ValueError if it is none of them."""
        return [same_value(value, label) for label in self.labels or ()].index(True)

    def accepts(self, value: Any) -> bool:
        """True if a value is a label of this axis, or within its range."""
        if self.labels is not None:
            return any(same_value(value, label) for label in self.labels)
        if isinstance(value, bool) or not isinstance(value, int if self.integer else (int, float)):
            return False
        return bool(self.low <= value <= self.high)


def same_value(first: Value, second: Value) -> bool:
    """True if two values are equal and of one kind; `true` is not 1."""
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def format_value(value: object) -> str:
    """Format a value of an axis as in `axis=value`; floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else scalar_text(value)


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep: a base recipe, the axes that change it in the file's order, and how it is searched.

    `root` is the sweep's file, `base_root` the base recipe, both with their places; `text` is the
    YAML of a sweep that was made of the recipe `file`. `match` makes all points equally large;
    `overrides` are settings of every point. `where` excludes points; `seeds_where` says which
    points get more than the first seed. A trial that failed is tried again `retries` times.
    `storage` is the URL of the PostgreSQL database of the study, None for a file in the sweep's
    folder.
    """

    name: str
    file: Path
    text: str | None = field(repr=False)
    root: Node = field(repr=False)
    base_root: Node = field(repr=False)
    axes: tuple[Axis, ...]
    match: SizeMatch | None
    overrides: tuple[str, ...]
    where: tuple[Condition, ...]
    search: SearchAlgorithm
    pruner: Pruner | None
    rank: tuple[Goal, ...]
    seeds: tuple[int, ...]
    seeds_where: tuple[Condition, ...]
    retries: int
    resources: Resources
    storage: str | None
    data_dir: Path | None
    fingerprint: str = ""
    """Of everything that decides which trials are run and how they are ranked, without the trials
    and seeds that may be added later, `seeds_where` and `tune`.
    """

    @property
    def base(self) -> Path:
        """The file beside which data files are looked up: the base, or the sweep if it pins one."""
        base = self.root.value["base"].value
        return self.file if isinstance(base, dict) else self.file.parent / base

    def axis(self, name: str) -> Axis | None:
        return next((axis for axis in self.axes if axis.name == name), None)

    @property
    def free_axes(self) -> tuple[Axis, ...]:
        """The axes that a search chooses, without zipped ones, each after those it depends on."""
        return tuple(axis for axis in topological_order(self.axes) if axis.zipped is None)

    def complete(self, chosen: Mapping[str, Value]) -> Point:
        """Return the point of chosen values, without inactive axes and with zipped ones."""
        point: Point = {}
        for axis in topological_order(self.axes):
            if not is_active(axis, point):
                continue
            leader = self.axis(axis.zipped) if axis.zipped is not None else None
            if leader is not None and axis.labels is not None:
                point[axis.name] = axis.labels[leader.index(point[leader.name])]
            elif axis.name in chosen:
                point[axis.name] = chosen[axis.name]
        return {axis.name: point[axis.name] for axis in self.axes if axis.name in point}

    def probe_points(self) -> list[Point]:
        """Return two points: every axis at its first value, and every axis at its last."""
        first = {axis.name: axis.ends[0] for axis in self.axes}
        last = {axis.name: axis.ends[-1] for axis in self.axes}
        return [self.complete(first), self.complete(last)]

    def structure_values(self) -> dict[str, Sequence[Value]]:
        """Return by axis the values that change the structure.

        Those are all labels, both ends of a range of whole numbers, and one end of other ranges.
        """
        values: dict[str, Sequence[Value]] = {}
        for axis in self.axes:
            if axis.zipped is None:
                ends = axis.ends if axis.integer else axis.ends[:1]
                values[axis.name] = axis.labels or ends
        return values

    @property
    def num_structures(self) -> int:
        """The number of combinations of `structure_values`."""
        return math.prod(map(len, self.structure_values().values()))

    def structures(self) -> Iterator[Point]:
        """Yield the point of each combination of `structure_values`, with repetitions."""
        return map(self.complete, combinations(self.structure_values()))

    def seeds_of(self, costed: CostedPoint) -> tuple[int, ...]:
        """Return the seeds of a point: all where `seeds_where` holds, else the first."""
        values = {cost: getattr(costed, cost) for cost in COSTS} | costed.point
        has_all = all(holds(condition, values) for condition in self.seeds_where)
        return self.seeds if has_all else self.seeds[:1]


def topological_order(axes: Sequence[Axis]) -> list[Axis]:
    """Return axes after those that they depend on; axes on a cycle are dropped."""
    ordered: dict[str, Axis] = {}
    left = [*axes]
    while ready := [axis for axis in left if dependencies(axis) <= ordered.keys()]:
        ordered[ready[0].name] = ready[0]
        left.remove(ready[0])
    return [*ordered.values()]


def dependencies(axis: Axis) -> frozenset[str]:
    """Return the names of the axes that this one's `when` and `zip` name."""
    named = axis.when.names if axis.when is not None else frozenset()
    return named | frozenset([axis.zipped] if axis.zipped is not None else [])


def is_active(axis: Axis, point: Mapping[str, Value]) -> bool:
    """True if an axis has a value at a point that has the axes it depends on."""
    if axis.zipped is not None and axis.zipped not in point:
        return False
    return axis.when is None or holds(axis.when, point)


def pruning_warnings(sweep: Sweep, training: Training) -> Iterator[Fault]:
    """Yield warnings if `prune` can stop no trial whose recipe has this `training`."""
    pruner, max_steps, every = sweep.pruner, training.max_steps, training.validate_every or 1
    if pruner is None:
        return
    mark, none = sweep.root.value["prune"].place, "`prune` can stop no trial"
    first = every * math.ceil(pruner.first_step(max_steps) / every)
    if max_steps is not None and first >= max_steps:
        message = f"{none}: it first would after {first:,} steps, and a training has {max_steps:,}"
        hint = "lower `min_steps` or `training.validate_every`, or remove `prune`"
        yield fault_at(mark, "budget", "prune", message, hint).as_warning()
    most = sweep.search.trials or sweep.num_structures
    if pruner.kind == "median" and most <= pruner.trials:
        message = f"{none}: the first {pruner.trials} run to their end, and the sweep has {most}"
        hint = f"write `prune: {{median: {{trials: {max(1, most // 2)}}}}}`, or remove `prune`"
        yield fault_at(mark, "budget", "prune", message, hint).as_warning()


def combinations(values: Mapping[str, Sequence[Value]]) -> Iterator[Point]:
    """Yield every combination of the values of some axes, the first axis slowest."""
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


class SweepDir:
    """Paths inside a sweep's directory. Creating one of these creates no files."""

    def __init__(self, path: Path) -> None:
        self.path, self.trials = path, path / "trials"
        self.sweep, self.record = path / "sweep.yaml", path / "sweep.json"
        self.study = path / "study.journal"


def read_sweep_record(folder: SweepDir) -> dict[str, Any]:
    """Return sweep.json. Raises RunError if it is damaged."""
    try:
        record = parse_json(read_text(folder.record))
        if not isinstance(record, dict) or not isinstance(record.get("name"), str):
            raise ValueError("it is not as a sweep has written it")
    except (OSError, ValueError) as error:
        hint = "name a folder that `seqcomposer sweep` has written; or remove the file, and run the"
        hint += " same command: it is written again, and nothing is trained twice"
        raise RunError.of(f"sweep.json cannot be read: {error}", hint, str(folder.record)) from None
    return record
