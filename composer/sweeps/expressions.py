"""What a condition is, once it has been read, and what it comes to at a point.

All kinds are known before anything is computed, so that a condition that has been read has a value at every point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Value = str | int | float | bool | None
Kind = Literal["number", "text", "truth", "none", "mixed"]
"""`mixed` is an axis whose values are of several kinds."""

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Name(NamedTuple):
    """What can be named: its kind, and where they are few its values."""

    kind: Kind
    values: tuple[Value, ...] | None = None
    may_be_inactive: bool = False


@dataclass(frozen=True)
class Expression:
    """One part of a condition; `at` is its first character in the text, `kind` what it gives, `names` what it reads."""

    op: str
    parts: tuple[Expression, ...]
    value: Value
    at: int
    length: int
    kind: Kind
    text: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names that it reads."""
        own = frozenset([str(self.value)]) if self.op == "name" else frozenset()
        return own.union(*(part.names for part in self.parts))


def holds(expression: Expression, values: Mapping[str, Value]) -> bool:
    """Whether a condition holds where its names have these values; a name without one is `none`."""
    return value_of(expression, values) is True


def value_of(expression: Expression, values: Mapping[str, Value]) -> Value:
    """What an expression gives where its names have these values."""
    op, parts = expression.op, expression.parts
    if op == "value":
        return expression.value
    if op == "name":
        return values.get(str(expression.value))
    if op == "and":
        return all(value_of(part, values) is True for part in parts)
    if op == "or":
        return any(value_of(part, values) is True for part in parts)
    if op == "not":
        return value_of(parts[0], values) is not True
    given = [value_of(part, values) for part in parts]
    if op == "in":
        return any(_compared("==", given[0], each) for each in given[1:])
    if op in COMPARISONS:
        return _asks_none(op, parts, given) if "none" in (parts[0].kind, parts[1].kind) else _compared(op, *given)
    return _computed(op, given)


def _asks_none(op: str, parts: Sequence[Expression], given: Sequence[Value]) -> bool:
    """Whether an axis has no value here."""
    return (given[0] is None and given[1] is None) == (op == "==")


def _compared(op: str, left: Value, right: Value) -> bool:
    """No comparison holds with what has no value."""
    if left is None or right is None:
        return False
    if op in ("==", "!="):
        return (left == right) == (op == "==")
    if isinstance(left, str) or isinstance(right, str):
        return False
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _computed(op: str, given: Sequence[Value]) -> float | None:
    numbers = [float(each) for each in given if isinstance(each, (int, float))]
    if len(numbers) < len(given):
        return None
    if op == "negative":
        return -numbers[0]
    total = numbers[0]
    for sign, number in zip(op, numbers[1:], strict=True):
        total = _step(sign, total, number)
    return total


def _step(sign: str, left: float, right: float) -> float:
    if sign == "/":
        return left / right if right else float("nan")
    return {"+": left + right, "-": left - right, "*": left * right}[sign]
