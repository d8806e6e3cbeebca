"""`match` of a sweep: a whole number of the recipe by which all points become equally large."""

from __future__ import annotations

from collections.abc import Callable
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
        low = first_accepted(count, 1)
        high = low
        while count(high) < self.parameters and 2 * high < LARGEST:
            larger = first_accepted(count, 2 * high)
            if count(larger) == count(high):
                message = f"`{self.by.value}` does not change the number of parameters"
                raise self.error(f"{message}, {count(high):,}", "name another value of the recipe")
            low, high = high, larger
        nearest = nearer(count, self.parameters, *narrow(count, self.parameters, low, high))
        if abs(count(nearest) - self.parameters) > TOLERANCE * self.parameters:
            message = f"no value of `{self.by.value}` gives about {self.parameters:,} parameters;"
            message += f" the nearest is {nearest:,}, with {count(nearest):,}"
            raise self.error(message, "write another number of parameters, or another `by`")
        return nearest


def read_parameters(value: int | float | str) -> int:
    """Return a number of parameters, such as `1.44M`, which the schema has checked."""
    if isinstance(value, str):
        return round(float(value[:-1]) * UNITS[value[-1]])
    return round(value)


def first_accepted(count: Count, start: int) -> int:
    """Return the first value from `start` on that a recipe accepts.

    Raises the RecipeError of `start` if it refuses too many in a row.
    """
    for value in range(start, start + MAX_REFUSED):
        if accepts(count, value):
            return value
    count(start)  # which raises
    return start


def accepts(count: Count, value: int) -> bool:
    """True if a recipe can have a value."""
    try:
        count(value)
    except RecipeError:
        return False
    return True


def narrow(count: Count, wanted: int, low: int, high: int) -> tuple[int, int]:
    """Return the closest accepted values around the wanted count, from `low` to `high`.

    By interpolation and bisection in turn, since each count plans a model.
    """
    interpolates = True
    guess = interpolate(count, wanted, low, high)
    while (middle := accepted_between(count, guess, low, high)) is not None:
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
        interpolates = not interpolates
        guess = interpolate(count, wanted, low, high) if interpolates else (low + high) // 2
    return low, high


def interpolate(count: Count, wanted: int, low: int, high: int) -> int:
    """Return the value at which a straight line between two counts has the wanted one."""
    rise = count(high) - count(low)
    return low + round((wanted - count(low)) / rise * (high - low)) if rise else low


def accepted_between(count: Count, guess: int, low: int, high: int) -> int | None:
    """Return the accepted value between two others, without them, that is next to a guess."""
    guess = min(max(guess, low + 1), high - 1)
    for distance in range(MAX_REFUSED):
        for value in (guess + distance, guess - distance):
            if low < value < high and accepts(count, value):
                return value
    return None


def nearer(count: Count, wanted: int, low: int, high: int) -> int:
    """Return the one of two values with the nearer count, the smaller one of equal ones."""
    return min((low, high), key=lambda value: abs(count(value) - wanted))
