"""A sweep and its trials: axes, points and goals in memory; the sweep directory, trial.json and resuming on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from composer.atomic_io import atomic_write
from composer.errors import RunError
from composer.recipe.node import Node
from composer.run_dir import RunDir, read_metrics
from composer.sweeps.conditions import Condition, holds

Value = str | int | float | bool
Point = dict[str, Value]
Status = Literal["running", "finished", "pruned", "failed"]
ENDED = ("finished", "pruned", "failed")

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


# ------------------------------------------------------------------------------------------- directories and records


class SweepDir:
    """Paths inside a sweep's directory. Creating one of these creates no files."""

    def __init__(self, path: Path) -> None:
        self.path, self.trials = path, path / "trials"
        self.sweep, self.record, self.study = path / "sweep.yaml", path / "sweep.json", path / "study.db"


@dataclass(frozen=True)
class Trial:
    """One trial: a point that was started, as in trial.json, with its directory and the run.json of each seed.

    `value` is the mean over seeds of the first goal. `pruned_at` is the step at which pruning was decided, which is
    never taken back. `error` is what a failed training printed last.
    """

    number: int
    point: Point
    fingerprint: str
    parameters: int
    flops: int
    state_bytes: int
    status: Status
    value: float | None
    pruned_at: int | None
    error: str | None
    folder: Path = field(compare=False)
    seeds: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, compare=False)

    @property
    def recipe(self) -> Path:
        """The recipe of the point: resolved, and runnable as it is."""
        return self.folder / "recipe.yaml"

    def run(self, seed: int) -> Path:
        """Return the run folder of a seed."""
        return self.folder / f"seed-{seed}"

    def log(self, seed: int) -> Path:
        """Return the file of what the training of a seed printed."""
        return self.folder / f"seed-{seed}.log"


TRIAL_KEYS = tuple(key.name for key in fields(Trial) if key.name not in ("folder", "seeds"))
"""The keys of trial.json."""


def write_trial(trial: Trial) -> None:
    """Write trial.json atomically."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    _write_json(trial.folder / "trial.json", {key: getattr(trial, key) for key in TRIAL_KEYS})


def _write_json(file: Path, record: Mapping[str, Any]) -> None:
    atomic_write(file, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


def read_trials(folder: Path) -> list[Trial]:
    """Return every trial of a sweep's directory, in the order in which they were suggested. Raises RunError."""
    trials = [read_trial(path.parent) for path in SweepDir(folder).trials.glob("*/trial.json")]
    return sorted(trials, key=lambda trial: trial.number)


def read_trial(folder: Path) -> Trial:
    """Return the trial in a directory. Raises RunError if trial.json is damaged."""
    file = folder / "trial.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        trial = Trial(**{key: record[key] for key in TRIAL_KEYS}, folder=folder, seeds=read_run_records(folder))
        counts = (trial.number, trial.parameters, trial.flops, trial.state_bytes)
        optional = ((trial.value, int | float), (trial.pruned_at, int), (trial.error, str))
        are_typed = all(value is None or isinstance(value, kind) for value, kind in optional)
        are_typed = are_typed and isinstance(trial.point, dict) and all(isinstance(count, int) for count in counts)
        if not (are_typed and trial.fingerprint == folder.name and trial.status in ("running", *ENDED)):
            raise ValueError("a value in it is of another type")
        return trial
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"remove the folder {folder}: the sweep then runs this point again"
        raise RunError.of(f"trial.json cannot be read: {error!r}", hint, str(file)) from None


def read_run_records(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the run.json of each seed in a trial's directory."""
    runs = {path.name.removeprefix("seed-"): RunDir(path) for path in folder.glob("seed-*") if path.is_dir()}
    started = {int(seed): run for seed, run in runs.items() if seed.isdecimal() and run.record.exists()}
    return {seed: started[seed].read() for seed in sorted(started)}


def read_log(trial: Trial, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a seed's metrics.jsonl; none before it has started."""
    return read_metrics(RunDir(trial.run(seed)).metrics)


def final_score(trial: Trial, seed: int, metric: str) -> float | None:
    """Return the result of a seed: a cost of the plan, a score in run.json, or the last one logged."""
    if metric in COSTS:
        return float(getattr(trial, metric))
    record = trial.seeds.get(seed, {})
    scores = record if metric == "minutes" else record.get("scores", {})
    if isinstance(scores.get(metric), int | float):
        return float(scores[metric])
    logged = [row[metric] for row in read_log(trial, seed) if metric in row]
    return float(logged[-1]) if logged and logged[-1] is not None else None


# ------------------------------------------------------------------------------------------- resuming


def check_resumable(folder: SweepDir, sweep: Sweep) -> None:
    """Raise RunError if this sweep may not be run in a directory; write nothing."""
    path, other = str(folder.path), "name another with `--run DIR`"
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError.of("a sweep needs a folder, and this is a file", other, path)
    if RunDir(folder.path).is_empty():
        return
    if not folder.record.exists():
        raise RunError.of("this folder is not empty, and no sweep has written it", other, path)
    record = read_sweep_record(folder)
    if record.get("fingerprint") != sweep.fingerprint:
        hint = "name another folder with `--run DIR`, or write the sweep as it was"
        before, now = record.get("parts", {}), describe_parts(sweep)
        changes = [
            f"{key} was {before.get(key, 'not there')} and is {now.get(key, 'not there')}"
            for key in dict.fromkeys([*before, *now])
            if before.get(key) != now.get(key)
        ]
        changes = changes or [f"its base recipe, `set`, `with`, `when` or `where` was another ({record.get('file')})"]
        message = "; ".join(changes)
        raise RunError.of(f"this folder is of another sweep: {message}", hint, path)
    if (shrunk := shrink_message(record.get("growable", {}), growable_parts(sweep))) is not None:
        raise RunError.of(shrunk, "write it as it was, or name another folder with `--run DIR`", path)


def write_sweep_record(folder: SweepDir, sweep: Sweep) -> None:
    """Write sweep.yaml and sweep.json into a new directory, and again if trials or seeds were added."""
    if folder.record.exists() and read_sweep_record(folder).get("growable") == growable_parts(sweep):
        return
    folder.trials.mkdir(parents=True, exist_ok=True)
    atomic_write(folder.sweep, sweep.file.read_bytes())
    record = {
        "name": sweep.name,
        "fingerprint": sweep.fingerprint,
        "file": str(sweep.file.absolute()),
        "base": str(sweep.base.absolute()),
        "parts": describe_parts(sweep),
        "growable": growable_parts(sweep),
    }
    _write_json(folder.record, record)  # last, since its presence says that the directory is a sweep's


def read_sweep_record(folder: SweepDir) -> dict[str, Any]:
    """Return sweep.json. Raises RunError if it is damaged."""
    try:
        record = json.loads(folder.record.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not isinstance(record.get("name"), str):
            raise ValueError("it is not as a sweep has written it")
    except (OSError, ValueError) as error:
        hint = "name a folder that `seqcomposer sweep` has written, or put the file back as it was"
        raise RunError.of(f"sweep.json cannot be read: {error}", hint, str(folder.record)) from None
    return record


def describe_parts(sweep: Sweep) -> dict[str, str]:
    """Return each part of a sweep in a line of text, to say in words what differs between two of them."""
    parts = {}
    for axis in sweep.axes:
        scale = f"{'log ' if axis.log else ''}{'int ' if axis.integer else ''}"
        values = f"{scale}{axis.low} to {axis.high}" if axis.labels is None else ", ".join(map(str, axis.labels))
        parts[f"axis `{axis.name}`"] = values
    return parts | {
        "`search`": f"{sweep.search.kind} {sweep.search.trials} {sweep.search.seed}",
        "`prune`": "none" if sweep.pruner is None else str(sweep.pruner),
        "`seeds`": ", ".join(map(str, sweep.seeds)),
        "`rank`": ", ".join(f"{goal.metric} {goal.direction}" for goal in sweep.rank),
    }


def growable_parts(sweep: Sweep) -> dict[str, Any]:
    """Return what a resumed sweep may have more of: trials, and seeds after the earlier ones."""
    return {"trials": sweep.search.trials, "seeds": [*sweep.seeds]}


def shrink_message(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what a resumed sweep has less of than before, in words."""
    trials, seeds = before.get("trials"), before.get("seeds", [])
    if trials is not None and now["trials"] < trials:
        return f"`search` had {trials} trials here and now has {now['trials']}; there may be more, not fewer"
    if now["seeds"][: len(seeds)] != seeds:
        old, new = (", ".join(map(str, numbers)) for numbers in (seeds, now["seeds"]))
        return f"`seeds` were {old} and are {new}; others may come after them, and none may go"
    return None
