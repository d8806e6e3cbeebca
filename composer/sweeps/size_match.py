"""`match` of a sweep: a whole number of the recipe by which all points become equally large."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from composer.errors import RecipeError, error_at
from composer.recipe.yaml_reader import Node
from composer.sweeps.conditions import UNITS

LARGEST = 2**20
"""The largest value that is tried."""
MAX_REFUSED = 64
"""Values in a row that a recipe may refuse, such as a width that its heads do not divide."""
TOLERANCE = 0.05
"""Largest relative difference between the wanted number of parameters and the nearest there is."""

Count = Callable[[int], int]
"""The parameters of a point at a value. Raises RecipeError if the recipe refuses the value."""


@dataclass(frozen=True, eq=False)
class SizeMatch:
    """The wanted number of `parameters`, and the path `by` of the value that is chosen for each.

    values: The chosen value of each point, by its resolved recipe.
    """

    parameters: int
    by: Node = field(repr=False)
    values: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """The last part of the path, such as `hidden`."""
        return str(self.by.value).rpartition(".")[2]

    def error(self, message: str, hint: str) -> RecipeError:
        """Return the error of a point that cannot have this size."""
        return error_at(self.by.mark, "match", "match.by", message, hint)

    def choose(self, count: Count) -> int:
        """Return the value with the nearest number of parameters.

        Raises RecipeError if none comes near, and the recipe's own if it refuses all values.
        """
        low = high = self.first(count, 1)
        while count(high) < self.parameters and 2 * high < LARGEST:
            low, high = high, self.first(count, 2 * high)
            if count(low) == count(high):
                message = f"`{self.by.value}` does not change the number of parameters"
                raise self.error(f"{message}, {count(high):,}", "name another value of the recipe")
        ends = narrow(count, self.parameters, low, high)
        nearest = min(ends, key=lambda value: abs(count(value) - self.parameters))
        if abs(count(nearest) - self.parameters) > TOLERANCE * self.parameters:
            message = f"no value of `{self.by.value}` gives about {self.parameters:,} parameters;"
            message += f" the nearest is {nearest:,}, with {count(nearest):,}"
            raise self.error(message, "write another number of parameters, or another `by`")
        return nearest

    def first(self, count: Count, start: int) -> int:
        """Return the first accepted value from `start` on. Raises the RecipeError of `start`."""
        value = accepted(count, range(start, start + MAX_REFUSED))
        if value is None:
            count(start)  # which raises
        return value or start


def read_parameters(value: int | float | str) -> int:
    """Return a number of parameters, such as `1.44M`, which the schema has checked."""
    if isinstance(value, str):
        return round(float(value[:-1]) * UNITS[value[-1]])
    return round(value)


def accepted(count: Count, values: Iterable[int]) -> int | None:
    """Return the first value that a recipe accepts, None if it refuses all."""
    for value in values:
        with suppress(RecipeError):
            count(value)
            return value
    return None


def narrow(count: Count, wanted: int, low: int, high: int) -> tuple[int, int]:
    """Return the closest accepted values around the wanted count, from `low` to `high`."""
    while True:
        middle = (low + high) // 2
        above = range(middle, min(high, middle + MAX_REFUSED))
        below = range(middle, max(low, middle - MAX_REFUSED), -1)
        value = accepted(count, [*above, *below]) if middle > low else None
        if value is None:
            return low, high
        low, high = (value, high) if count(value) < wanted else (low, value)
