"""A problem of a recipe, as a rule finds it; `faults` gives it its place in the recipe's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from blocks.core.fixes import Fix, remove
from composer.errors import Fault, KeyPath

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


class Problem(NamedTuple):
    """What is wrong at a path of a canonical recipe, and the fix; an error or a warning."""

    code: str
    at: KeyPath
    message: str
    fix: Fix | str = ""
    is_warning: bool = False


Problems = Iterator[Problem | Fault]
"""What a rule yields; a fault, where its place is in another file, or at a key."""


def warning(code: str, at: KeyPath, message: str, fix: Fix | str = "") -> Problem:
    """Return the problem of what trains, and probably not as was meant."""
    return Problem(code, at, message, fix, is_warning=True)


def unused(at: KeyPath, message: str, fix: Fix | None = None) -> Problem:
    """Return the warning of a setting that changes nothing, which can be removed."""
    return warning("unused", at, message, fix or remove(at))


def faults(recipe: Recipe, problems: Iterable[Problem | Fault]) -> Iterator[Fault]:
    """Yield each problem with its place in the recipe's files."""
    for problem in problems:
        if isinstance(problem, Fault):
            yield problem
            continue
        fault = recipe.fault(problem.code, problem.at, problem.message, problem.fix)
        yield fault.as_warning() if problem.is_warning else fault
