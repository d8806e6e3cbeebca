"""The list of a sweep's points that a dry run prints, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from composer.errors import RecipeError
from composer.formatting import align_columns, count_each, count_noun, format_bound, si
from composer.sweeps.points import PointCost, num_unlisted
from composer.sweeps.sweep import COSTS, Axis, Point, Sweep, format_value


def dry_run_json(sweep: Sweep, points: Sequence[PointCost]) -> dict[str, object]:
    """Return the points of a dry run as plain data."""
    keys = ("point", "size", "fingerprint", "status", "same_as", *COSTS, "at_most", "condition")
    rows = []
    for number, point in enumerate(points, start=1):
        row: dict[str, object] = {"number": number}
        row |= {key: getattr(point, key) for key in keys}
        row["seeds"] = [*sweep.seeds_of(point)] if point.status == "trained" else []
        row["errors"] = [fault.as_dict() for fault in point.faults]
        row["warnings"] = [fault.as_dict() for fault in point.warnings]
        rows.append(row)
    return {
        "name": sweep.name,
        "search": sweep.search.kind,
        "trials": sweep.search.trials,
        "seeds": list(sweep.seeds),
        "known": sweep.search.kind != "tpe",
        "points": rows,
    }


def dry_run_text(sweep: Sweep, points: Sequence[PointCost]) -> str:
    """Return a table of the points, their faults and warnings, and the number to be trained."""
    names = [axis.name for axis in sweep.axes]
    sizes = [] if sweep.match is None else [sweep.match.label]
    rows = [["point", *names, *sizes, "parameters", "FLOPs", "state bytes", ""]]
    numbers: dict[tuple[str, str], list[str]] = {}
    for number, point in enumerate(points, start=1):
        costs = ["", "", ""]
        if point.parameters:
            costs = [f"{point.parameters:,}", si(point.flops), f"{point.state_bytes:,}"]
            costs = [format_bound(cost, point.at_most) for cost in costs]
        values = [_format_axis(axis, point.point, sweep.search.kind) for axis in sweep.axes]
        if sizes:
            values.append("-" if point.size is None else f"{point.size:,}")
        rows.append([str(number), *values, *costs, _point_note(point)])
        faults = point.faults or (point.warnings if point.status == "trained" else ())
        if faults:
            text = RecipeError(faults).render().rpartition("\n")[0]
            numbers.setdefault((point.status, text), []).append(str(number))
    are_texts = [False, *(True for _ in names), *(False for _ in sizes), False, False, False, True]
    lines = [*align_columns(rows, are_texts), ""]
    for (status, text), same in numbers.items():
        lines += [f"{status}, {'point' if len(same) == 1 else 'points'} {', '.join(same)}:"]
        lines += [text, ""]
    return "\n".join([*lines, _summary(sweep, points)])


def _point_note(point: PointCost) -> str:
    """Return why a point is not trained, "" if it is."""
    if point.status == "excluded":
        return f"excluded by `{point.condition}`"
    if point.status == "duplicate":
        return f"the same as {point.same_as}, trained once"
    return f"impossible: {point.faults[0].message}" if point.faults else ""


def _format_axis(axis: Axis, point: Point, search: str) -> str:
    if axis.name not in point:
        return "-"
    if search == "tpe" and axis.labels is None and not axis.integer:
        return f"{axis.low:g} to {axis.high:g}"
    return format_value(point[axis.name])


def _summary(sweep: Sweep, points: Sequence[PointCost]) -> str:
    trained = [point for point in points if point.status == "trained"]
    seeds = "" if len(sweep.seeds) == 1 else f", each with {len(sweep.seeds)} seeds"
    if sweep.seeds_where:
        with_all = sum(sweep.seeds_of(point) == sweep.seeds for point in trained)
        seeds = f", {with_all} of them with {len(sweep.seeds)} seeds, the others with one"
    others = count_each(sorted(point.status for point in points if point.status != "trained"))
    others = f"; {others}" if others else ""
    if sweep.search.kind != "tpe":
        return f"{count_noun(len(trained), 'point')} to train{seeds}{others}"
    more = " or more" if num_unlisted(sweep, points) else ""
    chosen = count_noun(sweep.search.trials or 0, "point")
    return f"tpe chooses {chosen} among {len(trained)}{more} structures{others}{seeds}"
