"""The law of export: the programs of a recipe compute what its model does, at any sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer.model.builder import build
from composer.programs.graphs import NotExportable
from tests.exporters.sizes import assert_exported
from tests.laws.test_recipes import HOME, RECIPES, name, small, vocabularies

KINDS = (
    "multi30k/transformer",
    "papers/gehring2017",
    "papers/bahdanau2015",
    "papers/sutskever2014",
    "language_models/zaremba2014_small",
    "mixers/multi30k_mamba2",
    "mixers/multi30k_gated_delta_net",
    "mixers/multi30k_rwkv7",
    "papers/graves2014_lstm",
    "papers/grefenstette2015_stack",
    "papers/kaiser_sutskever2016",
    "papers/chan2016_las",
    "papers/xu2015_soft",
    "speech/strings_joint",
)
"""One of each kind; docs/exported.md has all."""
REFUSED: dict[str, str] = {
    "language_models/jozefowicz2016_char_lstm": "spells the vocabulary",
    "language_models/jozefowicz2016_cnn_softmax": "`cnn` computes",
    "language_models/jozefowicz2016_correction": "`cnn` computes",
}
"""Recipes that have no programs, with a part of the reason."""


def assert_recipe(path: Path) -> None:
    recipe = small(path)
    torch.manual_seed(0)
    model = build(recipe, vocabularies(recipe)).eval()
    if name(path) in REFUSED:
        with pytest.raises(NotExportable, match=REFUSED[name(path)]):
            assert_exported(model)
    else:
        assert_exported(model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_of_each_kind_is_exported(kind: str) -> None:
    assert_recipe(HOME / f"{kind}.yaml")


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_is_exported_or_in_the_table(path: Path) -> None:
    assert_recipe(path)
