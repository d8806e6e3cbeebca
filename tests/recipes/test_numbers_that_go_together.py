"""Numbers of the recipes that follow from another number of the same recipe do so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from composer.recipe.recipe import load

HOME = Path(__file__).parents[2] / "recipes"
LANGUAGE_MODELS = HOME / "language_models"
RECIPES = sorted(
    path for path in HOME.rglob("*.yaml") if not {"fragments", "sweeps"} & set(path.parts)
)
AFTER_DROPOUT = [path for path in RECIPES if "init_scale" in path.read_text(encoding="utf-8")]
GRADIENTS = [path for path in RECIPES if "gradient:" in path.read_text(encoding="utf-8")]
SMALL_ENTRIES = ["zaremba2014_small", "zaremba2014_medium", "zaremba2014_large"]
SMALL_ENTRIES += ["kim2016_word_small", "kim2016_word_large", "merity2018_awd_lstm"]
SUMMED = {
    "zaremba2014_small": (1.0, 5.0),
    "zaremba2014_medium": (1.0, 5.0),
    "zaremba2014_large": (1.0, 10.0),
    "kim2016_word_small": (1.0, 5.0),
    "kim2016_word_large": (1.0, 5.0),
    "kim2016_char_small": (1.0, 5.0),
    "kim2016_char_large": (1.0, 5.0),
}
"""The authors' rate and norm, of a loss that is summed over a window."""


def settings(value: Any, name: str) -> Iterator[Any]:
    """Yield what every block and default of the recipe has for a setting."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == name:
                yield inner
            yield from settings(inner, name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from settings(inner, name)


def test_there_are_such_recipes() -> None:
    assert AFTER_DROPOUT
    assert GRADIENTS


@pytest.mark.parametrize("path", AFTER_DROPOUT, ids=lambda path: path.stem)
def test_weights_after_a_dropout_are_smaller_by_its_rate(path: Path) -> None:
    recipe = load(path)
    model, scales = recipe.model, set(settings(recipe.canonical["model"], "init_scale")) - {1.0}
    assert scales
    for scale in scales:
        assert scale == pytest.approx(math.sqrt(1 - model.dropout))


@pytest.mark.parametrize("layers", [8, 15])
@pytest.mark.parametrize("path", GRADIENTS, ids=lambda path: path.stem)
def test_the_encoder_s_gradient_is_divided_by_the_layers_that_read_it(
    path: Path, layers: int
) -> None:
    model = load(path, [f"vars.layers={layers}"]).canonical["model"]
    assert set(settings(model["decoder"], "times")) - {1} == {layers}
    assert set(settings(model, "readers")) - {1} == {layers}


@pytest.mark.parametrize("name", SMALL_ENTRIES)
def test_embeddings_have_entries_of_their_small_size(name: str) -> None:
    model = load(LANGUAGE_MODELS / f"{name}.yaml").canonical["model"]
    (factor,) = settings(model["decoder"], "factor")
    assert factor * math.sqrt(model["width"]) == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize(("name", "authors"), SUMMED.items())
def test_rates_and_norms_of_sums_over_a_window_are_those_of_means(
    name: str, authors: tuple[float, float]
) -> None:
    training = load(LANGUAGE_MODELS / f"{name}.yaml").training
    rate, norm = authors
    assert training.optimizer.learning_rate == pytest.approx(rate * training.window)
    assert training.clip_norm * training.window == pytest.approx(norm, rel=5e-3)
