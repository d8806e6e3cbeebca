"""What `--dry-run` tells: every point with what it costs, and why some of them are not trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from composer.errors import RecipeError
from composer.sweeps.axes import Axis, Point, Sweep, Value, complete
from composer.sweeps.axis_values import ends
from composer.sweeps.search_space import Costs, PointCost, costed, excludes_all, points_of

MOST_CORNERS = 100
"""So many structures of a search are listed whose points are not known before."""
UNITS = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True)
class Listed:
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
    rows: tuple[Listed, ...]
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


def dry_run_text(sweep: Sweep) -> Listing:
    """Every point with its costs. Imports torch. Raises RecipeError where `where` excludes all."""
    known = sweep.search.kind != "tpe"
    found = points_of(sweep) if known else _structures(sweep)
    if not known and all(each.excluded for each in found) and all(axis.labels is not None for axis in sweep.axes):
        raise RecipeError([excludes_all(sweep, found)])
    first: dict[str, int] = {}
    rows = []
    for number, each in enumerate(found, start=1):
        earlier = first.setdefault(each.fingerprint, number) if each.runs else number
        rows.append(Listed(number, each, None if earlier == number else earlier))
    return Listing(sweep, tuple(rows), corners=not known)


def _structures(sweep: Sweep) -> list[PointCost]:
    planned: dict[str, Costs] = {}
    return [costed(sweep, point, planned) for point in corners(sweep)]


def corners(sweep: Sweep) -> list[Point]:
    """The structures among which a search chooses: all labels, and of a range of whole numbers both ends."""
    order = [axis for axis in sweep.axes if axis.zipped is None]
    points: dict[str, Point] = {}
    for chosen in product(*(_ends(axis) for axis in order)):
        point = complete(sweep, {axis.name: value for axis, value in zip(order, chosen, strict=True)})
        points.setdefault(repr(point), point)
        if len(points) == MOST_CORNERS:
            break
    return list(points.values())


def _ends(axis: Axis) -> Sequence[Value]:
    if axis.labels is not None:
        return axis.labels
    return ends(axis) if axis.whole else ends(axis)[:1]


def _row_as_json(row: Listed) -> dict[str, Any]:
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


def _cells(row: Listed, axes: Sequence[Axis], corners: bool) -> list[str]:
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


def _note(row: Listed) -> str:
    if row.status == "excluded":
        return f"excluded by `{row.costed.condition}`"
    if row.status == "impossible":
        return f"impossible: {row.costed.faults[0].message}"
    return f"the same as {row.same_as}, trained once" if row.status == "double" else ""


def brief(number: float) -> str:
    """A large number with three digits: 1.23G."""
    at = 0
    while abs(number) >= 999.5 and at < len(UNITS) - 1:
        number, at = number / 1000, at + 1
    return f"{number:.3g}{UNITS[at]}"


def _told_faults(rows: Sequence[Listed]) -> list[str]:
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
    more = " or more" if len(found.rows) == MOST_CORNERS < _size(found.sweep) else ""
    structures = f"{counts['trained']}{more} structures{also}"
    return [f"{found.sweep.search.kind} chooses {_points(found.sweep.search.trials or 0)} among {structures}{each}"]


def _points(number: int) -> str:
    return f"{number} point{'' if number == 1 else 's'}"


def _size(sweep: Sweep) -> int:
    return math.prod(len(_ends(axis)) for axis in sweep.axes if axis.zipped is None)
