"""seqcomposer: a recipe describes a sequence model as stacks of blocks; one command trains it.

Importing this package is cheap: torch is imported by the first call that needs a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.errors import ComposerError, DataError, Fault, RecipeError, RunError
    from composer.recipe import Recipe, load
    from composer.runs import open_run
    from composer.training.train import train

__all__ = [
    "ComposerError", "DataError", "Fault", "Recipe", "RecipeError", "RunError", "load", "open_run", "train",
]  # fmt: skip

_HOMES = {
    "load": "composer.recipe",
    "Recipe": "composer.recipe",
    "train": "composer.training.train",
    "open_run": "composer.runs",
} | dict.fromkeys(("ComposerError", "DataError", "Fault", "RecipeError", "RunError"), "composer.errors")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'composer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
