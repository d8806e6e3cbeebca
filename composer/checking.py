"""Everything that can be known about a recipe before it trains: the recipe itself, its model, its data files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import ComposerError, Fault
from composer.recipe.recipe import Recipe, load

if TYPE_CHECKING:
    from composer.model.planner import Plan


def check_file(path: Path, overrides: Sequence[str] = (), data_dir: Path | None = None) -> tuple[Recipe, Plan]:
    """The recipe and its plan. Raises RecipeError or ComposerError with every fault of the first stage that has any.

    A recipe that can be read has two stages left that do not depend on each other, its model and its data files: the
    faults of both are told together. Nothing is written.
    """
    recipe = load(path, overrides, data_dir)
    return recipe, check_recipe(recipe)


def check_recipe(recipe: Recipe) -> Plan:
    """The plan of a recipe that has been read. Raises ComposerError with every fault of its model and its files."""
    faults = list(_file_faults(recipe))
    # torch comes with these: a fault of the text itself is told without it
    from composer.model.planner import plan

    try:
        planned = plan(recipe)
    except ComposerError as error:
        raise ComposerError([*faults, *error.faults]) from None
    if faults:
        raise ComposerError(faults)
    return planned


def _file_faults(recipe: Recipe) -> Iterator[Fault]:
    from composer.data.sources import check_files

    yield from check_files(recipe, recipe.folders())
