"""Leaderboard of sweeps: trials ranked by the goals and compared with the best; Pareto front."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from composer.errors import RunError
from composer.metrics.table import logged_key
from composer.run_dir import seed_dirs
from composer.sweeps.directory import find_sweep, read_ranked_sweep
from composer.sweeps.sweep import (
    COSTS,
    ERROR_RATE,
    SWEEP_AXIS,
    Goal,
    Value,
)
from composer.sweeps.trial import (
    State,
    Trial,
    final_score,
    finite,
    read_log,
    read_trials,
    trial_state,
)

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
    seeds, None of that itself and of one with one seed. `curve` is the metric of the learning
    curves that its first seed logged, by step.
    """

    trial: Trial
    state: State
    rank: int | None
    measured: Mapping[str, Measurement]
    curve: Sequence[tuple[float, float]]
    p_value: float | None = None
    better: Trial | None = None

    @property
    def is_alike(self) -> bool:
        """True if it is not significantly worse than the best."""
        return self.p_value is not None and self.p_value >= ERROR_RATE


@dataclass(frozen=True)
class Leaderboard:
    """The trials of one or several sweeps, by rank, then those without one by their state.

    `zipped` maps each zipped axis to the one it follows, `labels` each axis with a list of values
    to that list, and `tuned` each axis of `tune` to the validation metric that chose its value.
    """

    name: str
    folder: Path
    goals: Sequence[Goal]
    axes: Sequence[str]
    zipped: Mapping[str, str]
    curve_metric: str
    results: Sequence[TrialResult]
    labels: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    tuned: Mapping[str, str] = field(default_factory=dict)
    has_same_data: bool = True

    @property
    def ranked(self) -> list[TrialResult]:
        return [result for result in self.results if result.rank is not None]

    def text(self, width: int | None = None) -> str:
        """Return the tables of trials and axes as text, at most `width` columns wide."""
        from composer.sweeps.leaderboard_text import leaderboard_text

        return leaderboard_text(self, width)

    def as_json(self) -> dict[str, object]:
        """Return all but the curves as plain data."""
        from composer.sweeps.leaderboard_text import leaderboard_json

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
    trials = read_trials(folder.path)
    chosen_by = sweep.rank[0].on_validation
    tuned = dict.fromkeys(sweep.tune, chosen_by.metric)
    for axis, leader in sweep.zipped.items():
        if leader in tuned:
            tuned[axis] = chosen_by.metric
    metrics = dict.fromkeys(goal.metric for goal in sweep.rank)
    metrics |= dict.fromkeys((*tuned.values(), *COSTS, "minutes"))
    curve_metric = find_curve_metric(sweep.rank, trials)
    results = [trial_result(trial, list(metrics), curve_metric) for trial in trials]
    active = set[str]().union(*(trial.point for trial in trials))
    return Leaderboard(
        name=sweep.name,
        folder=folder.path,
        goals=sweep.rank,
        axes=[axis for axis in sweep.labels if axis in active],
        zipped=sweep.zipped,
        curve_metric=curve_metric,
        results=rank_results(choose_tuned(results, tuned, chosen_by), sweep.rank),
        labels={axis: labels for axis, labels in sweep.labels.items() if labels},
        tuned=tuned,
    )


def find_curve_metric(rank: Sequence[Goal], trials: Sequence[Trial]) -> str:
    """Return the logged metric of the learning curves: that of the first validation goal."""
    validated = (goal.metric for goal in rank if goal.metric.startswith("val/"))
    rows: list[Mapping[str, Any]] = []
    for trial in trials:
        if trial.records:
            rows += read_log(trial, min(trial.records))
    return logged_key(rows, next(validated, "val/loss"))


def join_leaderboards(boards: Sequence[Leaderboard]) -> Leaderboard:
    """Join the leaderboards of several sweeps, which become the first axis.

    Raises RunError if they rank by different metrics, or tune different axes.
    """
    first = boards[0]
    axes, labels = {SWEEP_AXIS: None}, dict[str, Sequence[Value]]()
    zipped, tuned = dict[str, str](), dict[str, str]()
    for board in boards:
        check_comparable(first, board)
        axes |= dict.fromkeys(board.axes)
        labels = {**board.labels, **labels}
        zipped |= board.zipped
        tuned |= board.tuned
    names = [board.name for board in boards]
    if len({*names}) < len(names):
        names = [str(board.folder) for board in boards]
    return Leaderboard(
        name=" + ".join(names),
        folder=Path(),
        goals=first.goals,
        axes=[*axes],
        zipped=zipped,
        curve_metric=first.curve_metric,
        results=rank_results(merge_results(names, boards), first.goals),
        labels=labels,
        tuned=tuned,
        has_same_data=have_same_data(boards),
    )


def check_comparable(first: Leaderboard, second: Leaderboard) -> None:
    """Raise RunError if two sweeps rank by different metrics, or tune different axes."""
    goals = [f"`{board.goals[0].metric}: {board.goals[0].direction}`" for board in (first, second)]
    if first.goals[0] != second.goals[0]:
        message = f"these sweeps rank by {' and '.join(goals)}, and so cannot be compared"
        hint = "name sweeps whose `rank` begins with the same metric"
        raise RunError.of(message, hint, str(second.folder))
    tuned = [f"`{', '.join(board.tuned) or 'nothing'}`" for board in (first, second)]
    if first.tuned.keys() != second.tuned.keys():
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
            fingerprint = result.trial.fingerprint
            known = results.get(fingerprint)
            if known is None or is_more_complete(result, known):
                trial = replace(result.trial, point={SWEEP_AXIS: name, **result.trial.point})
                results[fingerprint] = replace(result, trial=trial)
    return [*results.values()]


def is_more_complete(result: TrialResult, known: TrialResult) -> bool:
    """True if a result has a rank, and the known one of its trial has none or fewer seeds."""
    if result.rank is None:
        return False
    return known.rank is None or len(result.trial.records) > len(known.trial.records)


def have_same_data(boards: Sequence[Leaderboard]) -> bool:
    """True unless a sweep is known to share no data with the first."""
    first, *others = map(data_fingerprints, boards)
    known = [fingerprints for fingerprints in others if fingerprints]
    return not first or not any(map(first.isdisjoint, known))


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
        if tuned and result.trial.has_scores:
            groups[untuned_point(result, tuned)].append(result)
    best = {}
    for point, group in groups.items():
        seeds = shared_seeds(group, goal.metric)
        best[point] = min(group, key=partial(minimised, goal=goal, seeds=seeds))
    chosen = []
    for result in results:
        winner = best.get(untuned_point(result, tuned), result)
        is_beaten = winner is not result and result.trial.has_scores
        chosen.append(replace(result, better=winner.trial) if is_beaten else result)
    return chosen


def untuned_point(result: TrialResult, tuned: Collection[str]) -> frozenset[tuple[str, Value]]:
    """Return the point of a trial without its tuned axes."""
    point = result.trial.point
    return frozenset((axis, value) for axis, value in point.items() if axis not in tuned)


def shared_seeds(results: Sequence[TrialResult], metric: str) -> set[int]:
    """Return the seeds with which all of these results have a metric."""
    unmeasured = Measurement({})
    seeds = [set(result.measured.get(metric, unmeasured).values) for result in results]
    return set.intersection(*seeds)


def trial_result(trial: Trial, metrics: Sequence[str], curve_metric: str) -> TrialResult:
    """Return the result of a trial, without a rank."""
    logs = {seed: read_log(trial, seed) for seed in sorted(trial.records)}
    measured = {}
    for metric in metrics:
        measurement = measure(trial, metric, logs)
        if measurement.values:
            measured[metric] = measurement
    curve = []
    for row in next(iter(logs.values()), []):
        value = finite(row.get(curve_metric))
        if value is not None:
            curve.append((float(row["step"]), value))
    return TrialResult(trial, trial_state(trial), None, measured, curve)


def measure(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> Measurement:
    """Return a metric by finished seed or, of a trial without one, the last value of each log."""
    if metric in COSTS:
        return measure_cost(trial, metric)
    values = {}
    for seed in sorted(trial.records):
        if seed in trial.finished_seeds:
            value = final_score(trial, seed, metric)
        elif trial.has_scores:
            continue  # counts once it has finished
        else:
            numbers = (finite(row.get(metric)) for row in reversed(logs[seed]))
            value = next((number for number in numbers if number is not None), None)
        if value is not None:
            values[seed] = value
    return Measurement(values)


def measure_cost(trial: Trial, metric: str) -> Measurement:
    """Return a cost of a trial: parameters as trained, where a run has counted them.

    A plan may know only the upper bound of a vocabulary's size.
    """
    if metric == "parameters":
        counts = [finite(record.parameters) for record in trial.records.values()]
        for count in counts:
            if count is not None:
                return Measurement({0: count})
    return Measurement({0: float(getattr(trial, metric))}, trial.at_most)


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
    order = ("finished", "running", "stopped", "pruned", "failed")
    return ranked + sorted(rest, key=lambda result: order.index(result.state))


def sort_key(result: TrialResult, goals: Sequence[Goal]) -> list[float]:
    """Return the goals of a result, each the smaller the better."""
    return [minimised(result, goal) for goal in goals]


def compare_with_best(ranked: Sequence[TrialResult], metric: str) -> dict[str, float]:
    """Return p-values by fingerprint: of trials with several seeds, against the best of these."""
    compared = [result for result in ranked if len(result.measured[metric].values) > 1]
    if not compared:
        return {}
    from composer.sweeps.significance import p_values_to_best  # SciPy takes a while to import

    p_values = p_values_to_best([result.measured[metric].values for result in compared]) or [1.0]
    fingerprints = [result.trial.fingerprint for result in compared]
    return dict(zip(fingerprints[1:], p_values[1:], strict=True))


def minimised(result: TrialResult, goal: Goal, seeds: Collection[int] = ()) -> float:
    """Return a goal's mean over some seeds or all, negated if larger is better, or infinity."""
    measurement = result.measured.get(goal.metric)
    if measurement is None:
        return math.inf
    mean = fmean(measurement.values[seed] for seed in seeds) if seeds else measurement.mean
    return mean if goal.direction == "min" else -mean


def pareto_front(results: Sequence[TrialResult], quality: Goal, cost: Goal) -> list[TrialResult]:
    """Return the results that no other beats in one goal and equals in the other, by cost."""
    front: list[TrialResult] = []
    best, price = math.inf, math.inf
    for result in sorted(results, key=lambda result: sort_key(result, (cost, quality))):
        paid, value = sort_key(result, (cost, quality))
        if value < best or (value == best and paid == price):
            front.append(result)
            best, price = value, paid
    return front


def split_reference(text: str) -> tuple[Path, str] | None:
    """Split `SWEEP#2` into the sweep and the trial's name; None for a path or a missing sweep."""
    sweep, mark, name = text.rpartition("#")
    if not mark or os.path.exists(text) or not os.path.exists(sweep):
        return None
    return Path(sweep), name


def find_trial_run(reference: str) -> Path | None:
    """Return the run folder that `SWEEP#RANK` names; None if there is no such sweep.

    Says on stderr which seed that is, if the trial has several. Raises RunError and RecipeError.
    """
    if (split := split_reference(reference)) is None:
        return None
    sweep, name = split
    run = find_run(open_leaderboard(sweep), name)
    others = [seed.path for seed in seed_dirs(run.parent).values() if seed.record.exists()]
    names = [path.name for path in others if path != run]
    if names:
        # late: it takes torch, and most words are paths
        from composer.inference.lines import write_note

        write_note(f"{reference} is {run}; the trial also has {', '.join(names)}")
    return run


def find_run(board: Leaderboard, word: str) -> Path:
    """Return the run of a trial's first finished seed, by rank or the beginning of a fingerprint.

    Raises RunError if the word names no trial or several.
    """
    rank, prefix = word.removeprefix("#"), word.lower()
    trials: list[Trial] = []
    if rank.isdecimal() and len(rank) <= 4:  # all else is the beginning of a fingerprint
        trials = [result.trial for result in board.results if result.rank == int(rank)]
    elif prefix:
        trials = [result.trial for result in board.results]
        trials = [trial for trial in trials if trial.fingerprint.startswith(prefix)]
    if len(trials) != 1:
        problem = f"{len(trials)} trials are called" if trials else "no trial is called"
        hint = "write a rank as the table has it, or the beginning of a trial's fingerprint"
        raise RunError.of(f"{problem} `{word}`", hint, str(board.folder))
    trial = trials[0]
    if not trial.finished_seeds:
        raise RunError.of("this trial has no finished seed", "name one that has", str(trial.folder))
    return trial.run(trial.finished_seeds[0])
