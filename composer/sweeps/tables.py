"""What `--dry-run` tells: every point with what it costs, and why some of them are not trained."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from composer.errors import RecipeError
from composer.formatting import significant, strip_control_characters
from composer.recipe.metrics import metric_of
from composer.sweeps.axes import Axis, Point, Sweep, Value, complete
from composer.sweeps.consistency import end_values
from composer.sweeps.leaderboard import (
    EXACT,
    AxisEffect,
    Entry,
    Leaderboard,
    Measurement,
    ValueGroup,
    informative_effects,
)
from composer.sweeps.search_space import Costs, PointCost, all_excluded_fault, cost_point, enumerate_points

MAX_STRUCTURES = 100
"""So many structures of a search are listed whose points are not known before."""


@dataclass(frozen=True)
class ListedPoint:
    """One point with its number; `same_as` is the number of an earlier one with the same fingerprint."""

    number: int
    costed: PointCost
    same_as: int | None

    @property
    def status(self) -> str:
        """trained, excluded, impossible, or double: trained as another one."""
        if self.costed.excluded:
            return "excluded"
        if self.costed.faults:
            return "impossible"
        return "trained" if self.same_as is None else "double"


@dataclass(frozen=True)
class Listing:
    """The points of a sweep. `corners`: these are not the points, but the structures that the search chooses among."""

    sweep: Sweep
    rows: tuple[ListedPoint, ...]
    corners: bool

    def as_json(self) -> dict[str, Any]:
        """The listing as plain data."""
        return {
            "name": self.sweep.name,
            "search": self.sweep.search.kind,
            "trials": self.sweep.search.trials,
            "seeds": list(self.sweep.seeds),
            "known": not self.corners,
            "points": [_row_as_json(row) for row in self.rows],
        }

    def text(self) -> str:
        """The listing as a table, what is wrong with impossible points, and the sum."""
        lines = [*_table(self), "", *_told_faults(self.rows), *_sum(self)]
        return "\n".join(lines)


def list_points(sweep: Sweep) -> Listing:
    """Every point with its costs. Imports torch. Raises RecipeError where `where` excludes all."""
    known = sweep.search.kind != "tpe"
    found = enumerate_points(sweep) if known else _structures(sweep)
    if not known and all(each.excluded for each in found) and all(axis.labels is not None for axis in sweep.axes):
        raise RecipeError([all_excluded_fault(sweep, found)])
    first: dict[str, int] = {}
    rows = []
    for number, each in enumerate(found, start=1):
        earlier = first.setdefault(each.fingerprint, number) if each.runs else number
        rows.append(ListedPoint(number, each, None if earlier == number else earlier))
    return Listing(sweep, tuple(rows), corners=not known)


def _structures(sweep: Sweep) -> list[PointCost]:
    planned: dict[str, Costs] = {}
    return [cost_point(sweep, point, planned) for point in structures(sweep)]


def structures(sweep: Sweep) -> list[Point]:
    """The structures among which a search chooses: all labels, and of a range of whole numbers both ends."""
    order = [axis for axis in sweep.axes if axis.zipped is None]
    points: dict[str, Point] = {}
    for chosen in product(*(_ends(axis) for axis in order)):
        point = complete(sweep, {axis.name: value for axis, value in zip(order, chosen, strict=True)})
        points.setdefault(repr(point), point)
        if len(points) == MAX_STRUCTURES:
            break
    return list(points.values())


def _ends(axis: Axis) -> Sequence[Value]:
    if axis.labels is not None:
        return axis.labels
    return end_values(axis) if axis.whole else end_values(axis)[:1]


def _row_as_json(row: ListedPoint) -> dict[str, Any]:
    each = row.costed
    return {
        "number": row.number,
        "point": each.point,
        "fingerprint": each.fingerprint,
        "status": row.status,
        "same_as": row.same_as,
        "parameters": each.parameters,
        "flops": each.flops,
        "state_bytes": each.state_bytes,
        "condition": each.condition,
        "errors": [fault.as_dict() for fault in each.faults],
    }


# ------------------------------------------------------------------------------------------- as text


def _table(found: Listing) -> list[str]:
    names = [axis.name for axis in found.sweep.axes]
    head = ["point", *names, "parameters", "FLOPs", "state bytes", ""]
    rows = [head, *(_cells(row, found.sweep.axes, found.corners) for row in found.rows)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    right = {0, len(names) + 1, len(names) + 2, len(names) + 3}
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(row: ListedPoint, axes: Sequence[Axis], corners: bool) -> list[str]:
    each = row.costed
    costs = [f"{each.parameters:,}", brief(each.flops), f"{each.state_bytes:,}"] if each.parameters else ["", "", ""]
    return [str(row.number), *(_value(axis, each.point, corners) for axis in axes), *costs, _note(row)]


def _value(axis: Axis, point: Point, corners: bool) -> str:
    if axis.name not in point:
        return "-"
    if corners and axis.labels is None and not axis.whole:
        return f"{axis.low:g} to {axis.high:g}"
    value = point[axis.name]
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _note(row: ListedPoint) -> str:
    if row.status == "excluded":
        return f"excluded by `{row.costed.condition}`"
    if row.status == "impossible":
        return f"impossible: {row.costed.faults[0].message}"
    return f"the same as {row.same_as}, trained once" if row.status == "double" else ""


def _told_faults(rows: Sequence[ListedPoint]) -> list[str]:
    """Each error of a recipe once, with the points that it makes impossible."""
    points: dict[str, list[int]] = {}
    for row in rows:
        if row.status == "impossible":
            points.setdefault(RecipeError(row.costed.faults).render().rpartition("\n")[0], []).append(row.number)
    lines: list[str] = []
    for told, numbers in points.items():
        which = f"point {numbers[0]}" if len(numbers) == 1 else f"points {', '.join(map(str, numbers))}"
        lines += [f"impossible, {which}:", told, ""]
    return lines


def _sum(found: Listing) -> list[str]:
    counts = {
        status: sum(row.status == status for row in found.rows)
        for status in ("trained", "double", "excluded", "impossible")
    }
    seeds = len(found.sweep.seeds)
    each = "" if seeds == 1 else f", each with {seeds} seeds"
    others = [f"{number} {name}" for name, number in counts.items() if number and name != "trained"]
    also = f"; {', '.join(others)}" if others else ""
    if not found.corners:
        return [f"{_points(counts['trained'])} to train{each}{also}"]
    more = " or more" if len(found.rows) == MAX_STRUCTURES < _size(found.sweep) else ""
    structures = f"{counts['trained']}{more} structures{also}"
    return [f"{found.sweep.search.kind} chooses {_points(found.sweep.search.trials or 0)} among {structures}{each}"]


def _points(number: int) -> str:
    return f"{number} point{'' if number == 1 else 's'}"


def _size(sweep: Sweep) -> int:
    return math.prod(len(_ends(axis)) for axis in sweep.axes if axis.zipped is None)


UNITS = ("", "k", "M", "G", "T", "P")
ALIKE = "≈"
NO_VALUE = "-"
"""What stands where an axis is not active, or nothing is known."""
LONGEST_ERROR = 100
SHARE = "variance: the share of it between an axis's choices; by chance: what an axis without effect has."
LEFT_OUT = ("tokens/s", "minutes", "state bytes", "FLOPs", "parameters")
"""Columns that a narrow terminal does without, the first of them first; after them the further goals."""
TITLES = {"parameters": "parameters", "flops": "FLOPs", "state_bytes": "state bytes", "minutes": "minutes"}


def title(metric: str) -> str:
    """What a metric is called at the head of a column."""
    return TITLES.get(metric, metric)


def amount(metric: str, value: float) -> str:
    """A metric's value as one reads it."""
    if metric in EXACT:
        return brief(value) if metric == "flops" else f"{value:,.0f}"
    known = metric_of(metric)
    return known.format(value) if known else f"{value:.2f}"


def brief(value: float) -> str:
    """A large number with three digits: 1.23G."""
    at = 0
    while abs(value) >= 999.5 and at < len(UNITS) - 1:
        value, at = value / 1000, at + 1
    return f"{value:.3g}{UNITS[at]}"


def average(metric: str, found: Measurement | None) -> str:
    """A mean and, of several seeds, its spread."""
    if found is None:
        return ""
    mean = amount(metric, found.mean)
    return mean if found.spread is None else f"{mean} ± {deviation(metric, found.spread)}"


def deviation(metric: str, spread: float) -> str:
    """A standard deviation, which is never known to more than two digits."""
    known = metric_of(metric)
    return significant(spread, 2) if known and known.highest is None else amount(metric, spread)


def difference(entry: Entry, best: Entry | None, metric: str) -> str:
    """How far an entry's mean is from the best's."""
    if best is None or entry is best or entry.rank is None:
        return ""
    less = entry.measured[metric].mean - best.measured[metric].mean
    return apart(metric, less) if less else "equal"


def is_share(metric: str) -> bool:
    """Return whether a metric runs from 0 to 1."""
    known = metric_of(metric)
    return known is not None and known.highest == 1


def apart(metric: str, less: float) -> str:
    """A difference; of shares in points of a hundred, since a percentage of a percentage is something else."""
    if is_share(metric):
        return f"{100 * less:+.1f} points"
    return f"{'-' if less < 0 else '+'}{deviation(metric, abs(less))}"


def choice(point: Mapping[str, object], axis: str) -> str:
    """What a point has on an axis."""
    value = point.get(axis, NO_VALUE)
    return f"{value:.4g}" if isinstance(value, float) else strip_control_characters(str(value))


def point_of(entry: Entry, axes: Sequence[str]) -> str:
    """A trial's point in one line."""
    return ", ".join(
        f"{strip_control_characters(axis)} {choice(entry.trial.point, axis)}"
        for axis in axes
        if axis in entry.trial.point
    )


def status_of(entry: Entry) -> str:
    """How a trial stands."""
    trial = entry.trial
    if trial.status == "pruned" and trial.pruned_at is not None:
        return f"pruned at step {trial.pruned_at:,}"
    if trial.status == "finished" and entry.rank is None:
        return "finished, without a number to rank it by"
    return trial.status


def failures(board: Leaderboard) -> list[str]:
    """Each trial that failed, with the first line of its error."""
    failed = [entry for entry in board.entries if entry.trial.status == "failed"]
    return [f"{entry.trial.fingerprint} failed ({point_of(entry, board.axes)}): {why(entry)}" for entry in failed]


def why(entry: Entry) -> str:
    """The first line of a trial's error."""
    lines = (entry.trial.error or "").strip().splitlines()
    return shortened(strip_control_characters(lines[0])) if lines else "it did not say why"


def shortened(text: str) -> str:
    """A text that is not long."""
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 3]}..."


def counts(board: Leaderboard) -> str:
    """How many trials there are, and how they stand."""
    stands = [entry.trial.status for entry in board.entries]
    told = [f"{stands.count(each)} {each}" for each in dict.fromkeys(stands)]
    return f"{len(stands)} trial{'' if len(stands) == 1 else 's'}: {', '.join(told)}" if stands else "no trials yet"


def rule(board: Leaderboard) -> str:
    """What the marks mean; where no trial has two seeds, that nothing is known of the spread."""
    metric = board.goals[0].metric
    found = [entry.measured[metric].spread for entry in board.ranked]
    order = f"Ranked by {title(metric)} ({'most' if board.goals[0].direction == 'max' else 'least'} first)"
    ties = ", ".join(title(goal.metric) for goal in board.goals[1:])
    order += f"; equal ones by {ties}." if ties else "."
    order += "".join(
        f" {strip_control_characters(axis)} is the same as {strip_control_characters(other)}."
        for axis, other in board.same.items()
    )
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


def columns(board: Leaderboard) -> list[Column]:
    """The table's columns."""
    first, *others = measures(board)
    axes = [Column(strip_control_characters(name), True) for name in board.axes]
    away = [] if first in EXACT else [Column("to the best", False)]
    numbers = [Column(title(name), False) for name in (*others, "tokens/s")]
    ends = [Column("status", True), Column("trial", True)]
    return [Column("rank", True), Column(title(first), False), *axes, *away, *numbers, *ends]


def measures(board: Leaderboard) -> list[str]:
    """What the table says of each trial: the goals, then what it costs."""
    return [*dict.fromkeys([*(goal.metric for goal in board.goals), "parameters", "flops", "minutes"])]


def cells(board: Leaderboard, entry: Entry) -> list[str]:
    """One entry's row of the table, as `columns` has it."""
    first, *others = measures(board)
    best = next(iter(board.ranked), None)
    rank = "" if entry.rank is None else f"{entry.rank}{f' {ALIKE}' if entry.is_alike else ''}"
    away = [] if first in EXACT else [difference(entry, best, first)]
    speed = "" if entry.tokens_per_second is None else f"{entry.tokens_per_second:,.0f}"
    return [
        rank,
        average(first, entry.measured.get(first)),
        *(choice(entry.trial.point, axis) for axis in board.axes),
        *away,
        *(average(name, entry.measured.get(name)) for name in others),
        speed,
        status_of(entry),
        entry.trial.fingerprint,
    ]


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """The leaderboard for a terminal of so many columns; None: of any width."""
    head = f"{strip_control_characters(board.name)}: {counts(board)}"
    if not board.entries:
        return "\n".join([head, "", rule(board)])
    lies = f"Each trial lies in {board.folder / 'trials'}, by its name."
    prose = [folded(text, width) for text in (*failures(board), rule(board))]
    return "\n".join([head, "", *trials_of(board, width), "", *prose, *axes_of(board, width), "", lies])


def terminal_width() -> int | None:
    """How wide the terminal is that is written to; None where it is no terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if known else None


def folded(text: str, width: int | None) -> str:
    """A paragraph in lines that are not longer; words stay whole."""
    return text if width is None else textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def trials_of(board: Leaderboard, width: int | None) -> list[str]:
    """The table of the trials, as much of it as there is room for, and what there was no room for."""
    heads = columns(board)
    table = [[each.head for each in heads], *(cells(board, entry) for entry in board.entries)]
    sides = [*zip(*table, strict=True)]
    gone: list[str] = []
    for name in (*LEFT_OUT, *map(title, reversed(measures(board)[1:])), "to the best", "trial"):
        if width is None or taken(sides) <= width:
            break
        gone += [name] if any(side[0] == name for side in sides) else []
        sides = [side for side in sides if side[0] != name]
    is_text = {each.head: each.is_text for each in heads}
    gap = 2 if width is None or taken(sides) <= width else 1
    lines = aligned([*zip(*sides, strict=True)], [is_text[side[0]] for side in sides], gap)
    note = f"No room here for {', '.join(gone)}: a wider terminal, the page and --json have them."
    return [*lines, *(["", folded(note, width)] if gone else [])]


def taken(sides: Sequence[Sequence[str]]) -> int:
    """How many columns of a terminal a table's columns need."""
    return sum(max(map(room, side)) for side in sides) + 2 * (len(sides) - 1)


def axes_of(board: Leaderboard, width: int | None) -> list[str]:
    """What each axis contributes, each choice in a line."""
    metric = board.goals[0].metric
    found = informative_effects(board)
    if not found:
        return []
    told = [line for each in found for line in choices_of(metric, each)]
    heads = ["axis", "variance", "by chance", "choice", "trials", title(metric)]
    return ["", *aligned([heads, *told], [True, False, False, True, False, True]), folded(SHARE, width)]


def choices_of(metric: str, found: AxisEffect) -> list[list[str]]:
    """The lines of one axis; its name and its share stand in the first."""
    first = [named(found), share_of(found), chance_of(found)]
    lines = [[strip_control_characters(each.name), str(each.trials), chosen(metric, each)] for each in found.choices]
    return [[*(first if at == 0 else [""] * 3), *line] for at, line in enumerate(lines)]


def named(found: AxisEffect) -> str:
    """An axis, and those that take their values with it."""
    return ", ".join(map(strip_control_characters, (found.axis, *found.beside)))


def share_of(found: AxisEffect) -> str:
    """The share of the variance that an axis has; nothing where it is not known."""
    return "" if found.share is None else f"{found.share:.0%}"


def chance_of(found: AxisEffect) -> str:
    """The share that an axis would have by chance."""
    return "" if found.chance is None else f"{found.chance:.0%}"


def chosen(metric: str, found: ValueGroup) -> str:
    """What came of one choice of an axis: mean and standard deviation over its trials."""
    spread = "" if found.spread is None else f" ± {deviation(metric, found.spread)}"
    return f"{amount(metric, found.mean)}{spread}"


def aligned(rows: Sequence[Sequence[str]], is_text: Sequence[bool], gap: int = 2) -> list[str]:
    """Rows whose columns stand below each other, the first with a line below it."""
    widths = [max(map(room, column)) for column in zip(*rows, strict=True)]
    lines = [(" " * gap).join(map(padded, row, widths, is_text)).rstrip() for row in rows]
    return [lines[0], "─" * (sum(widths) + gap * (len(widths) - 1)), *lines[1:]]


def padded(text: str, width: int, is_text: bool) -> str:
    """A text with blanks after it, or before it."""
    blanks = " " * (width - room(text))
    return text + blanks if is_text else blanks + text


def room(text: str) -> int:
    """How many cells of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )
