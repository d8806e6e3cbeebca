"""The recipes of the ladder are the notebooks' models: at their sizes and vocabularies, they have
as many weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import ladder
from composer.model.builder import build
from composer.recipe.recipe import load

HOME = Path(__file__).parents[2] / "recipes" / "ladder"
SIZES = ["model.width=256", "vars.hidden=512"]
# W, U and b, v of the notebook's attention, which is as wide as its states
ATTENTION = 512 * 1536 + 2 * 512
NARROWER = 256 * 1536 + 2 * 256  # ours is as wide as the embeddings
# the notebook has one pair of maps for the attentions of ten layers
SHARED = 9 * (512 * 256 + 256 + 256 * 512 + 512)
COUNTS = {
    "lstm": 13_898_501,
    "gru": 14_219_781,
    "gru_attention": 20_518_405 - ATTENTION + NARROWER,
    "convolutional": 37_351_173 + SHARED,
    "transformer": 9_038_341,
}
"""Trainable parameters as the notebooks print them, and where ours differ."""


def test_every_recipe_has_a_row():
    assert {load(path).name for path in HOME.glob("*.yaml")} == set(ladder.LADDER)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_the_published_ones(name):
    more = ["model.encoder.1.rnn.width=1024"] if name == "gru_attention" else []
    with torch.device("meta"):
        model = build(
            load(HOME / f"{name}.yaml", [*SIZES, *more]),
            {"source": ladder.VOCABULARIES["de"], "target": ladder.VOCABULARIES["en"]},
        )
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name]
