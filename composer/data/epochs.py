"""The pairs of each epoch: the same, perhaps augmented, or new ones of an endless task."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from composer.data.augmentation import augment_sources, augmentation
from composer.data.encoding import encode_pairs
from composer.data.ids import Corpus, Encoded
from composer.data.pairs import Pairs
from composer.data.sources import generate_pairs, is_endless
from composer.data.split_faults import length_faults
from composer.data.tokenizer import Tokenizers
from composer.data.training_pairs import trainable_rows
from composer.errors import DataError
from composer.model.features import feature_settings

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

CACHED_EPOCHS = 3
"""Epochs in memory: the present one and the next, whichever was used last."""


class EpochCorpus:
    """Corpus whose rows differ in every epoch: `of_epoch` makes those of a number, and keeps a few.

    The first batches of the next epoch are prefetched before the present one ends.
    """

    def __init__(self, make: Callable[[int], Encoded]) -> None:
        self.of_epoch = lru_cache(CACHED_EPOCHS)(make)


def training_corpus(
    recipe: Recipe, first: Encoded, tokenizers: Tokenizers, keep: Callable[[Encoded], np.ndarray]
) -> Corpus:
    """Return the training pairs of every epoch: `first`, perhaps augmented, or new ones of a task.

    `keep` selects those of new pairs that are trained on, (pairs,) bool; `first` has been filtered
    already, and stands in for an epoch of which nothing is left.
    """

    def generate(epoch: int) -> Encoded:
        if epoch == 0:
            return first
        encoded = encode_trainable(recipe, generate_pairs(recipe, "train", epoch), tokenizers)
        encoded = encoded.keep(keep(encoded))
        if not len(encoded):
            return first
        if faults := [*length_faults(recipe, "train", encoded)]:
            raise DataError(faults)
        return encoded

    if is_endless(recipe):
        return EpochCorpus(generate)
    ways = {}
    for side in first.sources:
        settings = feature_settings(recipe.data, side)
        if settings and (way := augmentation(settings)):
            ways[side] = way
    if not ways:
        return first
    return EpochCorpus(partial(augment_sources, first, ways, recipe.training.seed))


def encode_trainable(recipe: Recipe, pairs: Pairs, tokenizers: Tokenizers) -> Encoded:
    """Encode those of some training pairs that are trained on."""
    encoded = encode_pairs(recipe, pairs, tokenizers)
    return encoded.keep(trainable_rows(recipe, encoded, []))
