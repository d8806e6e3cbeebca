"""One mapping from a recipe, what it extends, the command line and its variables; every value keeps its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer.language.extends import extended
from composer.language.node import Node
from composer.language.override import First, override
from composer.language.variables import substitute


def resolve(path: Path, overrides: Sequence[str], first: First) -> Node:
    """The recipe as one mapping: `extends`, then `overrides` (`key=value`), then variables. Raises RecipeError."""
    return substitute(override(extended(path), overrides, first))
