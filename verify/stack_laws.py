"""What must be true of a random recipe: it is refused with a place, or builds a model that keeps
the laws.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from composer.errors import RecipeError
from composer.model.builder import build
from composer.recipe.recipe import Recipe, load
from composer.testing import check_model


def outcome(recipe: dict[str, Any], file: Path) -> str:
    """Whether the recipe is accepted; checks all that follows from it."""
    file.write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    try:
        recipe = load(file)
        recipe.plan()
    except RecipeError as refusal:
        expect_places(refusal, file)
        return "refused"
    torch.manual_seed(0)
    check_model(build(recipe, vocabularies(recipe)))
    return "accepted"


def expect_places(refusal: RecipeError, file: Path) -> None:
    """A refusal says where and what."""
    assert refusal.faults
    for fault in refusal.faults:
        assert (fault.file, fault.line > 0, fault.column > 0, fault.message != "") == (
            str(file),
            True,
            True,
            True,
        )


def vocabularies(recipe: Recipe) -> dict[str, int]:
    """Small vocabularies, one where the tokenizer is joint; where they are the width, those that
    were planned with.
    """
    if recipe.model.embedding.word == "one_hot":
        return dict(recipe.plan().vocabularies)
    sources = recipe.model.encoders or ({} if recipe.data.text else {"source": ()})
    keys = [*sources, "target"]
    return {key: 11 if recipe.joint else 11 + index for index, key in enumerate(keys)}
