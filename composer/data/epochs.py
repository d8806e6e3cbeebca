"""What each epoch trains on: the same pairs, perhaps augmented, or new ones of an endless task."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from composer.data.augmentation import AugmentedCorpus, augmentation
from composer.data.encoding import encode_pairs, length_faults, trainable_rows
from composer.data.ids import Corpus, Encoded
from composer.data.pairs import Pairs
from composer.data.sources import generate_pairs, is_endless
from composer.data.tokenizer import Tokenizers
from composer.errors import DataError
from composer.model.features import feature_settings

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

CACHED_EPOCHS = 3
"""Epochs of an endless task in memory: the present one and the next, whichever was used last."""


class EndlessCorpus:
    """Corpus with new pairs in every epoch.

    A few epochs are cached, since the first batches of the next epoch are prefetched before the present one ends.
    """

    def __init__(self, first: Encoded, generate: Callable[[int], Encoded]) -> None:
        self.first, self.generate = first, lru_cache(CACHED_EPOCHS)(generate)

    def of_epoch(self, epoch: int) -> Encoded:
        """Return the pairs of an epoch; those of epoch 0 are there from the start."""
        return self.generate(epoch) if epoch else self.first


def training_corpus(
    recipe: Recipe, first: Encoded, tokenizers: Tokenizers, keep: Callable[[Encoded], np.ndarray]
) -> Corpus:
    """Return the training pairs of every epoch: `first`, perhaps augmented, or new ones if the task is endless.

    `keep` selects those of new pairs that are trained on, (pairs,) bool; `first` has been filtered already, and stands
    in for an epoch of which nothing is left.
    """

    def generate(epoch: int) -> Encoded:
        encoded = encode_trainable(recipe, generate_pairs(recipe, "train", epoch), tokenizers)
        encoded = encoded.keep(keep(encoded))
        if not len(encoded):
            return first
        if faults := [*length_faults(recipe, "train", encoded)]:
            raise DataError(faults)
        return encoded

    if is_endless(recipe):
        return EndlessCorpus(first, generate)
    settings = {side: feature_settings(recipe.dataset, side) for side in first.sources}
    ways = {side: way for side, own in settings.items() if own and (way := augmentation(own))}
    return AugmentedCorpus(first, ways, recipe.training["seed"]) if ways else first


def encode_trainable(recipe: Recipe, pairs: Pairs, tokenizers: Tokenizers) -> Encoded:
    """Encode those of some training pairs that are trained on."""
    encoded = encode_pairs(recipe, pairs, tokenizers)
    return encoded.keep(trainable_rows(recipe, encoded, []))
