"""Bytes of weights in training and in a checkpoint, by the number of parameters; its device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from composer.model.adapters import count_frozen
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.trained_parameters import count_states
from composer.model.weights import count_parameters
from composer.recipe.recipe import Recipe

NUMBER_BYTES = {"64": 8, "bf16-true": 2}
"""Bytes of a parameter, by precision; 4 in the others."""


class Sizes(NamedTuple):
    """How many parameters a model has, how many of them are not trained, and how many numbers the
    optimizer remembers of the others.
    """

    parameters: int
    frozen: int
    states: int


def sizes_of(recipe: Recipe, model: EncoderDecoder) -> Sizes:
    """Return the sizes of a recipe's model."""
    return Sizes(count_parameters(model), count_frozen(recipe, model), count_states(recipe, model))


def checkpoint_bytes(recipe: Recipe, sizes: Sizes) -> int:
    """Return the bytes of parameters, their average and the optimizer's state."""
    size, training = NUMBER_BYTES.get(str(recipe.training.precision), 4), recipe.training
    has_average = training.ema or training.asgd or training.optimizer.averages
    average = max(4, size) if has_average else 0
    return sizes.parameters * (size + average) + sizes.states * size


def weight_bytes(recipe: Recipe, sizes: Sizes) -> int:
    """Return the bytes of so many parameters in training, with gradients and optimizer state."""
    size = NUMBER_BYTES.get(str(recipe.training.precision), 4)
    return (sizes.parameters - sizes.frozen) * size + checkpoint_bytes(recipe, sizes)


def training_device(recipe: Recipe) -> str:
    """Return the kind of device that a training of this process takes: `cuda` or `cpu`."""
    wants_gpu = recipe.trainer.accelerator in ("auto", "gpu")
    return "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"
