"""How a leaderboard is told in words: its numbers, its points, and what a mark means."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from composer.report.markup import clean
from composer.sweep.contributions import Choice, Contribution, contributions
from composer.sweep.leaderboard import EXACT, Board, Entry, Measured

SHARES = ("token_accuracy", "exact_match")
PRECISE = ("loss", "perplexity", "bits_per_sequence")
"""Metrics that are told by their leading digits."""
UNITS = ("", "k", "M", "G", "T", "P")
ALIKE = "≈"
NO_VALUE = "-"
"""What stands where an axis is not active, or nothing is known."""
LONGEST_ERROR = 100
TITLES = {"parameters": "parameters", "flops": "FLOPs", "state_bytes": "state bytes", "minutes": "minutes"}


def title(metric: str) -> str:
    """What a metric is called at the head of a column."""
    return TITLES.get(metric, metric)


def amount(metric: str, value: float) -> str:
    """A metric's value as one reads it."""
    name = metric.rpartition("/")[2]
    if metric in EXACT:
        return brief(value) if metric == "flops" else f"{value:,.0f}"
    return f"{value:.1%}" if name in SHARES else f"{value:.4g}" if name in PRECISE else f"{value:.2f}"


def brief(value: float) -> str:
    """A large number with three digits: 1.23G."""
    at = 0
    while abs(value) >= 999.5 and at < len(UNITS) - 1:
        value, at = value / 1000, at + 1
    return f"{value:.3g}{UNITS[at]}"


def average(metric: str, found: Measured | None) -> str:
    """A mean and, of several seeds, its spread."""
    if found is None:
        return ""
    mean = amount(metric, found.mean)
    return mean if found.spread is None else f"{mean} ± {deviation(metric, found.spread)}"


def deviation(metric: str, spread: float) -> str:
    """A standard deviation, which is never known to more than two digits."""
    return f"{spread:.2g}" if metric.rpartition("/")[2] in PRECISE else amount(metric, spread)


def difference(entry: Entry, best: Entry | None, metric: str) -> str:
    """How far an entry's mean is from the best's, marked where seeds may make it."""
    if best is None or entry is best or entry.rank is None:
        return ""
    less = entry.measured[metric].mean - best.measured[metric].mean
    said = amount(metric, abs(less))
    return f"{'-' if less < 0 else '+'}{said}{f' {ALIKE}' if entry.is_alike else ''}"


def choice(point: Mapping[str, object], axis: str) -> str:
    """What a point has on an axis."""
    value = point.get(axis, NO_VALUE)
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value))


def point_of(entry: Entry, axes: Sequence[str]) -> str:
    """A trial's point in one line."""
    return ", ".join(f"{clean(axis)} {choice(entry.trial.point, axis)}" for axis in axes if axis in entry.trial.point)


def status_of(entry: Entry) -> str:
    """How a trial stands."""
    trial = entry.trial
    if trial.status == "pruned" and trial.pruned_at is not None:
        return f"pruned at step {trial.pruned_at:,}"
    if trial.status == "finished" and entry.rank is None:
        return "finished, without a number to rank it by"
    return trial.status


def failures(board: Board) -> list[str]:
    """Each trial that failed, with the first line of its error."""
    failed = [entry for entry in board.entries if entry.trial.status == "failed"]
    return [f"{entry.trial.fingerprint} failed ({point_of(entry, board.axes)}): {why(entry)}" for entry in failed]


def why(entry: Entry) -> str:
    """The first line of a trial's error."""
    lines = (entry.trial.error or "").strip().splitlines()
    return shortened(clean(lines[0])) if lines else "it did not say why"


def shortened(text: str) -> str:
    """A text that is not long."""
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 3]}..."


def counts(board: Board) -> str:
    """How many trials there are, and how they stand."""
    stands = [entry.trial.status for entry in board.entries]
    told = [f"{stands.count(each)} {each}" for each in dict.fromkeys(stands)]
    return f"{len(stands)} trial{'' if len(stands) == 1 else 's'}: {', '.join(told)}" if stands else "no trials yet"


def rule(board: Board) -> str:
    """What the marks mean; where no trial has two seeds, that nothing is known of the spread."""
    metric = board.goals[0].metric
    found = [entry.measured[metric].spread for entry in board.ranked]
    order = f"Ranked by {title(metric)} ({'most' if board.goals[0].direction == 'max' else 'least'} first)"
    ties = ", ".join(title(goal.metric) for goal in board.goals[1:])
    order += f"; equal ones by {ties}." if ties else "."
    if metric in EXACT or not found:
        return order
    if all(spread is None for spread in found):
        return f"{order} One seed each: how much of a difference the seed alone would make is not known."
    return (
        f"{order} ± is the standard deviation over seeds (n - 1). {ALIKE}: the mean differs from the best's by no more "
        "than the larger of their two standard deviations, so that the seeds alone may make the difference."
    )


# ------------------------------------------------------------------------------------------- a table


class Column(NamedTuple):
    """A column of the table: its head, and whether its cells begin together, as words do, or end together."""

    head: str
    is_text: bool


def columns(board: Board) -> list[Column]:
    """The table's columns."""
    first, *others = measures(board)
    words = [Column(clean(name), True) for name in ("rank", *board.axes)]
    apart = [] if first in EXACT else [Column("to the best", False)]
    numbers = [Column(title(name), False) for name in (*others, "tokens/s")]
    return [*words, Column(title(first), False), *apart, *numbers, Column("status", True), Column("trial", True)]


def measures(board: Board) -> list[str]:
    """What the table says of each trial: the goals, then what it costs."""
    return [*dict.fromkeys([*(goal.metric for goal in board.goals), "parameters", "flops", "minutes"])]


def cells(board: Board, entry: Entry) -> list[str]:
    """One entry's row of the table, as `columns` has it."""
    first, *others = measures(board)
    best = next(iter(board.ranked), None)
    rank = "" if entry.rank is None else str(entry.rank)
    apart = [] if first in EXACT else [difference(entry, best, first)]
    speed = "" if entry.tokens_per_second is None else f"{entry.tokens_per_second:,.0f}"
    return [
        rank, *(choice(entry.trial.point, axis) for axis in board.axes),
        average(first, entry.measured.get(first)), *apart,
        *(average(name, entry.measured.get(name)) for name in others),
        speed, status_of(entry), entry.trial.fingerprint,
    ]  # fmt: skip


def text_of(board: Board) -> str:
    """The leaderboard for a terminal."""
    heads = columns(board)
    rows = [[column.head for column in heads], *(cells(board, entry) for entry in board.entries)]
    table = [*aligned(rows, [column.is_text for column in heads]), "", *failures(board)] if board.entries else []
    told = [f"{clean(board.name)}: {counts(board)}", "", *table, rule(board), *axes_of(board)]
    return "\n".join([*told, f"Each trial lies in {board.folder / 'trials'}, by its name."] if rows[1:] else told)


def axes_of(board: Board) -> list[str]:
    """What each axis contributes, each in a line."""
    metric = board.goals[0].metric
    found = contributions(board) if metric not in EXACT else []
    told = [
        [f"  {clean(each.axis)}", share_of(each), ", ".join(chosen(metric, choice) for choice in each.choices)]
        for each in found
    ]
    heads = ["  axis", "share of the variance", f"{title(metric)} by choice: mean ± deviation over (n) trials"]
    return ["", *aligned([heads, *told], [True, False, True]), ""] if told else []


def share_of(found: Contribution) -> str:
    """The share of the variance that an axis has."""
    return "not known" if found.share is None else f"{found.share:.0%}"


def chosen(metric: str, found: Choice) -> str:
    """What came of one choice of an axis."""
    spread = "" if found.spread is None else f" ± {deviation(metric, found.spread)}"
    return f"{clean(found.name)} {amount(metric, found.mean)}{spread} ({found.trials})"


def aligned(rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> list[str]:
    """Rows whose columns stand below each other, the first with a line below it."""
    widths = [max(map(room, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(padded, row, widths, is_text)).rstrip() for row in rows]
    return [lines[0], "─" * (sum(widths) + 2 * (len(widths) - 1)), *lines[1:]]


def padded(text: str, width: int, is_text: bool) -> str:
    """A text with blanks after it, or before it."""
    blanks = " " * (width - room(text))
    return text + blanks if is_text else blanks + text


def room(text: str) -> int:
    """How many cells of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )
