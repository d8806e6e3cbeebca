"""Leaderboard of a sweep: trials read from its directory, ranked by the sweep's goals, and the effect of each axis."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pvariance, stdev
from typing import Any

from composer.errors import RunError
from composer.recipe.node import to_data
from composer.recipe.recipe import default_name
from composer.recipe.yaml_reader import read
from composer.run_dir import RUNS
from composer.sweeps.axes import COSTS, DEFAULT_RANK, Goal, Value
from composer.sweeps.trial_dir import SweepDir, Trial, read_log, read_sweep_record, read_trials

UNRANKED_ORDER = {"finished": 0, "running": 1, "pruned": 2, "failed": 3}
MAX_GROUPS = 4
"""Ranges, with equally many trials each, into which an axis of many numbers is cut."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One metric of a trial, by seed; by seed 0 alone where seeds make no difference."""

    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds (n - 1); None of a single one."""
        return stdev(self.values.values()) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Entry:
    """A trial on the leaderboard.

    `rank` is None if it has not finished. `is_alike` says that seeds alone may make its difference to the best. `curve`
    is the metric of the learning curves that its first seed logged, by step.
    """

    trial: Trial
    rank: int | None
    measured: Mapping[str, Measurement]
    tokens_per_second: float | None
    is_alike: bool
    curve: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Leaderboard:
    """A sweep's trials: the finished ones by rank, then the running, pruned and failed ones by number.

    `axes` are those that some trial has, without those in `same`, which have in every trial the very value of the axis
    that `same` maps them to. `zipped` maps each zipped axis to the one it follows.
    """

    name: str
    folder: Path
    goals: Sequence[Goal]
    axes: Sequence[str]
    zipped: Mapping[str, str]
    same: Mapping[str, str]
    curve_metric: str
    entries: Sequence[Entry]

    @property
    def ranked(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.rank is not None]


def open_leaderboard(path: Path) -> Leaderboard:
    """Return the leaderboard of a sweep's directory, or of the sweep file that was run in runs/NAME.

    Raises:
        RunError: If no sweep has run there, or a trial cannot be read.
        RecipeError: If the file cannot be read.
    """
    folder = SweepDir(path if path.is_dir() else default_sweep_dir(path))
    if not folder.record.exists():
        hint = "name the folder that `seqcomposer sweep` has written: runs/NAME, or the one given by `--run`"
        raise RunError.of("no sweep has run here", hint, str(folder.path))
    sweep = to_data(read(folder.sweep, str(folder.sweep)))  # as it was run; the file that the user has may differ now
    goals = [Goal(metric, direction) for goal in sweep.get("rank", ()) for metric, direction in goal.items()]
    goals = goals or list(DEFAULT_RANK)
    zipped = {name: axis["zip"] for name, axis in sweep.get("axes", {}).items() if "zip" in axis}
    curve_metric = next((goal.metric for goal in goals if goal.metric.startswith("val/")), "val/loss")
    entries = rank_entries((make_entry(trial, goals, curve_metric) for trial in read_trials(folder.path)), goals)
    points = [entry.trial.point for entry in entries]
    present = dict.fromkeys(axis for point in points for axis in point)
    same = {
        axis: other
        for axis, other in zipped.items()
        if axis in present and all(point.get(axis) == point.get(other) for point in points)
    }
    axes = [axis for axis in sweep.get("axes", {}) if axis in present and axis not in same]
    name = str(read_sweep_record(folder)["name"])
    return Leaderboard(name, folder.path, goals, axes, zipped, same, curve_metric, entries)


def default_sweep_dir(file: Path) -> Path:
    """Return the directory in which a sweep runs by default. Raises RecipeError if the file cannot be read."""
    sweep = to_data(read(file, str(file)))
    return RUNS / str(sweep.get("name") or default_name(file))


# ------------------------------------------------------------------------------------------- one trial


def make_entry(trial: Trial, goals: Sequence[Goal], curve_metric: str) -> Entry:
    """Return the entry of a trial, without a rank."""
    logs = {seed: read_log(trial, seed) for seed in sorted(trial.seeds)}
    names = dict.fromkeys((*(goal.metric for goal in goals), *COSTS, "minutes"))
    measured = {name: measure(trial, name, logs) for name in names}
    speeds = [speed for rows in logs.values() if (speed := median_speed(rows)) is not None]
    first: Rows = next(iter(logs.values()), [])
    curve = [(float(row["step"]), value) for row in first if (value := finite(row.get(curve_metric))) is not None]
    known = {name: measurement for name, measurement in measured.items() if measurement.values}
    return Entry(trial, None, known, fmean(speeds) if speeds else None, False, curve)


def measure(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> Measurement:
    """Return a metric of a trial by finished seed or, of an unfinished trial, the last value that each seed logged."""
    if metric in COSTS:
        return Measurement({0: known_cost(trial, metric)})
    values = {seed: recorded(record, metric) for seed, record in sorted(trial.seeds.items()) if is_finished(record)}
    if trial.status != "finished":
        values = {seed: values.get(seed, last_logged(rows, metric)) for seed, rows in logs.items()}
    return Measurement({seed: value for seed, value in values.items() if value is not None})


def known_cost(trial: Trial, metric: str) -> float:
    """Return a cost of a trial. Parameters are those trained: a plan knows only the largest size of a vocabulary."""
    counted = [finite(record.get("parameters")) for record in trial.seeds.values()] if metric == "parameters" else []
    return next((count for count in counted if count is not None), float(getattr(trial, metric)))


def is_finished(record: Mapping[str, Any]) -> bool:
    """Return whether a run.json is of a training that ran to its end."""
    return record.get("status") == "finished"


def recorded(record: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric of run.json, or None if it has none or no finite one."""
    return finite(record.get("minutes") if metric == "minutes" else (record.get("scores") or {}).get(metric))


def last_logged(rows: Rows, metric: str) -> float | None:
    """Return the last value that was logged of a metric."""
    return next((value for row in reversed(rows) if (value := finite(row.get(metric))) is not None), None)


def finite(value: Any) -> float | None:
    """Return a finite number, or None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def median_speed(rows: Rows) -> float | None:
    """Return the median of the target tokens per second that a run logged."""
    speeds = [speed for row in rows if (speed := finite(row.get("train/tokens_per_second"))) is not None]
    return median(speeds) if speeds else None


# ------------------------------------------------------------------------------------------- ranks


def rank_entries(entries: Iterable[Entry], goals: Sequence[Goal]) -> list[Entry]:
    """Return entries in their order, those that finished with a rank: by the first goal, then by those after it.

    Entries equal in all goals have equal ranks. One that finished without a number for the first goal has none.
    """
    entries = sorted(entries, key=lambda entry: entry.trial.number)
    metric = goals[0].metric
    rest = [entry for entry in entries if entry.trial.status != "finished" or metric not in entry.measured]
    finished = [entry for entry in entries if entry.trial.status == "finished" and metric in entry.measured]
    finished.sort(key=lambda entry: [minimised(entry, goal) for goal in goals])
    keys = [[minimised(entry, goal) for goal in goals] for entry in finished]
    ranked = []
    for key, entry in zip(keys, finished, strict=True):
        best = finished[0]
        alike = entry is not best and are_alike(entry.measured[metric], best.measured[metric])
        ranked.append(replace(entry, rank=bisect_left(keys, key) + 1, is_alike=alike))
    return ranked + sorted(rest, key=lambda entry: UNRANKED_ORDER[entry.trial.status])


def minimised(entry: Entry, goal: Goal) -> float:
    """Return a goal's mean, negated if larger is better; infinity without a number."""
    measurement = entry.measured.get(goal.metric)
    if measurement is None:
        return math.inf
    return measurement.mean if goal.direction == "min" else -measurement.mean


def are_alike(one: Measurement, other: Measurement) -> bool:
    """Return whether two means differ by no more than the larger of the two standard deviations over seeds."""
    spreads = [measurement.spread for measurement in (one, other) if measurement.spread is not None]
    return bool(spreads) and abs(one.mean - other.mean) <= max(spreads)


# ------------------------------------------------------------------------------------------- effects of axes


@dataclass(frozen=True)
class ValueGroup:
    """The trials that have one value of an axis, or one range of its numbers: mean and spread of their means."""

    name: str
    trials: int
    mean: float
    spread: float | None


@dataclass(frozen=True)
class AxisEffect:
    """The main effect of an axis on the first goal, over the ranked trials in which it is active.

    `zipped` are the axes that take their values with it. `variance` is the share of the variance between trials that
    lies between the groups (eta squared); None where it says nothing: with one group, with no variance, or where no
    group has two trials.
    """

    axis: str
    groups: Sequence[ValueGroup]
    variance: float | None
    zipped: Sequence[str] = ()

    @property
    def trials(self) -> int:
        return sum(group.trials for group in self.groups)

    @property
    def chance(self) -> float | None:
        """The share that an axis without any effect has on average, (groups - 1) / (trials - 1)."""
        return None if self.variance is None else (len(self.groups) - 1) / (self.trials - 1)


def axis_effects(board: Leaderboard) -> list[AxisEffect]:
    """Return the effect of every axis that a ranked trial has, in the sweep's order; zipped ones with their leader."""
    metric = board.goals[0].metric
    effects = []
    for axis in (axis for axis in board.axes if axis not in board.zipped):
        active = [entry for entry in board.ranked if axis in entry.trial.point]
        active.sort(key=lambda entry: entry.trial.number)
        means = {
            name: [entry.measured[metric].mean for entry in entries]
            for name, entries in group_by_value(axis, active).items()
        }
        if means:
            zipped = [other for other in board.zipped if zip_root(board, other) == axis]
            groups = [
                ValueGroup(name, len(values), fmean(values), stdev(values) if len(values) > 1 else None)
                for name, values in means.items()
            ]
            effects.append(AxisEffect(axis, groups, eta_squared(means), zipped))
    return effects


def informative_effects(board: Leaderboard) -> list[AxisEffect]:
    """Return the effects that say more than the table of trials; none if the first goal is known before training."""
    if board.goals[0].metric in COSTS:
        return []
    return [effect for effect in axis_effects(board) if effect.variance is not None]


def zip_root(board: Leaderboard, axis: str) -> str:
    """Follow `zip` to the axis whose values decide."""
    while axis in board.zipped:
        axis = board.zipped[axis]
    return axis


def eta_squared(means: Mapping[str, Sequence[float]]) -> float | None:
    """Return the variance between groups as a share of the total variance; None where it says nothing."""
    values = [value for group in means.values() for value in group]
    total = pvariance(values)
    if total == 0.0 or len(means) < 2 or len(means) == len(values):
        return None
    between = pvariance([fmean(group) for group in means.values() for _ in group])
    return min(1.0, between / total)


def group_by_value(axis: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return entries by their value on an axis: numbers in ascending order, and in ranges if there are many."""
    values = [entry.trial.point[axis] for entry in entries]
    groups: dict[str, list[Entry]] = {}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        entries = sorted(entries, key=lambda entry: float(entry.trial.point[axis]))
        if len(set(values)) > 2 * MAX_GROUPS:
            ends = [len(entries) * part // MAX_GROUPS for part in range(MAX_GROUPS + 1)]
            for start, end in pairwise(ends):
                low, high = entries[start].trial.point[axis], entries[end - 1].trial.point[axis]
                groups.setdefault(f"{format_value(low)} to {format_value(high)}", []).extend(entries[start:end])
            return groups
    for entry in entries:
        groups.setdefault(format_value(entry.trial.point[axis]), []).append(entry)
    return groups


def format_value(value: Value) -> str:
    """Return a value of an axis in words."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
