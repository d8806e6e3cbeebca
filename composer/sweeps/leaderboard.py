"""What came of a sweep's trials, in order of how good they are. Reads the sweep's folder and nothing else."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from composer.run_dir import RunDir
from composer.sweeps.search_space import Goal
from composer.sweeps.trial_dir import Trial, read_trials
from composer.training.metrics_logger import read_rows

EXACT = ("parameters", "flops", "state_bytes")
"""What is known of a trial before it trains, the same for every seed."""
ORDER = {"finished": 0, "running": 1, "pruned": 2, "failed": 3}
"""In which order those that have no rank are listed."""
SPEED = "train/tokens_per_second"

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measured:
    """What one metric was for the seeds of a trial, by seed; for seed 0 alone where seeds make no difference."""

    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, as n - 1 of n values tell it; None of a single one."""
        return stdev(self.values.values()) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Entry:
    """A trial's place. `rank` is None of what has not finished; `is_alike`: the seeds may make its difference to the
    best. `curve` is what the first seed logged of the metric that the curves show, by step."""

    trial: Trial
    rank: int | None
    measured: Mapping[str, Measured]
    tokens_per_second: float | None
    is_alike: bool
    curve: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Board:
    """A sweep's trials: the finished ones by rank, then the running, pruned and failed ones by number.

    `axes`: those that some trial has, but for `same`: those that have the very same value in every trial as the axis
    beside which they stand there. `zipped`: which axes take their values with which.
    """

    name: str
    folder: Path
    goals: Sequence[Goal]
    axes: Sequence[str]
    zipped: Mapping[str, str]
    same: Mapping[str, str]
    watched: str
    entries: Sequence[Entry]

    @property
    def ranked(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.rank is not None]


def board(name: str, folder: Path, goals: Sequence[Goal], axes: Sequence[str], zipped: Mapping[str, str]) -> Board:
    """The trials in a sweep's folder, by the sweep's goals. Raises RunError where a trial cannot be read."""
    watched = watched_of(goals)
    entries = ranked((entry_of(trial, goals, watched) for trial in read_trials(folder)), goals)
    there = dict.fromkeys(axis for entry in entries for axis in entry.trial.point)
    same = {axis: other for axis, other in zipped.items() if axis in there and are_one(entries, axis, other)}
    told = [axis for axis in axes if axis in there and axis not in same]
    return Board(name, folder, goals, told, zipped, same, watched, entries)


def are_one(entries: Sequence[Entry], axis: str, other: str) -> bool:
    """Whether two axes have the same value in every trial."""
    return all(entry.trial.point.get(axis) == entry.trial.point.get(other) for entry in entries)


def watched_of(goals: Sequence[Goal]) -> str:
    """The metric of the curves: the first goal that validations measure."""
    return next((goal.metric for goal in goals if goal.metric.startswith("val/")), "val/loss")


# ------------------------------------------------------------------------------------------- one trial


def entry_of(trial: Trial, goals: Sequence[Goal], watched: str) -> Entry:
    """What a trial's folders tell, before it has a rank."""
    logs = {seed: rows_of(trial, seed) for seed in sorted(trial.seeds)}
    names = dict.fromkeys((*(goal.metric for goal in goals), *EXACT, "minutes"))
    found = {name: measured(trial, name, logs) for name in names}
    speeds = [speed for rows in logs.values() if (speed := pace(rows)) is not None]
    first = next(iter(logs.values()), ())
    return Entry(
        trial,
        None,
        {name: each for name, each in found.items() if each.values},
        fmean(speeds) if speeds else None,
        False,
        curve(first, watched),
    )


def rows_of(trial: Trial, seed: int) -> Rows:
    """What a seed has logged; nothing where it has not begun."""
    file = RunDir(trial.run(seed)).metrics
    return read_rows(file) if file.is_file() else []


def measured(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> Measured:
    """A metric of a trial: of seeds that have finished; where the trial has not, what was last logged of each."""
    if metric in EXACT:
        return Measured({0: exact(trial, metric)})
    done = {seed: told_by(record, metric) for seed, record in sorted(trial.seeds.items()) if is_finished(record)}
    if trial.status != "finished":
        done = {seed: done.get(seed, last(rows, metric)) for seed, rows in logs.items()}
    return Measured({seed: value for seed, value in done.items() if value is not None})


def exact(trial: Trial, metric: str) -> float:
    """What is known before a trial trains; of parameters what was trained, since a plan knows no vocabulary's size."""
    counted = [number(record.get("parameters")) for record in trial.seeds.values()] if metric == "parameters" else []
    return next((each for each in counted if each is not None), float(getattr(trial, metric)))


def is_finished(record: Mapping[str, Any]) -> bool:
    """Whether a run.json is one of a training that came to its end."""
    return record.get("status") == "finished"


def told_by(record: Mapping[str, Any], metric: str) -> float | None:
    """A metric as run.json has it; None where it has none, or what is no number."""
    return number(record.get("minutes") if metric == "minutes" else (record.get("scores") or {}).get(metric))


def last(rows: Rows, metric: str) -> float | None:
    """What was logged last of a metric."""
    return next((value for row in reversed(rows) if (value := number(row.get(metric))) is not None), None)


def number(value: Any) -> float | None:
    """A finite number; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def pace(rows: Rows) -> float | None:
    """Target tokens a second, of half the rows more and of half less."""
    found = [speed for row in rows if (speed := number(row.get(SPEED))) is not None]
    return median(found) if found else None


def curve(rows: Rows, metric: str) -> list[tuple[float, float]]:
    """A metric by step."""
    return [(float(row["step"]), value) for row in rows if (value := number(row.get(metric))) is not None]


# ------------------------------------------------------------------------------------------- the order


def ranked(entries: Iterable[Entry], goals: Sequence[Goal]) -> list[Entry]:
    """The entries in their order, those that finished with a rank: by the first goal, then by those after it.

    Equal in all goals is equal in rank. What has finished without a number for the first goal has no rank.
    """
    every = sorted(entries, key=lambda entry: entry.trial.number)
    in_race = [entry for entry in every if is_in_race(entry, goals)]
    rest = [entry for entry in every if not is_in_race(entry, goals)]
    in_race.sort(key=lambda entry: worth(entry, goals))
    worths = [worth(entry, goals) for entry in in_race]
    placed = [
        placed_at(entry, bisect_left(worths, worth(entry, goals)) + 1, in_race[0], goals[0].metric) for entry in in_race
    ]
    return placed + sorted(rest, key=lambda entry: ORDER[entry.trial.status])


def is_in_race(entry: Entry, goals: Sequence[Goal]) -> bool:
    """Whether an entry can be compared with others."""
    return entry.trial.status == "finished" and goals[0].metric in entry.measured


def worth(entry: Entry, goals: Sequence[Goal]) -> list[float]:
    """The means of all goals, each smaller where it is better."""
    return [loss(entry, goal) for goal in goals]


def loss(entry: Entry, goal: Goal) -> float:
    """A goal's mean, smaller where it is better; without a number it is worse than any."""
    found = entry.measured.get(goal.metric)
    if found is None:
        return math.inf
    return found.mean if goal.direction == "min" else -found.mean


def placed_at(entry: Entry, rank: int, best: Entry, metric: str) -> Entry:
    """An entry at its rank."""
    alike = entry is not best and are_alike(entry.measured[metric], best.measured[metric])
    return replace(entry, rank=rank, is_alike=alike)


def are_alike(one: Measured, other: Measured) -> bool:
    """Whether two means differ by no more than the larger of the two standard deviations over seeds."""
    spreads = [each.spread for each in (one, other) if each.spread is not None]
    return bool(spreads) and abs(one.mean - other.mean) <= max(spreads)
