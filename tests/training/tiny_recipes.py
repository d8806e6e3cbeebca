"""A recipe that trains in a second, and what is asked of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from composer.recipe.recipe import Recipe

TINY = """
recipe: 1
name: tiny
data:
  generate: {reverse: {symbols: 6, min_length: 2, max_length: 6, train: 90, val: 12, test: 8}}
  tokenizer: {char: {joint: true}}
model:
  width: 8
  dropout: 0.2
  encoder: [dropout, {rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, {residual: [{cross_attention: {heads: 2}}]}, norm]
  output: {tie: [source, target]}
training:
  optimizer: {adam: {learning_rate: 1e-2}}
  schedule: {cosine: {warmup_steps: 2}}
  tokens_per_batch: 100
  label_smoothing: 0.1
  clip_norm: 1.0
  max_steps: 12
  validate_every: 4
  validation_sample: {decoding: {greedy: {max_length: 8}}}
decoding: {greedy: {max_length: 8}}
logging: {wandb: false}
"""
EPOCHS = ("training.max_steps=null", "training.validate_every=null", "training.max_epochs=2")
"""Overrides: two epochs of nine steps, each with a validation at its end."""
Tiny = Callable[..., Recipe]
Undisturbed = Callable[[Recipe], Path]


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same weights, to the last bit."""
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
