"""Groups of trials by their values on an axis; an axis of many numbers is cut into ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

from composer.sweeps.sweep import Value, format_value

MAX_GROUPS = 4
"""Ranges, with equally many trials each, into which an axis of many numbers is cut."""


def group_by_value(
    values: Mapping[int, Value], labels: Sequence[Value] = ()
) -> dict[str, list[int]]:
    """Return the indices of trials by their values, in the order of `labels` or of the numbers."""
    if all(map(_is_number, values.values())):
        indices = sorted(values, key=lambda index: float(values[index]))
        ends = _range_ends([float(values[index]) for index in indices])
    else:
        order = [*labels, *values.values()]
        indices = sorted(values, key=lambda index: order.index(values[index]))
        ends = range(len(indices) + 1)
    groups: dict[str, list[int]] = {}
    for start, end in pairwise(ends):
        low, high = format_value(values[indices[start]]), format_value(values[indices[end - 1]])
        group = groups.setdefault(low if low == high else f"{low} to {high}", [])
        group.extend(indices[start:end])
    return groups


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _range_ends(numbers: Sequence[float]) -> Sequence[int]:
    """Return the ends of groups of sorted numbers: of each alone, or of MAX_GROUPS ranges."""
    if len({*numbers}) <= 2 * MAX_GROUPS:
        return range(len(numbers) + 1)
    cuts = [len(numbers) * part // MAX_GROUPS for part in range(1, MAX_GROUPS + 1)]
    # equal numbers stay together
    return sorted({0, *(bisect_right(numbers, numbers[cut - 1]) for cut in cuts)})
