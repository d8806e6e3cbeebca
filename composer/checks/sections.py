"""The rules of all sections, which need the recipe alone and refuse it when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.checks import data, model, trainer, training
from composer.checks.problem import faults
from composer.errors import RecipeError
from composer.recipe.validation import encoder_keys

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

RULES = (*data.RULES, *model.RULES, *training.RULES, *trainer.RULES)


def refuse(recipe: Recipe) -> None:
    """Raise RecipeError with everything that is wrong between the sections of a recipe."""
    errors = [*encoder_keys(recipe.root, recipe.sources, recipe.rules)]
    for rule in RULES:
        errors += faults(recipe, rule(recipe))
    if errors:
        raise RecipeError(errors)
