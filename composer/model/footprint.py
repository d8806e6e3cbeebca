"""Bytes of weights in training and in a checkpoint, by the number of parameters; its device."""

from __future__ import annotations

import torch

from composer.recipe.recipe import Recipe

NUMBER_BYTES = {"64": 8, "bf16-true": 2}
"""Bytes of a parameter, by precision; 4 in the others."""


def checkpoint_bytes(recipe: Recipe, parameters: int, frozen: int) -> int:
    """Return the bytes of parameters, their average and the optimizer's state, but frozen ones."""
    size = NUMBER_BYTES.get(str(recipe.training.precision), 4)
    average = max(4, size) if recipe.training.ema or recipe.training.asgd else 0
    return (
        parameters * (size + average)
        + (parameters - frozen) * size * recipe.training.optimizer.states
    )


def weight_bytes(recipe: Recipe, parameters: int, frozen: int) -> int:
    """Return the bytes of so many parameters in training, with gradients and optimizer state."""
    gradients = (parameters - frozen) * NUMBER_BYTES.get(str(recipe.training.precision), 4)
    return gradients + checkpoint_bytes(recipe, parameters, frozen)


def training_device(recipe: Recipe) -> str:
    """Return the kind of device that a training of this process takes: `cuda` or `cpu`."""
    wants_gpu = recipe.trainer.accelerator in ("auto", "gpu")
    return "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"
