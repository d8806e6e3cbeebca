"""Forms of plain data in a run folder: rows of metrics.jsonl, histories of validations."""

from __future__ import annotations

from typing import TypeGuard

MAX_TEXT, MAX_INTEGER, MAX_DEPTH = 4000, 1 << 63, 8


def is_count(value: object) -> bool:
    """True for an integer from 0 on; a truth value is none."""
    return type(value) is int and 0 <= value < MAX_INTEGER


def is_number(value: object) -> bool:
    """True for a number; a truth value is none."""
    return isinstance(value, float) or (type(value) is int and abs(value) < MAX_INTEGER)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def is_plain_data(value: object, depth: int = MAX_DEPTH) -> bool:
    """True for scalars, lists and mappings of such, nested no deeper than `depth`."""
    if isinstance(value, dict):
        if not all(_is_text(key) or is_count(key) for key in value):
            return False
        value = list(value.values())
    if isinstance(value, list):
        return depth > 0 and all(is_plain_data(item, depth - 1) for item in value)
    return value is None or isinstance(value, bool) or is_number(value) or _is_text(value)


def is_metrics_row(row: object) -> bool:
    """True for a row of metrics.jsonl: the `step`, and numbers, lists of numbers or nothing."""
    if not isinstance(row, dict) or not is_count(row.get("step")):
        return False
    numbers: list[object] = []
    for value in row.values():
        numbers += value if isinstance(value, list) else [value]
    return all(map(_is_text, row)) and all(value is None or is_number(value) for value in numbers)


def is_history(value: object) -> TypeGuard[list[dict[str, float]]]:
    """True for a checkpoint's validations: each the `step`, and scores."""
    return isinstance(value, list) and all(map(_is_validation, value))


def _is_validation(row: object) -> bool:
    return isinstance(row, dict) and "step" in row and all(map(is_number, row.values()))
