"""Leaderboard of a sweep: its trials ranked by the goals, and the significance of the difference of two runs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from composer.errors import RunError
from composer.recipe.metrics import logged_key, paired_bootstrap
from composer.recipe.recipe import default_name
from composer.recipe.yaml_reader import read, to_data
from composer.run_dir import RUNS
from composer.sweeps.sweep import COSTS, DEFAULT_RANK, Goal, SweepDir, Trial, read_log, read_sweep_record, read_trials

if TYPE_CHECKING:
    from composer.inference.run import Run

RESAMPLES = 1000
"""Bootstrap samples, as sacreBLEU takes by default."""
FEW_LINES = 100
"""Test lines below which a bootstrap says little."""
P_VALUE_MEANING = (
    "± is half the 95 % confidence interval; p is the p-value of a paired bootstrap over test lines. "
    "Variation between seeds is not included."
)

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One metric of a trial by seed, by seed 0 alone where seeds make no difference; or the means of several trials.

    `at_most` says that it is the upper bound of a cost.
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
    results: Sequence[TrialResult]

    @property
    def ranked(self) -> list[TrialResult]:
        return [result for result in self.results if result.rank is not None]

    def text(self, width: int | None = None) -> str:
        """Return the table in a text of this width, None for any, with what each axis contributes."""
        from composer.sweeps.leaderboard_text import leaderboard_text

        return leaderboard_text(self, width)

    def as_json(self) -> dict[str, Any]:
        """Return all but the curves as plain data."""
        from composer.sweeps.leaderboard_text import leaderboard_json

        return leaderboard_json(self)


def open_leaderboard(path: Path) -> Leaderboard:
    """Return the leaderboard of a sweep's directory, or of the sweep file that was run in runs/NAME.

    Raises RunError if no sweep has run there or a trial cannot be read, and RecipeError if the file cannot be read.
    """
    if not path.is_dir():
        file = to_data(read(path, str(path)))
        path = RUNS / str(file.get("name") or default_name(path))
    folder = SweepDir(path)
    if not folder.record.exists():
        hint = "name the folder that `seqcomposer sweep` has written: runs/NAME, or the one given by `--run`"
        raise RunError.of("no sweep has run here", hint, str(folder.path))
    sweep = to_data(read(folder.sweep, str(folder.sweep)))  # as it was run; the file that the user has may differ now
    goals = [Goal(metric, direction) for goal in sweep.get("rank", ()) for metric, direction in goal.items()]
    goals = goals or list(DEFAULT_RANK)
    zipped = {name: axis["zip"] for name, axis in sweep.get("axes", {}).items() if "zip" in axis}
    trials = read_trials(folder.path)
    first_rows = [row for trial in trials for seed in sorted(trial.seeds)[:1] for row in read_log(trial, seed)]
    goal_metric = next((goal.metric for goal in goals if goal.metric.startswith("val/")), "val/loss")
    curve_metric = logged_key(first_rows, goal_metric)
    results = rank_results((trial_result(trial, goals, curve_metric) for trial in trials), goals)
    points = [result.trial.point for result in results]
    present = {axis for point in points for axis in point}
    pairs = {axis: other for axis, other in zipped.items() if axis in present}
    same = {axis: one for axis, one in pairs.items() if all(point.get(axis) == point.get(one) for point in points)}
    axes = [axis for axis in sweep.get("axes", {}) if axis in present and axis not in same]
    name = str(read_sweep_record(folder)["name"])
    return Leaderboard(name, folder.path, goals, axes, zipped, same, curve_metric, results)


def trial_result(trial: Trial, goals: Sequence[Goal], curve_metric: str) -> TrialResult:
    """Return the result of a trial, without a rank."""
    logs = {seed: read_log(trial, seed) for seed in sorted(trial.seeds)}
    names = dict.fromkeys((*(goal.metric for goal in goals), *COSTS, "minutes"))
    measured = {name: measure(trial, name, logs) for name in names}
    logged = [[finite(row.get("train/tokens_per_second")) for row in rows] for rows in logs.values()]
    speeds = [median(known) for speeds in logged if (known := [speed for speed in speeds if speed is not None])]
    first: Rows = next(iter(logs.values()), [])
    curve = [(float(row["step"]), value) for row in first if (value := finite(row.get(curve_metric))) is not None]
    measured = {name: measurement for name, measurement in measured.items() if measurement.values}
    return TrialResult(trial, None, measured, fmean(speeds) if speeds else None, False, curve)


def measure(trial: Trial, metric: str, logs: Mapping[int, Rows]) -> Measurement:
    """Return a metric of a trial by finished seed or, of an unfinished trial, the last value that each seed logged."""
    if metric in COSTS:
        # parameters are those trained where a run has counted them: a plan may know only a vocabulary's largest size
        records = trial.seeds.values() if metric == "parameters" else ()
        counts = [count for record in records if (count := finite(record.get("parameters"))) is not None]
        cost = counts[0] if counts else float(getattr(trial, metric))
        return Measurement({0: cost}, trial.at_most and not counts)
    values: dict[int, float | None] = {}
    for seed, record in sorted(trial.seeds.items()):
        if record.get("status") == "finished":
            scores = record if metric == "minutes" else record.get("scores") or {}
            values[seed] = finite(scores.get(metric))
        elif trial.status != "finished":
            logged = (value for row in reversed(logs[seed]) if (value := finite(row.get(metric))) is not None)
            values[seed] = next(logged, None)
    return Measurement({seed: value for seed, value in values.items() if value is not None})


def finite(value: Any) -> float | None:
    """Return a finite number, or None for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def rank_results(results: Iterable[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """Return results in their order, those that finished with a rank: by the first goal, then by those after it.

    Entries equal in all goals have equal ranks. One that finished without a number for the first goal has none.
    """
    results = sorted(results, key=lambda result: result.trial.number)
    metric = goals[0].metric
    rest = [result for result in results if result.trial.status != "finished" or metric not in result.measured]
    finished = [result for result in results if result.trial.status == "finished" and metric in result.measured]
    finished.sort(key=lambda result: [minimised(result, goal) for goal in goals])
    keys = [[minimised(result, goal) for goal in goals] for result in finished]
    ranked = []
    for key, result in zip(keys, finished, strict=True):
        is_alike = result is not finished[0] and are_alike(result.measured[metric], finished[0].measured[metric])
        ranked.append(replace(result, rank=bisect_left(keys, key) + 1, is_alike=is_alike))
    order = ("finished", "running", "pruned", "failed")
    return ranked + sorted(rest, key=lambda result: order.index(result.trial.status))


def minimised(result: TrialResult, goal: Goal) -> float:
    """Return a goal's mean, negated if larger is better; infinity without a number."""
    measurement = result.measured.get(goal.metric)
    if measurement is None:
        return math.inf
    return measurement.mean if goal.direction == "min" else -measurement.mean


def pareto_front(results: Sequence[TrialResult], quality: Goal, cost: Goal) -> list[TrialResult]:
    """Return the results than which none is better in one goal and as good in the other, the cheapest first."""
    front: list[TrialResult] = []
    best, price = math.inf, math.inf
    for result in sorted(results, key=lambda result: (minimised(result, cost), minimised(result, quality))):
        value, paid = minimised(result, quality), minimised(result, cost)
        if value < best or (value == best and paid == price):
            front.append(result)
            best, price = value, paid
    return front


def are_alike(one: Measurement, other: Measurement) -> bool:
    """Return whether two means differ by no more than the larger of the two standard deviations over seeds."""
    spreads = [measurement.spread for measurement in (one, other) if measurement.spread is not None]
    return bool(spreads) and abs(one.mean - other.mean) <= max(spreads)


@dataclass(frozen=True)
class RunScores:
    """One run: its BLEU with half the width of its 95 % interval, its exact matches, and those that the other lacks."""

    run: str
    bleu: float
    interval: float
    right: int
    right_alone: int


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same test lines.

    `p_value` is the probability of a difference in BLEU as large as this by the choice of test lines alone, if the two
    are equally good; `right_p_value` that of the difference in exact matches, by the exact sign test. `same_lines` are
    the lines that both decode alike. `signature` says how sacreBLEU computed it, with seed and number of samples.
    """

    one: RunScores
    other: RunScores
    lines: int
    same_lines: int
    p_value: float
    right_p_value: float
    signature: str


def compare_trials(one: str | Path, other: str | Path, data: str | Path | None = None) -> Comparison:
    """Translate the test part with two runs, each as its recipe decodes, and compare.

    Raises RunError if a run has not finished or has nothing to translate, or if their test lines or tokenizers of BLEU
    differ; RecipeError or DataError if a recipe or its data cannot be read.
    """
    from composer.inference.run import open_run  # imports torch, and the leaderboard alone does without

    runs = [open_run(one), open_run(other)]
    (sources, references), (other_sources, other_references) = (read_test_part(run, data) for run in runs)
    if references != other_references:
        counts = f"{len(references):,} and {len(other_references):,}"
        hint = "compare runs with the same test part; `--data DIR` says where both look their data up"
        raise RunError.of(f"the two runs have different test lines ({counts})", hint, str(runs[1].run_dir.path))
    one_tokenizer, other_tokenizer = (run.recipe.evaluation["bleu_tokenizer"] for run in runs)
    if one_tokenizer != other_tokenizer:
        message = f"the two runs measure BLEU by different tokenizers (`{one_tokenizer}` and `{other_tokenizer}`)"
        raise RunError.of(message, "compare runs with the same `evaluation.bleu_tokenizer`", str(runs[1].run_dir.path))
    outputs = [run.translate(lines) for run, lines in zip(runs, (sources, other_sources), strict=True)]
    return compare_outputs([str(one), str(other)], outputs, references, one_tokenizer)


def read_test_part(run: Run, data: str | Path | None) -> tuple[list[str], list[str]]:
    """Return the test lines of a run, as `translate` takes them, and their references. Raises RunError."""
    from composer.data.pairs import TARGET, available_splits, source_names
    from composer.data.sources import DataSource

    names = source_names(run.recipe)
    if not names or "test" not in available_splits(run.recipe):
        lack = "its model has no encoder" if not names else "its data has no test part"
        raise RunError.of(f"this run cannot be compared: {lack}", "compare runs that translate", str(run.run_dir.path))
    texts = DataSource(run.recipe, run.folders(data)).pairs("test").sides
    return ["\t".join(row) for row in zip(*(texts[name] for name in names), strict=True)], [*texts[TARGET]]


def compare_outputs(
    names: Sequence[str], outputs: Sequence[Sequence[str]], references: Sequence[str], bleu_tokenizer: str
) -> Comparison:
    """Return the comparison of two runs' outputs for the same references."""
    scores, signature = paired_bootstrap(outputs, references, RESAMPLES, bleu_tokenizer)
    pairs = [zip(texts, references, strict=True) for texts in outputs]
    right = [{index for index, (text, line) in enumerate(pair) if text.strip() == line.strip()} for pair in pairs]
    alone = [len(right[0] - right[1]), len(right[1] - right[0])]
    counts = [(name, score.score, score.ci) for name, score in zip(names, scores, strict=True)]
    one, other = (RunScores(*counts[index], len(right[index]), alone[index]) for index in (0, 1))
    # if no resampled difference differs from the real one, its count is of nothing and would say p = 1 / 1001
    p_value = 1.0 if one.bleu == other.bleu else scores[1].p_value
    same = sum(a == b for a, b in zip(*outputs, strict=True))
    return Comparison(one, other, len(references), same, p_value, sign_test(*alone), signature)


def sign_test(one: int, other: int) -> float:
    """Return the probability that a fair coin falls at least as unevenly, to either side (McNemar's exact test)."""
    tosses = one + other
    rarer = sum(math.comb(tosses, count) for count in range(min(one, other) + 1))
    return min(1.0, 2 * rarer / 2**tosses)


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison in words."""
    one, other = comparison.one, comparison.other
    lines = [f"BLEU on test, {comparison.lines:,} lines, {comparison.same_lines:,} of them decoded identically"]
    lines += [f"{run.bleu:6.2f} ± {run.interval:.2f}  {run.right:,} right  {run.run}" for run in (one, other)]
    few = f" Of {comparison.lines:,} lines a bootstrap is not reliable." if comparison.lines < FEW_LINES else ""
    short = " BLEU needs lines of four words." if one.bleu == other.bleu == 0.0 else ""
    p_value = f"p = {comparison.p_value:.3f} (paired bootstrap, {RESAMPLES:,} samples)"
    lines.append(f"{other.bleu - one.bleu:+6.2f}: {p_value}.{few}{short}")
    alone = f"sign test: {one.right_alone:,} are right in the first alone, {other.right_alone:,} in the second alone"
    lines.append(f"{other.right - one.right:+6,} lines right: p = {comparison.right_p_value:.2g} ({alone}).")
    return "\n".join([*lines, P_VALUE_MEANING, comparison.signature])


def find_run(board: Leaderboard, word: str) -> Path:
    """Return the run folder of a trial's first finished seed, by its rank or the beginning of its fingerprint.

    Raises RunError if the word names no trial or several.
    """
    rank = word.removeprefix("#")
    if rank.isdecimal() and len(rank) <= 4:  # all else is the beginning of a fingerprint
        results = [result for result in board.results if result.rank == int(rank)]
    else:
        results = [result for result in board.results if word and result.trial.fingerprint.startswith(word.lower())]
    if len(results) != 1:
        problem = f"{len(results)} trials are called" if results else "no trial is called"
        hint = "write a rank as the table has it, or the beginning of a trial's fingerprint"
        raise RunError.of(f"{problem} `{word}`", hint, str(board.folder))
    trial = results[0].trial
    finished = [seed for seed, record in sorted(trial.seeds.items()) if record.get("status") == "finished"]
    if not finished:
        raise RunError.of("this trial has no finished seed", "name one that has", str(trial.folder))
    return trial.run(finished[0])
