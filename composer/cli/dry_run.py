"""What `sweep --dry-run` prints: every point with its costs, what is wrong with it, and how many will be trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from composer.errors import RecipeError
from composer.formatting import align_columns, count_each, count_noun, format_bound, si
from composer.sweeps.points import MAX_STRUCTURES, PointCost
from composer.sweeps.sweep import COSTS, Axis, Point, Sweep, format_value


def dry_run_json(sweep: Sweep, points: Sequence[PointCost]) -> dict[str, Any]:
    """Return the points of a dry run as plain data."""
    keys = ("point", "fingerprint", "status", "same_as", *COSTS, "at_most", "condition")
    rows = []
    for number, point in enumerate(points, start=1):
        errors, warnings = ([fault.as_dict() for fault in faults] for faults in (point.faults, point.warnings))
        row = {"number": number, **{key: getattr(point, key) for key in keys}}
        rows.append({**row, "errors": errors, "warnings": warnings})
    search = sweep.search
    head = {"name": sweep.name, "search": search.kind, "trials": search.trials, "seeds": list(sweep.seeds)}
    return {**head, "known": search.kind != "tpe", "points": rows}


def dry_run_text(sweep: Sweep, points: Sequence[PointCost]) -> str:
    """Return the points of a dry run as a table, their faults and warnings, and how many will be trained."""
    names = [axis.name for axis in sweep.axes]
    rows = [["point", *names, "parameters", "FLOPs", "state bytes", ""]]
    noted: dict[tuple[str, str], list[str]] = {}
    for number, point in enumerate(points, start=1):
        costs = [f"{point.parameters:,}", si(point.flops), f"{point.state_bytes:,}"]
        costs = [format_bound(cost, point.at_most) if point.parameters else "" for cost in costs]
        values = [_format_value(axis, point.point, sweep.search.kind) for axis in sweep.axes]
        duplicate = f"the same as {point.same_as}, trained once"
        note = {"excluded": f"excluded by `{point.condition}`", "duplicate": duplicate}.get(point.status, "")
        if point.status == "impossible":
            note = f"impossible: {point.faults[0].message}"
        if faults := point.faults or (point.warnings if point.status == "trained" else ()):
            text = RecipeError(faults).render().rpartition("\n")[0]
            noted.setdefault((point.status, text), []).append(str(number))
        rows.append([str(number), *values, *costs, note])
    lines = [*align_columns(rows, [False, *(True for _ in names), False, False, False, True]), ""]
    for (status, text), numbers in noted.items():
        lines += [f"{status}, {'point' if len(numbers) == 1 else 'points'} {', '.join(numbers)}:", text, ""]
    return "\n".join([*lines, _summary(sweep, [point.status for point in points])])


def _format_value(axis: Axis, point: Point, search: str) -> str:
    if axis.name not in point:
        return "-"
    if search == "tpe" and axis.labels is None and not axis.integer:
        return f"{axis.low:g} to {axis.high:g}"
    return format_value(point[axis.name])


def _summary(sweep: Sweep, statuses: Sequence[str]) -> str:
    seeds = "" if len(sweep.seeds) == 1 else f", each with {len(sweep.seeds)} seeds"
    others = count_each(sorted(status for status in statuses if status != "trained"))
    others = f"; {others}" if others else ""
    trained = statuses.count("trained")
    if sweep.search.kind != "tpe":
        return f"{count_noun(trained, 'point')} to train{seeds}{others}"
    total = math.prod(len(values) for values in sweep.structure_values().values())
    more = " or more" if len(statuses) == MAX_STRUCTURES < total else ""
    points = count_noun(sweep.search.trials or 0, "point")
    return f"{sweep.search.kind} chooses {points} among {trained}{more} structures{others}{seeds}"
