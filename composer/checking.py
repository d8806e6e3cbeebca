"""Check a recipe before training: the recipe itself, its model on the meta device, its data files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import ComposerError, Fault
from composer.recipe.recipe import Recipe, load

if TYPE_CHECKING:
    from composer.model.planner import Plan


def check_file(path: Path, overrides: Sequence[str] = (), data_dir: Path | None = None) -> tuple[Recipe, Plan]:
    """Return the recipe in a file and its plan. Nothing is written.

    Raises:
        RecipeError: With every fault of the recipe's first stage that has any.
        ComposerError: With the faults of its model and of its data files, which do not depend on each other.
    """
    recipe = load(path, overrides, data_dir)
    return recipe, check_recipe(recipe)


def check_recipe(recipe: Recipe) -> Plan:
    """Return the plan of a loaded recipe. Raise ComposerError with every fault of its model and its data files."""
    # these import torch: a fault of the text itself is reported without it
    from composer.data.sources import check_files
    from composer.model.planner import plan

    faults: list[Fault] = list(check_files(recipe, recipe.folders()))
    try:
        model_plan = plan(recipe)
    except ComposerError as error:
        raise ComposerError([*faults, *error.faults]) from None
    if faults:
        raise ComposerError(faults)
    return model_plan
