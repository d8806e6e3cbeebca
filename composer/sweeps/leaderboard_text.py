"""The leaderboard as a terminal table and as JSON: its numbers, columns and notes in words."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from composer.formatting import align_columns, count_each, count_noun, format_bound, si, significant
from composer.recipe.metrics import format_score, is_share, metric_of
from composer.sweeps.leaderboard import Leaderboard, Measurement, TrialResult
from composer.sweeps.sweep import COSTS, ERROR_RATE, format_value

if TYPE_CHECKING:
    from composer.sweeps.significance import Contributions, ValueEffect

ALIKE, DIFFERENT = "≈", "*"
ERROR_PERCENT = f"{100 * ERROR_RATE:g} %"
MAX_GROUPS = 4
"""Ranges, with equally many trials each, into which an axis of many numbers is cut."""
DISPENSABLE = ("minutes", "state bytes", "FLOPs", "parameters")
"""Columns of trials that a narrow terminal does without, the first of them first; after them the
further goals.
"""


def metric_title(metric: str) -> str:
    """Return the name of a metric or cost at the head of a column."""
    return {"flops": "FLOPs", "state_bytes": "state bytes"}.get(metric, metric)


def format_metric(metric: str, value: float) -> str:
    """Return a score as its metric is written; a cost as a whole number or with an SI prefix."""
    if metric in COSTS:
        return si(value) if metric == "flops" else f"{value:,.0f}"
    return format_score(metric, value)


def format_mean(metric: str, measurement: Measurement | None) -> str:
    """Return a mean and, of several seeds, its standard deviation; a cost that is an upper bound is
    marked.
    """
    if measurement is None:
        return ""
    mean = format_bound(format_metric(metric, measurement.mean), measurement.at_most)
    return (
        mean
        if measurement.spread is None
        else f"{mean} ± {format_spread(metric, measurement.spread)}"
    )


def format_spread(metric: str, spread: float) -> str:
    """Return a standard deviation, of which no more than two digits are ever known."""
    known = None if is_share(metric) else metric_of(metric)
    return (
        significant(spread, 2) if known and known.highest is None else format_metric(metric, spread)
    )


def format_difference(metric: str, result: TrialResult, best: TrialResult | None) -> str:
    """Return how far a result's mean is from the best's, of shares in percentage points: "%" would
    be relative.
    """
    if best is None or result is best or result.rank is None:
        return ""
    difference = result.measured[metric].mean - best.measured[metric].mean
    points = " points" if difference and is_share(metric) else ""
    return f"{format_signed(metric, difference)}{points}" if difference else "equal"


def format_signed(metric: str, difference: float) -> str:
    """Return a difference with its sign, of shares in percentage points."""
    if is_share(metric):
        return f"{100 * difference:+.1f}"
    return f"{'-' if difference < 0 else '+'}{format_spread(metric, abs(difference))}"


def point_text(result: TrialResult, axes: Sequence[str]) -> str:
    """Return a trial's point in one line."""
    point = result.trial.point
    return ", ".join(f"{axis} {format_value(point[axis])}" for axis in axes if axis in point)


def failure_lines(board: Leaderboard) -> list[str]:
    """Return each trial that failed, with the first line of its error."""
    failed = [result for result in board.results if result.trial.status == "failed"]
    errors = [
        (one.trial.error or "no error was recorded").strip().partition("\n")[0] for one in failed
    ]
    names = [f"{one.trial.fingerprint} failed ({point_text(one, board.axes)})" for one in failed]
    return [f"{name}: {error}" for name, error in zip(names, errors, strict=True)]


def count_text(board: Leaderboard) -> str:
    """Return how many trials there are of each status."""
    counts = count_each(result.trial.status for result in board.results)
    return f"{count_noun(len(board.results), 'trial')}: {counts}" if counts else "no trials yet"


def ranking_note(board: Leaderboard) -> str:
    """Return how trials are ranked and what the marks mean, or that a single seed says nothing of
    the spread.
    """
    goal, *others = board.goals
    spreads = [result.measured[goal.metric].spread for result in board.ranked]
    ties = ", ".join(metric_title(other.metric) for other in others)
    note = (
        f"Ranked by {metric_title(goal.metric)} ({'most' if goal.direction == 'max' else 'least'}"
        " first)"
    )
    note += f"; equal ones by {ties}." if ties else "."
    if goal.metric in COSTS or not spreads:
        return note
    note = " ".join([note, *_tuning_notes(board)])
    if not board.has_same_data:
        note += " The sweeps have different data, so their scores cannot be compared."
    if all(spread is None for spread in spreads):
        return (
            f"{note} One seed each: the spread between seeds is not known, nor is which differences"
            " are by chance."
        )
    return (
        f"{note} ± is the standard deviation over seeds (n - 1). {ALIKE}: cannot be told from the"
        " best; trials without it are worse (moderated t-tests, paired over seeds where all trials"
        f" have the same ones, corrected for all pairs of trials: at most {ERROR_PERCENT} of sweeps"
        " have a trial without it that is as good; up to 12 % with two seeds, or where trials vary"
        " unequally)." + (" Trials with one seed are not compared." if None in spreads else "")
    )


def _tuning_notes(board: Leaderboard) -> Iterator[str]:
    """Yield that each trial is the best of several, by what, and of how many."""
    for metric in dict.fromkeys(board.tuned.values()):
        axes = " and ".join(axis for axis, by in board.tuned.items() if by == metric)
        others = Counter(
            result.better.fingerprint for result in board.results if result.better is not None
        )
        least, most = (
            which(1 + others[one.trial.fingerprint] for one in board.ranked) for which in (min, max)
        )
        number = f"{least}" if least == most else f"{least} to {most}"
        yield (
            f"Each is the best by {metric} of the trials that differ in {axes} alone, {number} of"
            " them."
        )
        if least != most:
            yield "The best of more trials is better by chance alone."


def contributions(board: Leaderboard) -> Contributions | None:
    """Return what the axes contribute to the first goal; None if that is known before training, or
    of no axis.
    """
    metric = board.goals[0].metric
    if metric in COSTS or len(board.ranked) < 2:
        return None
    from composer.sweeps.significance import fit_contributions  # SciPy takes a while to import

    axes = [axis for axis in board.axes if axis not in board.zipped and axis not in board.tuned]
    groups = {axis: group_by_value(board, axis) for axis in axes}
    fitted = fit_contributions(groups, [result.measured[metric].values for result in board.ranked])
    return fitted if fitted.effects else None


def contribution_notes(board: Leaderboard, fitted: Contributions) -> Iterator[str]:
    """Yield how the effects were computed, how sure they are, and what cannot be told."""
    if fitted.df:
        by_seeds = "the seeds alone"
        if len(fitted.effects) > 1:
            by_seeds += ", since the trials are too few to say how far they are from the model"
        of = "seeds" if fitted.by_seeds else "trials"
        df = f"{count_noun(f'{fitted.df:g}', 'degree')} of freedom of the {of}"
        yield (
            "Means are adjusted by an additive model of the axes, fitted to the finished trials;"
            " differences are to the reference. An interval holds its difference in 95 % of"
            " sweeps; its width comes from"
            f" {by_seeds if fitted.by_seeds else 'how far trials are from the model'} ({df})."
            f" {DIFFERENT}: not by chance, corrected for all differences of this table (Holm): of"
            f" sweeps in which no value matters, at most {ERROR_PERCENT} have a {DIFFERENT}. A"
            f" value's trials together tell more than one trial does, so they may be {ALIKE} where"
            f" it has a {DIFFERENT}."
        )
    else:
        yield (
            "What the axes contribute cannot be told from chance: each trial has one seed, and the"
            " trials are no more than the values that they try."
        )
    if fitted.additivity is not None and fitted.additivity < ERROR_RATE:
        yield (
            "The axes act on each other (F test of the additive model: p ="
            f" {significant(fitted.additivity, 2)}): what a value contributes depends on the other"
            " axes."
        )
    unknown = [
        f"`{axis}: {one.value}`"
        for axis, row in fitted.effects.items()
        for one in row
        if one.mean is None
    ]
    if unknown:
        yield (
            f"Too few combinations were tried to separate {', '.join(unknown)} from the other axes."
        )
    if any(result.trial.status == "pruned" for result in board.results):
        yield (
            "Pruned trials are in none of this: a value of which many were pruned looks better than"
            " it is."
        )


def group_by_value(board: Leaderboard, axis: str) -> dict[str, list[int]]:
    """Return the indices of ranked trials by their value on an axis, in the file's order.

    Many numbers are cut into ranges; trials in which the axis is not active are in no group.
    """
    trials = [result.trial for result in board.ranked]
    by_number = sorted(range(len(trials)), key=lambda index: trials[index].number)
    values = {
        index: trials[index].point[axis] for index in by_number if axis in trials[index].point
    }
    are_numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values.values()
    )
    order = [*board.labels.get(axis, ()), *values.values()]
    indices = sorted(
        values,
        key=lambda index: float(values[index]) if are_numbers else order.index(values[index]),
    )
    is_cut = are_numbers and len({*values.values()}) > 2 * MAX_GROUPS
    ends: Sequence[int] = range(len(indices) + 1)
    if is_cut:
        sizes = [len(list(same)) for _, same in groupby(values[index] for index in indices)]
        parts = [len(indices) * part // MAX_GROUPS for part in range(MAX_GROUPS + 1)]
        changes = [0, *accumulate(sizes)]
        # equal values stay together
        ends = sorted({min(end for end in changes if end >= part) for part in parts})
    groups: dict[str, list[int]] = {}
    for start, end in pairwise(ends):
        low, high = (format_value(values[indices[at]]) for at in (start, end - 1))
        groups.setdefault(low if low == high else f"{low} to {high}", []).extend(indices[start:end])
    return groups


class Column(NamedTuple):
    """A column of a table, with a cell for each row; texts are aligned to the left, and numbers to
    the right.
    """

    head: str
    is_text: bool
    cells: Sequence[str]


def shown_metrics(board: Leaderboard) -> list[str]:
    """Return the metrics of the table of trials: the goals, then costs."""
    return [
        *dict.fromkeys([*(goal.metric for goal in board.goals), "parameters", "flops", "minutes"])
    ]


def columns(board: Leaderboard) -> list[Column]:
    """Return the columns of the table of trials, the fingerprint last."""
    first, *others = shown_metrics(board)
    results = board.results
    best = next(iter(board.ranked), None)
    ranks = [
        "" if one.rank is None else f"{one.rank}{f' {ALIKE}' if one.is_alike else ''}"
        for one in results
    ]
    means = {
        name: [format_mean(name, one.measured.get(name)) for one in results]
        for name in (first, *others)
    }
    table = [Column("rank", True, ranks), Column(metric_title(first), False, means[first])]
    values = {
        axis: [format_value(one.trial.point.get(axis, "-")) for one in results]
        for axis in board.axes
    }
    table += [Column(axis, True, values[axis]) for axis in board.axes]
    if first not in COSTS:
        table.append(
            Column("to the best", False, [format_difference(first, one, best) for one in results])
        )
    table += [Column(metric_title(name), False, means[name]) for name in others]
    seeds = [len(one.trial.finished_seeds) for one in results]
    if len({*seeds[: len(board.ranked)]}) > 1:
        table.append(Column("seeds", False, [*map(str, seeds)]))
    table.append(Column("status", True, [status_text(one) for one in results]))
    return [*table, Column("trial", True, [one.trial.fingerprint for one in results])]


def status_text(result: TrialResult) -> str:
    """Return how a trial stands, in words."""
    if result.trial.status == "pruned" and result.trial.pruned_at is not None:
        return f"pruned at step {result.trial.pruned_at:,}"
    if result.better is not None:
        return f"{result.trial.status}, better tuned in {result.better.fingerprint}"
    has_no_rank = result.trial.status == "finished" and result.rank is None
    return "finished, without a number to rank it by" if has_no_rank else result.trial.status


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """Return the leaderboard for a terminal of so many cells; None for any width."""
    head = f"{board.name}: {count_text(board)}"
    if not board.results:
        return "\n".join([head, "", ranking_note(board)])
    notes = [_wrap(text, width) for text in (*failure_lines(board), ranking_note(board))]
    folders = dict.fromkeys(str(result.trial.folder.parent) for result in board.results)
    place = f"Each trial has the folder {' or '.join(f'{folder}/TRIAL' for folder in folders)}."
    dispensable = (
        *DISPENSABLE,
        *map(metric_title, reversed(shown_metrics(board)[1:])),
        "to the best",
        "trial",
    )
    trials = _table_lines(columns(board), dispensable, width)
    return "\n".join([head, "", *trials, "", *notes, *_effect_lines(board, width), "", place])


def _wrap(text: str, width: int | None) -> str:
    return (
        text
        if width is None
        else textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    )


def _table_lines(
    table: Sequence[Column], dispensable: Sequence[str], width: int | None
) -> list[str]:
    """Return as much of a table as fits, and which columns do not: of `dispensable` heads as many
    as it takes.
    """
    shown, lines = [*table], _ruled_table(table)
    for head in dispensable:
        if width is None or cell_len(lines[1]) <= width:
            break
        shown = [column for column in shown if column.head != head]
        lines = _ruled_table(shown)
    dropped = ", ".join(column.head for column in table if column not in shown)
    note = f"Columns left out for lack of width: {dropped}. See the HTML page or --json."
    return [*lines, *(["", _wrap(note, width)] if dropped else [])]


def _ruled_table(table: Sequence[Column]) -> list[str]:
    """Return the lines of a table, the second a rule as wide as it is."""
    rows = [*zip(*([column.head, *column.cells] for column in table), strict=True)]
    head, *lines = align_columns(rows, [column.is_text for column in table])
    return [head, "─" * max(map(cell_len, (head, *lines))), *lines]


def _effect_lines(board: Leaderboard, width: int | None) -> list[str]:
    """Return the effects of the axes, each value in a line, and what they mean."""
    fitted = contributions(board)
    if fitted is None:
        return []
    table = effect_columns(board, fitted)
    lines = _table_lines(table, [table[3].head, table[2].head], width) if fitted.df else []
    return ["", *lines, *(_wrap(note, width) for note in contribution_notes(board, fitted))]


def effect_columns(board: Leaderboard, fitted: Contributions) -> list[Column]:
    """Return the table of the axes, with a row for each value, and the axis in the first of its
    rows.
    """
    metric = board.goals[0].metric
    points = " (points)" if is_share(metric) else ""
    heads = (
        "axis",
        "value",
        "trials",
        f"adjusted {metric_title(metric)}",
        f"difference{points}",
        "95 % interval",
    )
    are_texts = (True, True, False, False, False, True)
    rows = [
        (effect_title(board, axis) if effect is effects[0] else "", *effect_cells(metric, effect))
        for axis, effects in fitted.effects.items()
        for effect in effects
    ]
    return [*map(Column, heads, are_texts, zip(*rows, strict=True))]


def effect_cells(metric: str, effect: ValueEffect) -> list[str]:
    """Return a value, its trials, mean, and difference from the reference with the interval of
    that, in words.
    """
    mean = "?" if effect.mean is None else format_metric(metric, effect.mean)
    head = [effect.value, str(effect.trials), mean]
    if effect.difference is None or effect.interval is None or effect.p_value is None:
        return [*head, "reference" if effect.is_reference else "?", ""]
    low, high = (format_signed(metric, end) for end in effect.interval)
    mark = f" {DIFFERENT}" if effect.p_value < ERROR_RATE else ""
    return [*head, format_signed(metric, effect.difference), f"{low} to {high}{mark}"]


def effect_title(board: Leaderboard, axis: str) -> str:
    """Return the name of an axis, and of those that are zipped to it."""
    followers = (name for name, leader in board.zipped.items() if leader == axis)
    return ", ".join((axis, *followers))


def leaderboard_json(board: Leaderboard) -> dict[str, object]:
    """Return a leaderboard without its curves as plain data."""
    fitted = contributions(board)
    return {
        "name": board.name,
        "rank": [{goal.metric: goal.direction} for goal in board.goals],
        "axes": [*board.axes],
        "trials": [_result_json(result) for result in board.results],
        "notes": [ranking_note(board), *(contribution_notes(board, fitted) if fitted else ())],
        "contributions": fitted and asdict(fitted),
    }


def _result_json(result: TrialResult) -> dict[str, object]:
    """Return one trial. Costs, which are the same for every seed, are numbers; other metrics are
    under `measured`.
    """
    trial = result.trial
    measured = {
        name: {
            "mean": one.mean,
            "spread": one.spread,
            "seeds": {str(seed): x for seed, x in one.values.items()},
        }
        for name, one in result.measured.items()
        if name not in COSTS
    }
    return {
        "rank": result.rank,
        **{
            key: getattr(trial, key)
            for key in ("number", "fingerprint", "point", "status", "pruned_at", "error")
        },
        "alike": None if result.p_value is None else result.is_alike,
        "p_value": result.p_value,
        "better": result.better and result.better.fingerprint,
        **{name: round(result.measured[name].mean) for name in COSTS},
        "at_most": [name for name in COSTS if result.measured[name].at_most],
        "measured": measured,
        "folder": str(trial.folder),
    }
