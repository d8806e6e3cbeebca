"""Leaderboard of sweeps: trials ranked by the goals and compared with the best; axes compared."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from composer.errors import RunError
from composer.sweeps.changed_data import changed_data
from composer.sweeps.directory import find_sweep, read_ranked_sweep
from composer.sweeps.leaderboard.axis_groups import group_by_value
from composer.sweeps.sweep import COSTS, ERROR_RATE, SWEEP_AXIS, Goal, Value
from composer.sweeps.trial import (
    State,
    Trial,
    final_score,
    finite,
    missing_records,
    read_log,
    read_trials,
    trial_state,
)

if TYPE_CHECKING:
    from composer.sweeps.leaderboard.significance import Contributions

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One metric of a trial by seed; a cost has seed 0 alone, and `at_most` if an upper bound."""

    values: Mapping[int, float]
    at_most: bool = False

    @property
    def mean(self) -> float:
        return fmean(self.values.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation (n - 1); None of a single value."""
        return stdev(self.values.values()) if len(self.values) > 1 else None


@dataclass(frozen=True)
class TrialResult:
    """A trial on the leaderboard.

    `rank` is None if none of its seeds has finished, or if `better` is the trial that has better
    values of tuned axes. `p_value` is that of its difference to the best of those with several
    seeds, None of that itself and of one with one seed.
    """

    trial: Trial
    state: State
    measured: Mapping[str, Measurement]
    rank: int | None = None
    p_value: float | None = None
    better: Trial | None = None

    @property
    def is_alike(self) -> bool:
        """True if it is not significantly worse than the best."""
        return self.p_value is not None and self.p_value >= ERROR_RATE


@dataclass(frozen=True)
class Leaderboard:
    """The trials of one or several sweeps, by rank, then those without one by their state.

    `axes` has the values of each axis in the file's order, none of a range; `zipped` maps each
    zipped axis to the one it follows. Values of the axes `tuned` are chosen by the first goal on
    validation lines.
    """

    name: str
    folder: Path
    goals: Sequence[Goal]
    axes: Mapping[str, Sequence[Value]]
    zipped: Mapping[str, str]
    tuned: Sequence[str]
    results: Sequence[TrialResult]
    has_same_data: bool = True
    warnings: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """The metric of the first goal, by which trials and axes are compared."""
        return self.goals[0].metric

    @cached_property
    def ranked(self) -> Sequence[TrialResult]:
        return [result for result in self.results if result.rank is not None]

    @cached_property
    def contributions(self) -> Contributions | None:
        """The effects of the axes on the first goal; None if it is a cost, or if no axis varies."""
        if self.metric in COSTS or len(self.ranked) < 2:
            return None
        from composer.sweeps.leaderboard.significance import (
            fit_contributions,  # SciPy takes a while to import
        )

        groups = {}
        for axis, labels in self.axes.items():
            if axis not in self.zipped and axis not in self.tuned:
                groups[axis] = group_by_value(self._values(axis), labels)
        scores = [result.measured[self.metric].values for result in self.ranked]
        fitted = fit_contributions(groups, scores)
        return fitted if fitted.effects else None

    def _values(self, axis: str) -> dict[int, Value]:
        """Return the values of ranked trials by index, in the order of their suggestion."""
        trials = enumerate(result.trial for result in self.ranked)
        by_number = sorted(trials, key=lambda trial: trial[1].number)
        return {index: trial.point[axis] for index, trial in by_number if axis in trial.point}

    def text(self, width: int | None = None) -> str:
        """Return the tables of trials and axes as text, at most `width` columns wide."""
        from composer.sweeps.leaderboard.text import leaderboard_text

        return leaderboard_text(self, width)

    def as_json(self) -> dict[str, object]:
        """Return all but the curves as plain data."""
        from composer.sweeps.leaderboard.plain_data import leaderboard_json

        return leaderboard_json(self)


def open_leaderboard(path: Path, *more: Path) -> Leaderboard:
    """Open the leaderboard of sweeps, given by their directories or by files run in runs/NAME.

    Raises RunError if no sweep has run there, a trial cannot be read or sweeps rank by different
    metrics, and RecipeError if a file cannot be read.
    """
    boards = [open_sweep(sweep) for sweep in (path, *more)]
    return join_leaderboards(boards) if more else boards[0]


def open_sweep(path: Path) -> Leaderboard:
    """Open the leaderboard of one sweep."""
    folder = find_sweep(path)
    sweep = read_ranked_sweep(folder)
    followers = [axis for axis, leader in sweep.zipped.items() if leader in sweep.tune]
    tuned = [*dict.fromkeys((*sweep.tune, *followers))]
    chosen_by = sweep.rank[0].on_validation
    metrics = [goal.metric for goal in sweep.rank]
    if tuned:
        metrics.append(chosen_by.metric)
    trials = read_trials(folder.path)
    active = set[str]().union(*(trial.point for trial in trials))
    results = [
        TrialResult(trial, trial_state(trial), measure_all(trial, metrics)) for trial in trials
    ]
    if tuned:
        results = choose_tuned(results, tuned, chosen_by)
    return Leaderboard(
        name=sweep.name,
        folder=folder.path,
        goals=sweep.rank,
        axes={axis: labels for axis, labels in sweep.labels.items() if axis in active},
        zipped=sweep.zipped,
        tuned=tuned,
        results=rank_results(results, sweep.rank),
        warnings=[*changed_data(trials), *missing_records(folder)],
    )


def join_leaderboards(boards: Sequence[Leaderboard]) -> Leaderboard:
    """Join the leaderboards of several sweeps, which become the first axis.

    Raises RunError if they rank by different metrics, or tune different axes.
    """
    first = boards[0]
    axes: dict[str, Sequence[Value]] = {SWEEP_AXIS: ()}
    zipped: dict[str, str] = {}
    for board in boards:
        check_comparable(first, board)
        for axis, labels in board.axes.items():
            axes.setdefault(axis, labels)
        zipped |= board.zipped
    names = [board.name for board in boards]
    if len({*names}) < len(names):
        names = [str(board.folder) for board in boards]
    return replace(
        first,
        name=" + ".join(names),
        folder=Path(),
        axes=axes,
        zipped=zipped,
        results=rank_results(merge_results(names, boards), first.goals),
        has_same_data=have_same_data(boards),
        warnings=[warning for board in boards for warning in board.warnings],
    )


def check_comparable(first: Leaderboard, second: Leaderboard) -> None:
    """Raise RunError if two sweeps rank by different metrics, or tune different axes."""
    boards = (first, second)
    if first.goals[0] != second.goals[0]:
        goals = [f"`{board.goals[0].metric}: {board.goals[0].direction}`" for board in boards]
        message = f"these sweeps rank by {' and '.join(goals)}, and so cannot be compared"
        hint = "name sweeps whose `rank` begins with the same metric"
        raise RunError.of(message, hint, str(second.folder))
    if {*first.tuned} != {*second.tuned}:
        tuned = [f"`{', '.join(board.tuned) or 'nothing'}`" for board in boards]
        message = f"these sweeps tune {' and '.join(tuned)}, and so cannot be compared"
        hint = "write the same `tune` in both files, and run them again: nothing is trained"
        raise RunError.of(message, hint)


def merge_results(names: Sequence[str], boards: Sequence[Leaderboard]) -> list[TrialResult]:
    """Return the results of all sweeps, with the sweep as first axis.

    A trial of several sweeps is kept once: the one that has a rank, and of those the one with the
    most seeds.
    """
    results: dict[str, TrialResult] = {}
    for name, board in zip(names, boards, strict=True):
        for result in board.results:
            known = results.get(result.trial.fingerprint)
            if known is None or completeness(result) > completeness(known):
                trial = replace(result.trial, point={SWEEP_AXIS: name, **result.trial.point})
                results[trial.fingerprint] = replace(result, trial=trial)
    return [*results.values()]


def completeness(result: TrialResult) -> int:
    """Return a number that is larger the more seeds a trial has, and 0 without a rank."""
    return 0 if result.rank is None else 1 + len(result.trial.records)


def have_same_data(boards: Sequence[Leaderboard]) -> bool:
    """True unless a sweep is known to share no data with the first."""
    first, *others = map(data_fingerprints, boards)
    return not first or not any(map(first.isdisjoint, filter(None, others)))


def data_fingerprints(board: Leaderboard) -> set[str]:
    """Return the fingerprints of the data on which the trials were trained."""
    fingerprints = set()
    for result in board.results:
        for record in result.trial.records.values():
            if record.fingerprints:
                fingerprints.add(record.fingerprints["data"])
    return fingerprints


def choose_tuned(
    results: Sequence[TrialResult], tuned: Collection[str], goal: Goal
) -> list[TrialResult]:
    """Set `better` to the best trial among those that differ only in tuned axes.

    The best is over the seeds that all of these trials have: more seeds make no trial better.
    """
    groups: dict[object, list[TrialResult]] = defaultdict(list)
    for result in results:
        point = result.trial.point
        untuned = frozenset((axis, value) for axis, value in point.items() if axis not in tuned)
        if result.trial.has_scores:
            groups[untuned].append(result)
    better: dict[str, Trial] = {}
    for group in groups.values():
        best = min(group, key=partial(minimised, goal=goal, seeds=shared_seeds(group, goal.metric)))
        others = (result.trial.fingerprint for result in group if result is not best)
        better |= dict.fromkeys(others, best.trial)
    return [replace(result, better=better.get(result.trial.fingerprint)) for result in results]


def shared_seeds(results: Sequence[TrialResult], metric: str) -> set[int]:
    """Return the seeds with which all of these results have a metric."""
    unmeasured = Measurement({})
    seeds = [set(result.measured.get(metric, unmeasured).values) for result in results]
    return set.intersection(*seeds)


def measure_all(trial: Trial, metrics: Sequence[str]) -> dict[str, Measurement]:
    """Return the metrics of a trial that have a value, its costs and its minutes."""
    logs = {} if trial.has_scores else {seed: read_log(trial, seed) for seed in trial.records}
    measured = {}
    for metric in dict.fromkeys((*metrics, *COSTS, "minutes")):
        if metric in COSTS:
            measured[metric] = measure_cost(trial, metric)
        elif values := measure(trial, metric, logs):
            measured[metric] = Measurement(values)
    return measured


def measure(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> dict[int, float]:
    """Return a metric by finished seed or, of a trial without one, the last value of each log."""
    values = {}
    for seed in sorted(trial.records):
        value = None  # of a trial that has a finished seed, others count once they have finished
        if seed in trial.finished_seeds:
            value = final_score(trial, seed, metric)
        elif not trial.has_scores:
            numbers = (finite(row.get(metric)) for row in reversed(logs[seed]))
            value = next((number for number in numbers if number is not None), None)
        if value is not None:
            values[seed] = value
    return values


def measure_cost(trial: Trial, cost: str) -> Measurement:
    """Return a cost of a trial: parameters as trained, where a run has counted them.

    A plan may know only the upper bound of a vocabulary's size.
    """
    if cost == "parameters":
        for record in trial.records.values():
            count = finite(record.parameters)
            if count is not None:
                return Measurement({0: count})
    return Measurement({0: float(getattr(trial, cost))}, trial.at_most)


def rank_results(results: Iterable[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """Return results by rank: by the first goal, then by the others; then those without a rank.

    Entries equal in all goals have equal ranks. A trial that finished without a number for the
    first goal has none, nor has one that another value of a tuned axis beats.
    """
    metric = goals[0].metric
    rest: list[TrialResult] = []
    finished: list[TrialResult] = []
    for result in results:
        is_ranked = result.trial.has_scores and metric in result.measured and result.better is None
        (finished if is_ranked else rest).append(result)
    finished.sort(key=lambda result: sort_key(result, goals))
    keys = [sort_key(result, goals) for result in finished]
    p_values = compare_with_best(finished, metric)
    ranked = []
    for key, result in zip(keys, finished, strict=True):
        p_value = p_values.get(result.trial.fingerprint)
        ranked.append(replace(result, rank=bisect_left(keys, key) + 1, p_value=p_value))
    order = ("finished", "running", "waiting", "stopped", "pruned", "failed")
    return ranked + sorted(rest, key=lambda result: order.index(result.state))


def sort_key(result: TrialResult, goals: Sequence[Goal]) -> list[float]:
    """Return the goals of a result, each the smaller the better."""
    return [minimised(result, goal) for goal in goals]


def minimised(result: TrialResult, goal: Goal, seeds: Collection[int] = ()) -> float:
    """Return a goal's mean over some seeds or all, negated if larger is better, or infinity."""
    measurement = result.measured.get(goal.metric)
    if measurement is None:
        return math.inf
    mean = fmean(measurement.values[seed] for seed in seeds) if seeds else measurement.mean
    return mean if goal.direction == "min" else -mean


def compare_with_best(ranked: Sequence[TrialResult], metric: str) -> dict[str, float]:
    """Return p-values by fingerprint: of trials with several seeds, against the best of these."""
    compared = [result for result in ranked if len(result.measured[metric].values) > 1]
    if not compared:
        return {}
    from composer.sweeps.leaderboard.significance import (
        p_values_to_best,  # SciPy takes a while to import
    )

    p_values = p_values_to_best([result.measured[metric].values for result in compared]) or [1.0]
    fingerprints = [result.trial.fingerprint for result in compared]
    return dict(zip(fingerprints[1:], p_values[1:], strict=True))
