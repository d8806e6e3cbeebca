"""The leaderboard as a terminal table and as JSON: its numbers, columns and notes in words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pvariance
from typing import Any, NamedTuple

from rich.cells import cell_len

from composer.formatting import align_columns, format_bound, si, significant, strip_control_characters
from composer.recipe.metrics import is_share, metric_of
from composer.sweeps.leaderboard import Leaderboard, Measurement, TrialResult
from composer.sweeps.sweep import COSTS, format_value

ALIKE = "≈"
MAX_ERROR_LENGTH = 100
MAX_GROUPS = 4
"""Ranges, with equally many trials each, into which an axis of many numbers is cut."""
DISPENSABLE = ("tokens/s", "minutes", "state bytes", "FLOPs", "parameters")
"""Columns that a narrow terminal does without, the first of them first; after them the further goals."""


def metric_title(metric: str) -> str:
    """Return the name of a metric or cost at the head of a column."""
    return {"flops": "FLOPs", "state_bytes": "state bytes"}.get(metric, metric)


def format_metric(metric: str, value: float) -> str:
    """Return a metric's value as its result in METRICS formats it; a cost as a whole number or with an SI prefix."""
    if metric in COSTS:
        return si(value) if metric == "flops" else f"{value:,.0f}"
    known = metric_of(metric)
    return known.format(value) if known else f"{value:.2f}"


def format_mean(metric: str, measurement: Measurement | None) -> str:
    """Return a mean and, of several seeds, its standard deviation; a cost that is an upper bound is marked."""
    if measurement is None:
        return ""
    mean = format_bound(format_metric(metric, measurement.mean), measurement.at_most)
    return mean if measurement.spread is None else f"{mean} ± {format_spread(metric, measurement.spread)}"


def format_spread(metric: str, spread: float) -> str:
    """Return a standard deviation, of which no more than two digits are ever known."""
    known = metric_of(metric)
    return significant(spread, 2) if known and known.highest is None else format_metric(metric, spread)


def format_difference(metric: str, result: TrialResult, best: TrialResult | None) -> str:
    """Return how far an result's mean is from the best's, of shares in percentage points: "%" would be relative."""
    if best is None or result is best or result.rank is None:
        return ""
    difference = result.measured[metric].mean - best.measured[metric].mean
    if difference and is_share(metric):
        return f"{100 * difference:+.1f} points"
    return f"{'-' if difference < 0 else '+'}{format_spread(metric, abs(difference))}" if difference else "equal"


def axis_value(point: Mapping[str, object], axis: str) -> str:
    """Return the value of an axis at a point in words; `-` if the axis is not active."""
    return strip_control_characters(format_value(point.get(axis, "-")))


def point_text(result: TrialResult, axes: Sequence[str]) -> str:
    """Return a trial's point in one line."""
    point = result.trial.point
    return ", ".join(f"{strip_control_characters(axis)} {axis_value(point, axis)}" for axis in axes if axis in point)


def failure_lines(board: Leaderboard) -> list[str]:
    """Return each trial that failed, with the first line of its error."""
    lines = []
    for result in board.results:
        if result.trial.status == "failed":
            error = (result.trial.error or "").strip() or "no error was recorded"
            reason = strip_control_characters(error.splitlines()[0])
            reason = reason if len(reason) <= MAX_ERROR_LENGTH else f"{reason[: MAX_ERROR_LENGTH - 3]}..."
            lines.append(f"{result.trial.fingerprint} failed ({point_text(result, board.axes)}): {reason}")
    return lines


def count_text(board: Leaderboard) -> str:
    """Return how many trials there are of each status."""
    statuses = [result.trial.status for result in board.results]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    return f"{len(statuses)} trial{'' if len(statuses) == 1 else 's'}: {counts}" if statuses else "no trials yet"


def ranking_note(board: Leaderboard) -> str:
    """Return how trials are ranked and what the marks mean, or that a single seed says nothing of the spread."""
    goal, *others = board.goals
    spreads = [result.measured[goal.metric].spread for result in board.ranked]
    ties = ", ".join(metric_title(other.metric) for other in others)
    note = f"Ranked by {metric_title(goal.metric)} ({'most' if goal.direction == 'max' else 'least'} first)"
    note += f"; equal ones by {ties}." if ties else "."
    for axis, other in board.same.items():
        note += f" {strip_control_characters(axis)} is the same as {strip_control_characters(other)}."
    if goal.metric in COSTS or not spreads:
        return note
    if all(spread is None for spread in spreads):
        return f"{note} One seed each: the spread between seeds is not known."
    return (
        f"{note} ± is the standard deviation over seeds (n - 1). {ALIKE}: the mean and the best differ by no more "
        "than the larger of their two standard deviations, so seeds alone may explain the difference."
    )


@dataclass(frozen=True)
class AxisEffect:
    """The main effect of an axis on the first goal, over the ranked trials in which it is active.

    `groups` are the means of the trials that have one value of the axis, or one range of its numbers; `zipped` are the
    axes that take their values with it. `variance` is the share of the variance between trials that lies between the
    groups (eta squared); None where it says nothing: with one group, no variance, or no group of two trials.
    """

    axis: str
    groups: Mapping[str, Measurement]
    variance: float | None
    zipped: Sequence[str] = ()

    @property
    def chance(self) -> float | None:
        """The share that an axis without any effect has on average, (groups - 1) / (trials - 1)."""
        trials = sum(len(group.values) for group in self.groups.values())
        return None if self.variance is None else (len(self.groups) - 1) / (trials - 1)


def axis_effects(board: Leaderboard) -> list[AxisEffect]:
    """Return the effect of every axis that a ranked trial has, in the sweep's order; zipped ones with their leader."""
    metric = board.goals[0].metric
    followers: dict[str, list[str]] = {}
    for axis in board.zipped:
        leader = axis
        while leader in board.zipped:
            leader = board.zipped[leader]
        followers.setdefault(leader, []).append(axis)
    effects = []
    for axis in (axis for axis in board.axes if axis not in board.zipped):
        active = [result for result in board.ranked if axis in result.trial.point]
        active.sort(key=lambda result: result.trial.number)
        groups = {
            name: Measurement({result.trial.number: result.measured[metric].mean for result in results})
            for name, results in group_by_value(axis, active).items()
        }
        if groups:
            variance = eta_squared([[*group.values.values()] for group in groups.values()])
            effects.append(AxisEffect(axis, groups, variance, followers.get(axis, ())))
    return effects


def informative_effects(board: Leaderboard) -> list[AxisEffect]:
    """Return the effects that say more than the table of trials; none if the first goal is known before training."""
    if board.goals[0].metric in COSTS:
        return []
    return [effect for effect in axis_effects(board) if effect.variance is not None]


def eta_squared(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the variance between groups as a share of the total variance; None where it says nothing."""
    values = [value for group in groups for value in group]
    total = pvariance(values)
    if total == 0.0 or len(groups) < 2 or len(groups) == len(values):
        return None
    return min(1.0, pvariance([fmean(group) for group in groups for _ in group]) / total)


def group_by_value(axis: str, results: Sequence[TrialResult]) -> dict[str, list[TrialResult]]:
    """Return results by their value on an axis: numbers in ascending order, and in ranges if there are many."""
    values = [result.trial.point[axis] for result in results]
    groups: dict[str, list[TrialResult]] = {}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        results = sorted(results, key=lambda result: float(result.trial.point[axis]))
        if len(set(values)) > 2 * MAX_GROUPS:
            ends = [len(results) * part // MAX_GROUPS for part in range(MAX_GROUPS + 1)]
            for start, end in pairwise(ends):
                low, high = results[start].trial.point[axis], results[end - 1].trial.point[axis]
                groups.setdefault(f"{format_value(low)} to {format_value(high)}", []).extend(results[start:end])
            return groups
    for result in results:
        groups.setdefault(format_value(result.trial.point[axis]), []).append(result)
    return groups


class Column(NamedTuple):
    """A column of the table, with a cell for each trial; texts are aligned to the left, and numbers to the right."""

    head: str
    is_text: bool
    cells: Sequence[str]


def shown_metrics(board: Leaderboard) -> list[str]:
    """Return the metrics of the table: the goals, then costs."""
    return [*dict.fromkeys([*(goal.metric for goal in board.goals), "parameters", "flops", "minutes"])]


def columns(board: Leaderboard) -> list[Column]:
    """Return the columns of the table, the fingerprint last."""
    first, *others = shown_metrics(board)
    results = board.results
    best = next(iter(board.ranked), None)
    ranks = ["" if one.rank is None else f"{one.rank}{f' {ALIKE}' if one.is_alike else ''}" for one in results]
    means = {name: [format_mean(name, one.measured.get(name)) for one in results] for name in (first, *others)}
    table = [Column("rank", True, ranks), Column(metric_title(first), False, means[first])]
    values = {axis: [axis_value(one.trial.point, axis) for one in results] for axis in board.axes}
    table += [Column(strip_control_characters(axis), True, values[axis]) for axis in board.axes]
    if first not in COSTS:
        table.append(Column("to the best", False, [format_difference(first, one, best) for one in results]))
    table += [Column(metric_title(name), False, means[name]) for name in others]
    speeds = ["" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}" for one in results]
    table += [Column("tokens/s", False, speeds), Column("status", True, [status_text(one) for one in results])]
    return [*table, Column("trial", True, [one.trial.fingerprint for one in results])]


def status_text(result: TrialResult) -> str:
    """Return how a trial stands, in words."""
    if result.trial.status == "pruned" and result.trial.pruned_at is not None:
        return f"pruned at step {result.trial.pruned_at:,}"
    has_no_rank = result.trial.status == "finished" and result.rank is None
    return "finished, without a number to rank it by" if has_no_rank else result.trial.status


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """Return the leaderboard for a terminal of so many cells; None for any width."""
    head = f"{strip_control_characters(board.name)}: {count_text(board)}"
    if not board.results:
        return "\n".join([head, "", ranking_note(board)])
    notes = [_wrap(text, width) for text in (*failure_lines(board), ranking_note(board))]
    place = f"Each trial has the folder {board.folder / 'trials'}/TRIAL."
    return "\n".join([head, "", *_trial_lines(board, width), "", *notes, *_effect_lines(board, width), "", place])


def _wrap(text: str, width: int | None) -> str:
    return text if width is None else textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _trial_lines(board: Leaderboard, width: int | None) -> list[str]:
    """Return as much of the table of trials as fits, and which columns do not."""
    table = columns(board)
    dropped: list[str] = []
    for name in (*DISPENSABLE, *map(metric_title, reversed(shown_metrics(board)[1:])), "to the best", "trial"):
        if width is None or _table_width(table) <= width:
            break
        dropped += [column.head for column in table if column.head == name]
        table = [column for column in table if column.head != name]
    gap = 2 if width is None or _table_width(table) <= width else 1
    rows = [*zip(*([column.head, *column.cells] for column in table), strict=True)]
    lines = _ruled_table(rows, [column.is_text for column in table], gap)
    note = f"Columns left out for lack of width: {', '.join(dropped)}. See the HTML page or --json."
    return [*lines, *(["", _wrap(note, width)] if dropped else [])]


def _table_width(table: Sequence[Column]) -> int:
    widths = [max(map(cell_len, (column.head, *column.cells))) for column in table]
    return sum(widths) + 2 * (len(table) - 1)


def _effect_lines(board: Leaderboard, width: int | None) -> list[str]:
    """Return the effects of the axes, each value in a line."""
    metric = board.goals[0].metric
    rows = [["axis", "variance", "by chance", "choice", "trials", metric_title(metric)]]
    for effect in informative_effects(board):
        first = [effect_title(effect), f"{effect.variance:.0%}", f"{effect.chance:.0%}"]
        for name, group in effect.groups.items():
            trials = str(len(group.values))
            rows.append([*first, strip_control_characters(name), trials, format_mean(metric, group)])
            first = ["", "", ""]
    if len(rows) == 1:
        return []
    lines = _ruled_table(rows, [True, False, False, True, False, True])
    note = "variance: the share of it between an axis's values; by chance: the share of an axis without effect."
    return ["", *lines, _wrap(note, width)]


def _ruled_table(rows: Sequence[Sequence[str]], is_text: Sequence[bool], gap: int = 2) -> list[str]:
    """Return aligned rows, with a rule below the heads."""
    head, *lines = align_columns(rows, is_text, gap)
    return [head, "─" * max(map(cell_len, (head, *lines))), *lines]


def effect_title(effect: AxisEffect) -> str:
    """Return the name of an axis, and of those that are zipped to it."""
    return ", ".join(map(strip_control_characters, (effect.axis, *effect.zipped)))


def leaderboard_json(board: Leaderboard) -> dict[str, Any]:
    """Return a leaderboard without its curves as plain data."""
    return {
        "name": board.name,
        "rank": [{goal.metric: goal.direction} for goal in board.goals],
        "axes": [*board.axes, *board.same],
        "trials": [_result_json(result) for result in board.results],
        "contributions": [
            {
                "axes": [effect.axis, *effect.zipped],
                "share": effect.variance,
                "chance": effect.chance,
                "choices": [
                    {"choice": name, "trials": len(group.values), "mean": group.mean, "spread": group.spread}
                    for name, group in effect.groups.items()
                ],
            }
            for effect in axis_effects(board)
        ],
    }


def _result_json(result: TrialResult) -> dict[str, Any]:
    """Return one trial. Costs, which are the same for every seed, are numbers; other metrics are under `measured`."""
    trial = result.trial
    measured = {
        name: {"mean": one.mean, "spread": one.spread, "seeds": {str(seed): x for seed, x in one.values.items()}}
        for name, one in result.measured.items()
        if name not in COSTS
    }
    return {
        "rank": result.rank,
        **{key: getattr(trial, key) for key in ("number", "fingerprint", "point", "status", "pruned_at", "error")},
        "alike": result.is_alike,
        **{name: round(result.measured[name].mean) for name in COSTS},
        "at_most": [name for name in COSTS if result.measured[name].at_most],
        "tokens_per_second": result.tokens_per_second,
        "measured": measured,
        "folder": str(trial.folder),
    }
