"""Random stacks: what `plan` refuses, it refuses with a RecipeError; what it accepts trains and keeps the laws.

200 of them here, always the same; 10,000 others with
`pytest tests/laws/test_random_stacks.py --hypothesis-profile=thorough -n 0`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, note
from random_stacks import recipes

from composer.build import build
from composer.errors import RecipeError
from composer.recipe import Recipe, load
from composer.testing import check_model

SHARE_ACCEPTED = 0.4


def test_random_stacks(tmp_path: Path) -> None:
    tally: Counter[str] = Counter()

    @given(recipes())
    def holds(written: dict[str, Any]) -> None:
        tally[outcome(written, tmp_path / "random.yaml")] += 1

    holds()
    assert tally["accepted"] > SHARE_ACCEPTED * tally.total(), tally


def outcome(written: dict[str, Any], file: Path) -> str:
    """Whether the recipe is accepted; checks all that follows from it."""
    file.write_text(json.dumps(written, indent=1), encoding="utf-8")
    recipe = load(file)
    try:
        recipe.plan()
    except RecipeError as refusal:
        note(refusal.render())
        expect_refused(recipe, refusal)
        return "refused"
    torch.manual_seed(0)
    check_model(build(recipe, vocabularies(recipe)))
    return "accepted"


def expect_refused(recipe: Recipe, refusal: RecipeError) -> None:
    """A refusal names places in the file; where the stacks do not fit, `build` says the same."""
    assert all(fault.line > 0 and fault.message and fault.file == str(recipe.file) for fault in refusal.faults)
    if {fault.code for fault in refusal.faults} != {"unused"}:
        with pytest.raises(RecipeError) as again:
            build(recipe, vocabularies(recipe))
        assert again.value.faults == refusal.faults


def vocabularies(recipe: Recipe) -> dict[str, int]:
    """Small vocabularies, one where the tokenizer is joint."""
    keys = [*(recipe.model["encoders"] or {"source": ()}), "target"]
    return {key: 11 if recipe.joint else 11 + index for index, key in enumerate(keys)}
