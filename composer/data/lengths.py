"""Lengths of pairs: what a curriculum counts, and answers that a model's grid has room for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from composer.data.encoding import Encoded
from composer.data.sources import TARGET
from composer.errors import Fault
from composer.model.encoder_decoder import ROUNDING

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


def answerable_rows(max_ratios: Mapping[str, float], pairs: Encoded) -> np.ndarray:
    """Return which pairs have a target short enough for the model's grid; all without one. -> (pairs,) bool

    max_ratios: how many times as long as the source an answer may be, by the encoders' keys; 0 is without a limit.
    """
    limits = [
        np.ceil(ratio * (pairs.sources[key].lengths() + 1) - ROUNDING) for key, ratio in max_ratios.items() if ratio
    ]
    if not limits:
        return np.ones(len(pairs), dtype=bool)
    answerable: np.ndarray = pairs.target.lengths() + 1 <= np.max(limits, axis=0)
    return answerable


def unanswerable_fault(recipe: Recipe, max_ratios: Mapping[str, float], pairs: Encoded) -> Fault | None:
    """Return the fault of pairs none of which has a target short enough for the model's grid."""
    if answerable_rows(max_ratios, pairs).any():
        return None
    message = f"no training pairs are left: every answer is longer than {max(max_ratios.values()):g} times its source"
    hint = "raise `max_length_ratio` of the block `grid`, or swap source and target"
    return recipe.fault("empty", ("data",), message, hint)


def sequence_lengths(encoded: Encoded, by: str | None = None) -> np.ndarray:
    """Return the tokens of every pair without eos: of the side `by`, else of its longest source, else of the target."""
    counted = [by] if by else [*encoded.sources] or [TARGET]
    longest: np.ndarray = np.max([encoded.sides[side].lengths() for side in counted], axis=0)
    return longest
