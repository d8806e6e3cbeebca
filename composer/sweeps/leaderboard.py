"""What came of a sweep's trials, in order of how good they are. Reads the sweep's folder and nothing else."""

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
from composer.run_dir import RUNS, RunDir, read_metrics
from composer.sweeps.axes import DEFAULT_RANK, Goal
from composer.sweeps.trial_dir import SweepDir, Trial, read_sweep_record, read_trials

EXACT = ("parameters", "flops", "state_bytes")
"""What is known of a trial before it trains, the same for every seed."""
ORDER = {"finished": 0, "running": 1, "pruned": 2, "failed": 3}
"""In which order those that have no rank are listed."""
SPEED = "train/tokens_per_second"

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
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
    measured: Mapping[str, Measurement]
    tokens_per_second: float | None
    is_alike: bool
    curve: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Leaderboard:
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


def build_leaderboard(
    name: str, folder: Path, goals: Sequence[Goal], axes: Sequence[str], zipped: Mapping[str, str]
) -> Leaderboard:
    """The trials in a sweep's folder, by the sweep's goals. Raises RunError where a trial cannot be read."""
    watched = watched_of(goals)
    entries = ranked((entry_of(trial, goals, watched) for trial in read_trials(folder)), goals)
    there = dict.fromkeys(axis for entry in entries for axis in entry.trial.point)
    same = {axis: other for axis, other in zipped.items() if axis in there and are_one(entries, axis, other)}
    told = [axis for axis in axes if axis in there and axis not in same]
    return Leaderboard(name, folder, goals, told, zipped, same, watched, entries)


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
    return read_metrics(file)


def measured(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> Measurement:
    """A metric of a trial: of seeds that have finished; where the trial has not, what was last logged of each."""
    if metric in EXACT:
        return Measurement({0: exact(trial, metric)})
    done = {seed: told_by(record, metric) for seed, record in sorted(trial.seeds.items()) if is_finished(record)}
    if trial.status != "finished":
        done = {seed: done.get(seed, last(rows, metric)) for seed, rows in logs.items()}
    return Measurement({seed: value for seed, value in done.items() if value is not None})


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
    return [minimised(entry, goal) for goal in goals]


def minimised(entry: Entry, goal: Goal) -> float:
    """A goal's mean, smaller where it is better; without a number it is worse than any."""
    found = entry.measured.get(goal.metric)
    if found is None:
        return math.inf
    return found.mean if goal.direction == "min" else -found.mean


def placed_at(entry: Entry, rank: int, best: Entry, metric: str) -> Entry:
    """An entry at its rank."""
    alike = entry is not best and are_alike(entry.measured[metric], best.measured[metric])
    return replace(entry, rank=rank, is_alike=alike)


def are_alike(one: Measurement, other: Measurement) -> bool:
    """Whether two means differ by no more than the larger of the two standard deviations over seeds."""
    spreads = [each.spread for each in (one, other) if each.spread is not None]
    return bool(spreads) and abs(one.mean - other.mean) <= max(spreads)


def open_leaderboard(path: Path) -> Leaderboard:
    """The trials of the sweep in a folder, or of a file's sweep in runs/NAME. Raises RunError and RecipeError."""
    folder = SweepDir(path if path.is_dir() else default_sweep_dir(path))
    if not folder.record.exists():
        fix = "name the folder that `seqcomposer sweep` has written: runs/NAME, or what `--run` said"
        raise RunError.of("no sweep has run here", fix, str(folder.path))
    # the sweep as it was run: what lies beside its file now may be another
    told = to_data(read(folder.sweep, str(folder.sweep)))
    goals = [Goal(metric, direction) for each in told.get("rank", ()) for metric, direction in each.items()]
    axes = told.get("axes", {})
    zipped = {name: axis["zip"] for name, axis in axes.items() if "zip" in axis}
    return build_leaderboard(
        str(read_sweep_record(folder)["name"]), folder.path, goals or DEFAULT_RANK, list(axes), zipped
    )


def default_sweep_dir(file: Path) -> Path:
    """Where a sweep runs if nothing else is said. Raises RecipeError where the file cannot be read."""
    told = to_data(read(file, str(file)))
    return RUNS / str(told.get("name") or default_name(file))


def leaderboard_json(board: Leaderboard) -> dict[str, Any]:
    """All of a leaderboard but the curves."""
    return {
        "name": board.name,
        "rank": [{goal.metric: goal.direction} for goal in board.goals],
        "axes": [*board.axes, *board.same],
        "trials": [*map(trial_of, board.entries)],
        "contributions": [*map(contribution_of, axis_effects(board))],
    }


def trial_of(entry: Entry) -> dict[str, Any]:
    """One trial. Numbers that are the same for every seed stand by themselves, the others under `measured`."""
    trial = entry.trial
    measures = {
        name: {"mean": each.mean, "spread": each.spread, "seeds": {str(seed): x for seed, x in each.values.items()}}
        for name, each in entry.measured.items()
        if name not in EXACT
    }
    return {
        "rank": entry.rank,
        "number": trial.number,
        "fingerprint": trial.fingerprint,
        "point": dict(trial.point),
        "status": trial.status,
        "pruned_at": trial.pruned_at,
        "error": trial.error,
        "alike": entry.is_alike,
        **{name: round(entry.measured[name].mean) for name in EXACT},
        "tokens_per_second": entry.tokens_per_second,
        "measured": measures,
        "folder": str(trial.folder),
    }


def contribution_of(found: AxisEffect) -> dict[str, Any]:
    """What one axis contributes to the first goal."""
    choices = [
        {"choice": each.name, "trials": each.trials, "mean": each.mean, "spread": each.spread} for each in found.choices
    ]
    return {"axes": [found.axis, *found.beside], "share": found.share, "chance": found.chance, "choices": choices}


RANGES = 4
"""Into how many ranges, with equally many trials each, an axis of many numbers is cut."""
Value = str | int | float | bool


@dataclass(frozen=True)
class ValueGroup:
    """The trials that have one choice of an axis, or one range of its numbers: mean and spread of their means."""

    name: str
    trials: int
    mean: float
    spread: float | None


@dataclass(frozen=True)
class AxisEffect:
    """An axis over the ranked trials in which it is active; `beside` it those that take their values with it.

    `share`: of the variance of their means, what lies between the choices (eta squared); None where it says nothing:
    with one choice, with no variance, or where no choice has two trials. `chance`: the share that an axis without any
    effect has on average, (choices - 1) / (trials - 1), where the trials' values are in any order.
    """

    axis: str
    choices: Sequence[ValueGroup]
    share: float | None
    beside: Sequence[str] = ()

    @property
    def trials(self) -> int:
        return sum(each.trials for each in self.choices)

    @property
    def chance(self) -> float | None:
        return None if self.share is None else (len(self.choices) - 1) / (self.trials - 1)


def axis_effects(board: Leaderboard) -> list[AxisEffect]:
    """Every axis that some ranked trial has, in the sweep's order; zipped ones once, by the name of the first."""
    metric = board.goals[0].metric
    found = []
    for axis in (each for each in board.axes if each not in board.zipped):
        active = sorted((each for each in board.ranked if axis in each.trial.point), key=lambda each: each.trial.number)
        groups = group_by_value(axis, active)
        means = {name: [each.measured[metric].mean for each in group] for name, group in groups.items()}
        if means:
            beside = [each for each in board.zipped if zip_root(board, each) == axis]
            choices = [summarize_group(name, values) for name, values in means.items()]
            found.append(AxisEffect(axis, choices, eta_squared(means), beside))
    return found


def informative_effects(board: Leaderboard) -> list[AxisEffect]:
    """The axes of which there is more to tell than the table of the trials does; none of what is known beforehand."""
    return [] if board.goals[0].metric in EXACT else [each for each in axis_effects(board) if each.share is not None]


def zip_root(board: Leaderboard, axis: str) -> str:
    """The axis that says which values a zipped one takes, be it zipped to it through others."""
    while axis in board.zipped:
        axis = board.zipped[axis]
    return axis


def summarize_group(name: str, values: Sequence[float]) -> ValueGroup:
    """What came of the trials that have a choice."""
    return ValueGroup(name, len(values), fmean(values), stdev(values) if len(values) > 1 else None)


def eta_squared(means: dict[str, list[float]]) -> float | None:
    """Eta squared: the variance between groups over the whole variance."""
    every = [value for group in means.values() for value in group]
    whole = pvariance(every)
    if whole == 0.0 or len(means) < 2 or len(means) == len(every):
        return None
    between = pvariance([fmean(group) for group in means.values() for _ in group])
    return min(1.0, between / whole)


# ------------------------------------------------------------------------------------------- groups


def group_by_value(axis: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries by their choice on an axis; numbers in their order, and in ranges where there are many."""
    values = [entry.trial.point[axis] for entry in entries]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        entries = sorted(entries, key=lambda entry: float(entry.trial.point[axis]))
        if len(set(values)) > 2 * RANGES:
            return group_by_range(axis, entries)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(format_value(entry.trial.point[axis]), []).append(entry)
    return groups


def group_by_range(axis: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries in the order of an axis, cut into ranges with as many trials each, as far as that goes."""
    ends = [len(entries) * part // RANGES for part in range(RANGES + 1)]
    groups: dict[str, list[Entry]] = {}
    for start, end in pairwise(ends):
        part = entries[start:end]
        name = f"{format_value(part[0].trial.point[axis])} to {format_value(part[-1].trial.point[axis])}"
        groups.setdefault(name, []).extend(part)
    return groups


def format_value(value: Value) -> str:
    """A choice as it is named."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
