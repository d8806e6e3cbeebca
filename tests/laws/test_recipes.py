"""Every recipe of the folder `recipes/` keeps the laws of a whole model, at a small size; full size
is planned.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer.model.builder import build
from composer.recipe.extends_and_overrides import extend
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import CHOICES, blocks
from composer.recipe.yaml_reader import to_data
from composer.testing import check_model
from tests.recipes.model_sizes import size_overrides
from tests.samples import sampled

HOME = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(
    path for path in HOME.rglob("*.yaml") if not {"fragments", "sweeps"} & set(path.parts)
)
SMALL = {
    "width": 16,
    "hidden": 20,
    "layers": 2,
    "heads": 2,
    "layers_after_first": 1,
    "rounds_of_three": 1,
    "both_ways": 12,
    "factor": 4,
    "columns": 2,
    "sets": 2,
    "times": 2,
    "cells": 20,
    "projection": 6,
    "samples": 5,
    "hops": 2,
}
SMALL_ENOUGH = 100_000


def name(path: Path) -> str:
    return path.relative_to(HOME).with_suffix("").as_posix()


def small(path: Path) -> Recipe:
    """Return the recipe with small sizes: its variables, or else the settings of the same names."""
    kernels = len((to_data(extend(path)).get("vars") or {}).get("features", ()))
    features = [f"vars.features={[2, 3, 4, 3, 4, 5, 2][:kernels]}"] if kernels else []
    return load(path, [*size_overrides(path, SMALL), *features])


def vocabularies(recipe: Recipe) -> dict[str, int]:
    """A small number of ids for each side; of a tokenizer that learns nothing, the only one there
    is.
    """
    keys = [*(recipe.model.encoders or {"source": ()}), "target"]
    if not recipe.tokenizer.is_trained:
        return {key: recipe.tokenizer.max_size(key == "target") for key in keys}
    return {key: 11 if recipe.joint else 11 + index for index, key in enumerate(keys)}


def those_that_differ() -> list[Path]:
    """Return the recipes with a word for a block, for data or of another choice that no recipe
    before them has.
    """
    choices = (choice.constructors() for choice in CHOICES.values())
    kinds = ("parallel", "table", "hub", "text", "babi", "carry", "ctc", "one_hot")
    words, seen, chosen = set(blocks()).union(kinds, *choices), set[str](), []
    for path in RECIPES:
        text = re.sub("#.*", "", path.read_text(encoding="utf-8"))
        own = words.intersection(re.findall(r"\w+", text))
        chosen += [path] if own - seen else []
        seen |= own
    return chosen


DIFFERENT = those_that_differ()
LAWFUL = sampled(DIFFERENT, 30) + [
    pytest.param(path, marks=pytest.mark.slow) for path in RECIPES if path not in DIFFERENT
]


def test_recipes_are_collected() -> None:
    assert {"quickstart", "multi30k/transformer"} <= {name(path) for path in RECIPES}


@pytest.mark.parametrize("path", LAWFUL, ids=name)
def test_a_recipe_keeps_every_law(path: Path) -> None:
    recipe = small(path)
    model = build(recipe, vocabularies(recipe))
    assert sum(parameter.numel() for parameter in model.parameters()) < SMALL_ENOUGH, (
        "sizes belong under `vars`"
    )
    check_model(model)


@pytest.mark.parametrize("path", sampled(RECIPES, 12), ids=name)
def test_a_recipe_is_planned_at_full_size_without_a_warning_and_its_rows_add_up(path: Path) -> None:
    plan = load(path).plan()
    assert not plan.warnings
    assert plan.parameters > 0
    # ("model", "decoder", 0, "rnn") is no part of another row, nor is ("model", "encoders",
    # "story", 0, "rnn")
    outer = [
        row
        for row in plan.rows
        if row.block == "embedding" or len(row.place) <= 4 + ("encoders" in row.place)
    ]
    assert sum(row.flops for row in outer) == plan.flops
    # a tied matrix stands in several rows
    assert sum(row.parameters for row in outer) >= plan.parameters
