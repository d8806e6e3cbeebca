"""Leaderboard of sweeps: their trials ranked by the goals, each beside the best; the Pareto front."""

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
from composer.recipe.metrics import logged_key
from composer.recipe.yaml_reader import read, to_data
from composer.run_dir import seed_dirs
from composer.sweeps.directory import find_sweep
from composer.sweeps.spec import without_nulls
from composer.sweeps.sweep import (
    COSTS,
    DEFAULT_RANK,
    ERROR_RATE,
    SWEEP_AXIS,
    Goal,
    Value,
    read_sweep_record,
)
from composer.sweeps.trial import Trial, final_score, finite, read_log, read_trials

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One metric of a trial by seed, by seed 0 alone if it is a cost, which `at_most` marks as an
    upper bound.
    """

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
    rank: int | None
    measured: Mapping[str, Measurement]
    curve: Sequence[tuple[float, float]]
    p_value: float | None = None
    better: Trial | None = None

    @property
    def is_alike(self) -> bool:
        """Whether it cannot be told from the best: seeds alone may make the difference."""
        return self.p_value is not None and self.p_value >= ERROR_RATE


@dataclass(frozen=True)
class Leaderboard:
    """The trials of one or several sweeps: those with scores by rank, then the running, pruned and
    failed ones.

    `zipped` maps each zipped axis to the one it follows. `labels` are the values of the axes that
    have a list of them. `tuned` maps each axis of `tune` to the validation metric by which its
    value was chosen. `has_same_data` is False of sweeps on different data.
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
        """Return the table in a text of this width, None for any, with what each axis contributes."""
        from composer.sweeps.leaderboard_text import leaderboard_text

        return leaderboard_text(self, width)

    def as_json(self) -> dict[str, object]:
        """Return all but the curves as plain data."""
        from composer.sweeps.leaderboard_text import leaderboard_json

        return leaderboard_json(self)


def open_leaderboard(path: Path, *more: Path) -> Leaderboard:
    """Return the leaderboard of sweeps, each given by its directory, or by its file if it was run
    in runs/NAME.

    Raises RunError if no sweep has run there, a trial cannot be read or sweeps rank by different
    metrics, and RecipeError if a file cannot be read.
    """
    boards = [open_sweep(sweep) for sweep in (path, *more)]
    return join_leaderboards(boards) if more else boards[0]


def open_sweep(path: Path) -> Leaderboard:
    """Return the leaderboard of one sweep."""
    folder = find_sweep(path)
    # as it was run; the file that the user has may differ now
    root = without_nulls(read(folder.sweep, str(folder.sweep)))
    sweep, nodes = to_data(root), root.value["axes"].value
    sweep["axes"] = {name: to_data(without_nulls(node)) for name, node in nodes.items()}
    goals = [
        Goal(metric, direction)
        for goal in sweep.get("rank", ())
        for metric, direction in goal.items()
    ]
    goals = goals or list(DEFAULT_RANK)
    zipped = {name: axis["zip"] for name, axis in sweep["axes"].items() if "zip" in axis}
    trials = read_trials(folder.path)
    first_rows = [
        row
        for trial in trials
        for seed in sorted(trial.records)[:1]
        for row in read_log(trial, seed)
    ]
    goal_metric = next(
        (goal.metric for goal in goals if goal.metric.startswith("val/")), "val/loss"
    )
    curve_metric = logged_key(first_rows, goal_metric)
    chosen_by = goals[0].on_validation
    tuned = dict.fromkeys(sweep.get("tune") or (), chosen_by.metric)
    tuned |= {axis: chosen_by.metric for axis, other in zipped.items() if other in tuned}
    names = dict.fromkeys((*(goal.metric for goal in goals), *tuned.values(), *COSTS, "minutes"))
    results = [trial_result(trial, [*names], curve_metric) for trial in trials]
    results = rank_results(choose_tuned(results, tuned, chosen_by), goals)
    present = {axis for trial in trials for axis in trial.point}
    axes = [axis for axis in sweep["axes"] if axis in present]
    name = str(read_sweep_record(folder)["name"])
    lists = {
        axis: keys.get("values") or keys.get("with") or keys.get("extend")
        for axis, keys in sweep["axes"].items()
    }
    labels = {axis: [*values] for axis, values in lists.items() if values}
    return Leaderboard(name, folder.path, goals, axes, zipped, curve_metric, results, labels, tuned)


def join_leaderboards(boards: Sequence[Leaderboard]) -> Leaderboard:
    """Return one leaderboard of several sweeps, which are its first axis; a point of two sweeps is
    in it once.

    Raises RunError if they rank by different metrics, or tune different axes.
    """
    first = boards[0]
    names = [board.name for board in boards]
    names = names if len({*names}) == len(names) else [str(board.folder) for board in boards]
    results: dict[str, TrialResult] = {}
    for name, board in zip(names, boards, strict=True):
        if board.goals[0] != first.goals[0]:
            one, other = (
                f"`{of.goals[0].metric}: {of.goals[0].direction}`" for of in (first, board)
            )
            message = f"these sweeps rank by {one} and {other}, and so cannot be compared"
            raise RunError.of(
                message, "name sweeps whose `rank` begins with the same metric", str(board.folder)
            )
        if board.tuned.keys() != first.tuned.keys():
            one, other = (f"`{', '.join(of.tuned) or 'nothing'}`" for of in (first, board))
            message = f"these sweeps tune {one} and {other}, and so cannot be compared"
            raise RunError.of(
                message,
                "write the same `tune` in both files, and run them again: nothing is trained",
            )
        for result in board.results:
            known = results.get(result.trial.fingerprint)
            more = known is not None and len(result.trial.records) > len(known.trial.records)
            if known is None or (result.rank is not None and (known.rank is None or more)):
                trial = replace(result.trial, point={SWEEP_AXIS: name, **result.trial.point})
                results[trial.fingerprint] = replace(result, trial=trial)
    axes = [SWEEP_AXIS, *dict.fromkeys(axis for board in boards for axis in board.axes)]
    zipped = {axis: one for board in boards for axis, one in board.zipped.items()}
    tuned = {axis: metric for board in boards for axis, metric in board.tuned.items()}
    records = [
        [run for trial in board.results for run in trial.trial.records.values()] for board in boards
    ]
    data = [{one.fingerprints["data"] for one in some if one.fingerprints} for some in records]
    has_same_data = not any(some and data[0] and some.isdisjoint(data[0]) for some in data)
    ranked, name = rank_results(results.values(), first.goals), " + ".join(names)
    labels = {axis: values for board in reversed(boards) for axis, values in board.labels.items()}
    parts = (first.goals, axes, zipped, first.curve_metric, ranked, labels, tuned, has_same_data)
    return Leaderboard(name, Path(), *parts)


def choose_tuned(
    results: Sequence[TrialResult], tuned: Collection[str], goal: Goal
) -> list[TrialResult]:
    """Return the results, with `better` set to the best trial that differs in tuned axes alone.

    That is the best over the seeds that all of these trials have: more seeds make no trial better.
    """
    finished = [result for result in results if tuned and result.trial.has_scores]
    groups: dict[object, list[TrialResult]] = defaultdict(list)
    for result in finished:
        groups[untuned_point(result, tuned)].append(result)
    best = {
        point: min(group, key=partial(minimised, goal=goal, seeds=shared_seeds(group, goal.metric)))
        for point, group in groups.items()
    }
    bests = (best.get(untuned_point(result, tuned), result) for result in results)
    return [
        result if result is one or result not in finished else replace(result, better=one.trial)
        for result, one in zip(results, bests, strict=True)
    ]


def untuned_point(result: TrialResult, tuned: Collection[str]) -> frozenset[tuple[str, Value]]:
    """Return the point of a trial without its tuned axes."""
    return frozenset(
        (axis, value) for axis, value in result.trial.point.items() if axis not in tuned
    )


def shared_seeds(results: Sequence[TrialResult], metric: str) -> set[int]:
    """Return the seeds with which all of these results have a metric."""
    first, *others = (
        set(result.measured[metric].values if metric in result.measured else ())
        for result in results
    )
    return first.intersection(*others)


def trial_result(trial: Trial, metrics: Sequence[str], curve_metric: str) -> TrialResult:
    """Return the result of a trial, without a rank."""
    logs = {seed: read_log(trial, seed) for seed in sorted(trial.records)}
    measured = {name: one for name in metrics if (one := measure(trial, name, logs)).values}
    first: Rows = next(iter(logs.values()), [])
    curve = [
        (float(row["step"]), value)
        for row in first
        if (value := finite(row.get(curve_metric))) is not None
    ]
    return TrialResult(trial, None, measured, curve)


def measure(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> Measurement:
    """Return a metric of a trial by finished seed or, of one that has none, the last value that
    each seed logged.
    """
    if metric in COSTS:
        # parameters are those trained where a run has counted them: a plan may know only a
        # vocabulary's largest size
        records = trial.records.values() if metric == "parameters" else ()
        counts = [count for record in records if (count := finite(record.parameters)) is not None]
        cost = counts[0] if counts else float(getattr(trial, metric))
        return Measurement({0: cost}, trial.at_most and not counts)
    values: dict[int, float | None] = {}
    for seed in sorted(trial.records):
        if seed in trial.finished_seeds:
            values[seed] = final_score(trial, seed, metric)
        elif not trial.has_scores:
            logged = (
                value
                for row in reversed(logs[seed])
                if (value := finite(row.get(metric))) is not None
            )
            values[seed] = next(logged, None)
    return Measurement({seed: value for seed, value in values.items() if value is not None})


def rank_results(results: Iterable[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """Return results in their order, those with scores with a rank: by the first goal, then by
    those after it.

    Entries equal in all goals have equal ranks. One that finished without a number for the first
    goal has none, nor has one of which another value of a tuned axis is better.
    """
    metric = goals[0].metric
    rest: list[TrialResult] = []
    finished: list[TrialResult] = []
    for result in results:
        is_ranked = result.trial.has_scores and metric in result.measured and result.better is None
        (finished if is_ranked else rest).append(result)
    finished.sort(key=lambda result: [minimised(result, goal) for goal in goals])
    keys = [[minimised(result, goal) for goal in goals] for result in finished]
    p_values: dict[str, float] = {}
    if compared := [result for result in finished if len(result.measured[metric].values) > 1]:
        from composer.sweeps.significance import p_values_to_best  # SciPy takes a while to import

        _, *others = p_values_to_best([result.measured[metric].values for result in compared]) or [
            1.0
        ]
        p_values = {
            result.trial.fingerprint: p for result, p in zip(compared[1:], others, strict=True)
        }
    ranked = [
        replace(
            result, rank=bisect_left(keys, key) + 1, p_value=p_values.get(result.trial.fingerprint)
        )
        for key, result in zip(keys, finished, strict=True)
    ]
    order = ("finished", "running", "pruned", "failed")
    return ranked + sorted(rest, key=lambda result: order.index(result.trial.status))


def minimised(result: TrialResult, goal: Goal, seeds: Collection[int] = ()) -> float:
    """Return a goal's mean, over some seeds or all, negated if larger is better; infinity without a
    number.
    """
    measurement = result.measured.get(goal.metric)
    if measurement is None:
        return math.inf
    mean = fmean(measurement.values[seed] for seed in seeds) if seeds else measurement.mean
    return mean if goal.direction == "min" else -mean


def pareto_front(results: Sequence[TrialResult], quality: Goal, cost: Goal) -> list[TrialResult]:
    """Return the results than which none is better in one goal and as good in the other, the
    cheapest first.
    """
    front: list[TrialResult] = []
    best, price = math.inf, math.inf
    for result in sorted(
        results, key=lambda result: (minimised(result, cost), minimised(result, quality))
    ):
        value, paid = minimised(result, quality), minimised(result, cost)
        if value < best or (value == best and paid == price):
            front.append(result)
            best, price = value, paid
    return front


def split_reference(text: str) -> tuple[Path, str] | None:
    """Return a sweep and what is named of it, as in `SWEEP#2`; None for a path, and where there is
    no such sweep.
    """
    sweep, mark, which = text.rpartition("#")
    return (
        (Path(sweep), which)
        if mark and not os.path.exists(text) and os.path.exists(sweep)
        else None
    )


def find_trial_run(reference: str) -> Path | None:
    """Return the run folder that `SWEEP#RANK` names; None where there is no such sweep.

    stderr says which seed that is, where the trial has several. Raises RunError and RecipeError.
    """
    if (named := split_reference(reference)) is None:
        return None
    run = find_run(open_leaderboard(named[0]), named[1])
    others = [
        seed.path.name
        for seed in seed_dirs(run.parent).values()
        if seed.path != run and seed.record.exists()
    ]
    if others:
        # late: it takes torch, and most words are paths
        from composer.inference.lines import write_note

        write_note(f"{reference} is {run}; the trial has {', '.join(others)}, too")
    return run


def find_run(board: Leaderboard, word: str) -> Path:
    """Return the run folder of a trial's first finished seed, by its rank or the beginning of its
    fingerprint.

    Raises RunError if the word names no trial or several.
    """
    rank = word.removeprefix("#")
    if rank.isdecimal() and len(rank) <= 4:  # all else is the beginning of a fingerprint
        results = [result for result in board.results if result.rank == int(rank)]
    else:
        results = [
            result
            for result in board.results
            if word and result.trial.fingerprint.startswith(word.lower())
        ]
    if len(results) != 1:
        problem = f"{len(results)} trials are called" if results else "no trial is called"
        hint = "write a rank as the table has it, or the beginning of a trial's fingerprint"
        raise RunError.of(f"{problem} `{word}`", hint, str(board.folder))
    trial = results[0].trial
    if not trial.finished_seeds:
        raise RunError.of("this trial has no finished seed", "name one that has", str(trial.folder))
    return trial.run(trial.finished_seeds[0])
