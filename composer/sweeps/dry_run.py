"""The dry run of a sweep: every point with its costs, and why some of them are not trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from composer.errors import RecipeError
from composer.formatting import align_columns, si
from composer.sweeps.axes import COSTS, Axis, Point, Sweep, Value, complete
from composer.sweeps.search_space import Costs, PointCost, check_not_all_excluded, cost_point, enumerate_points

MAX_STRUCTURES = 100
"""Structures that the dry run of a learning search lists; its points are not known before it runs."""


@dataclass(frozen=True)
class ListedPoint:
    """One point with its number; `same_as` is the number of an earlier one with the same fingerprint."""

    number: int
    costed: PointCost
    same_as: int | None

    @property
    def status(self) -> str:
        """One of trained, excluded, impossible, or double: trained as another one."""
        if self.costed.excluded:
            return "excluded"
        if self.costed.faults:
            return "impossible"
        return "trained" if self.same_as is None else "double"


@dataclass(frozen=True)
class PointList:
    """The points of a sweep; if not `is_known`, the structures among which its search chooses."""

    sweep: Sweep
    rows: tuple[ListedPoint, ...]
    is_known: bool


def list_points(sweep: Sweep) -> PointList:
    """Return every point with its costs. Imports torch. Raises RecipeError if `where` excludes all of them."""
    is_known = sweep.search.kind != "tpe"
    planned: dict[str, Costs] = {}
    points = enumerate_points(sweep) if is_known else [cost_point(sweep, point, planned) for point in structures(sweep)]
    if not is_known and all(axis.labels is not None for axis in sweep.axes):
        check_not_all_excluded(sweep, points)
    first: dict[str, int] = {}
    rows = []
    for number, point in enumerate(points, start=1):
        earlier = first.setdefault(point.fingerprint, number) if point.can_train else number
        rows.append(ListedPoint(number, point, None if earlier == number else earlier))
    return PointList(sweep, tuple(rows), is_known)


def structures(sweep: Sweep) -> list[Point]:
    """Return the structures among which a search chooses: all labels, and both ends of ranges of whole numbers."""
    axes = [axis for axis in sweep.axes if axis.zipped is None]
    points: dict[str, Point] = {}
    for values in product(*map(_structure_values, axes)):
        point = complete(sweep, {axis.name: value for axis, value in zip(axes, values, strict=True)})
        points.setdefault(repr(point), point)
        if len(points) == MAX_STRUCTURES:
            break
    return list(points.values())


def _structure_values(axis: Axis) -> Sequence[Value]:
    return axis.labels or (axis.ends if axis.integer else axis.ends[:1])


def dry_run_json(listing: PointList) -> dict[str, Any]:
    """Return the points of a dry run as plain data."""
    return {
        "name": listing.sweep.name,
        "search": listing.sweep.search.kind,
        "trials": listing.sweep.search.trials,
        "seeds": list(listing.sweep.seeds),
        "known": listing.is_known,
        "points": [
            {
                "number": row.number,
                "point": row.costed.point,
                "fingerprint": row.costed.fingerprint,
                "status": row.status,
                "same_as": row.same_as,
                **{cost: getattr(row.costed, cost) for cost in COSTS},
                "condition": row.costed.condition,
                "errors": [fault.as_dict() for fault in row.costed.faults],
            }
            for row in listing.rows
        ],
    }


def dry_run_text(listing: PointList) -> str:
    """Return the points of a dry run as a table, the faults of impossible ones, and how many will be trained."""
    names = [axis.name for axis in listing.sweep.axes]
    rows = [["point", *names, "parameters", "FLOPs", "state bytes", ""]]
    for row in listing.rows:
        point = row.costed
        costs = [f"{point.parameters:,}", si(point.flops), f"{point.state_bytes:,}"] if point.parameters else [""] * 3
        values = [_listed_value(axis, point.point, listing.is_known) for axis in listing.sweep.axes]
        rows.append([str(row.number), *values, *costs, _point_note(row)])
    table = align_columns(rows, [False, *(True for _ in names), False, False, False, True])
    return "\n".join([*table, "", *_fault_lines(listing.rows), _summary(listing)])


def _listed_value(axis: Axis, point: Point, is_known: bool) -> str:
    if axis.name not in point:
        return "-"
    if not is_known and axis.labels is None and not axis.integer:
        return f"{axis.low:g} to {axis.high:g}"
    value = point[axis.name]
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _point_note(row: ListedPoint) -> str:
    if row.status == "excluded":
        return f"excluded by `{row.costed.condition}`"
    if row.status == "impossible":
        return f"impossible: {row.costed.faults[0].message}"
    return f"the same as {row.same_as}, trained once" if row.status == "double" else ""


def _fault_lines(rows: Sequence[ListedPoint]) -> list[str]:
    """Return each error of a recipe once, with the points that it makes impossible."""
    points: dict[str, list[int]] = {}
    for row in rows:
        if row.status == "impossible":
            points.setdefault(RecipeError(row.costed.faults).render().rpartition("\n")[0], []).append(row.number)
    lines: list[str] = []
    for error, numbers in points.items():
        which = f"point{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
        lines += [f"impossible, {which}:", error, ""]
    return lines


def _summary(listing: PointList) -> str:
    sweep, statuses = listing.sweep, [row.status for row in listing.rows]
    seeds = "" if len(sweep.seeds) == 1 else f", each with {len(sweep.seeds)} seeds"
    counts = [(statuses.count(name), name) for name in ("double", "excluded", "impossible")]
    others = ", ".join(f"{count} {name}" for count, name in counts if count)
    others = f"; {others}" if others else ""
    trained = statuses.count("trained")
    if listing.is_known:
        return f"{_plural(trained, 'point')} to train{seeds}{others}"
    total = math.prod(len(_structure_values(axis)) for axis in sweep.axes if axis.zipped is None)
    more = " or more" if len(statuses) == MAX_STRUCTURES < total else ""
    points = _plural(sweep.search.trials or 0, "point")
    return f"{sweep.search.kind} chooses {points} among {trained}{more} structures{others}{seeds}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
