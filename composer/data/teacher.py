"""The run folder that `training.distillation.teacher` names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from composer.recipe.recipe import Recipe

TEACHER = ("training", "distillation", "teacher")


def find_teacher(recipe: Recipe, folders: Sequence[Path]) -> Path | None:
    """Return the first folder of the teacher's name in these; None for none, or a missing one.

    Data files are looked up in the same folders: `--data`, then that of the recipe.
    """
    distillation = recipe.training.distillation
    if distillation is None:
        return None
    places = (folder / distillation.teacher for folder in folders)
    return next((place for place in places if os.path.isdir(place)), None)
