"""The largest batch of a training: its rows, and the length of each side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from composer.data.features import Features
from composer.data.ids import Encoded, Ids
from composer.data.pairs import TARGET
from composer.data.sampler import pair_lengths, plan_buckets
from composer.data.stories import story_shape
from composer.model.features import feature_settings, image_size

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

FRAMES = 1_000
"""Frames of a sound, or vectors, that are assumed where there are no data: ten seconds."""

QUADRATIC = 1_000
"""Positions of a pair at which comparing all of them costs about as much as everything else.

Of several batches with as many positions, the one with the longest rows is the largest.
"""


class BatchSize(NamedTuple):
    """Rows of a batch, and padded positions of each side; of a story its sentences."""

    rows: int
    target: int
    sources: Mapping[str, int]

    def describe(self) -> str:
        """Return the size in words: `25 pairs of 40 + 38 tokens`, sources first."""
        noun = "pair" if self.sources else "text"
        lengths = " + ".join(f"{length:,}" for length in (*self.sources.values(), self.target))
        return f"{self.rows:,} {noun}{'s' * (self.rows != 1)} of {lengths} positions"


def largest_batch(recipe: Recipe, train: Encoded | None = None, share: float = 1.0) -> BatchSize:
    """Return the size of the batch with the most positions that one device sees at once.

    train: Pairs, or texts, that are `share` of those trained on. Without them every side is as long
    as `max_length` allows, and a sound has FRAMES frames, or those of its `seconds`.
    """
    training, window = recipe.training, recipe.window
    budget = training.tokens_per_batch
    if window:
        size = BatchSize(max(1, budget // window), window, {})
    elif train is not None and len(train):
        size = largest_of_pairs(train, budget, share)
    else:
        lengths = {side: _longest(recipe, side) for side in (TARGET, *recipe.sources)}
        target = lengths.pop(TARGET)
        size = BatchSize(max(1, budget // target), target, lengths)
    return size._replace(rows=math.ceil(size.rows / training.accumulate / _devices(recipe)))


def largest_of_pairs(train: Encoded, budget: int, share: float = 1.0) -> BatchSize:
    """Return the size of the batch with the most positions, as `TrainBatchSampler` makes them.

    share: Which part of all pairs these are; of the others as many are assumed of each length.
    """
    target, source = pair_lengths(train)
    buckets = plan_buckets(target, source, max(1, round(budget * share)))
    bucket = buckets.of(target, source)
    longest = np.zeros(
        (len(buckets.batches), 1 + len(train.sources)), dtype=np.int64
    )  # (buckets, sides)
    np.maximum.at(longest, bucket, side_positions(train))
    rows = -(-np.bincount(bucket, minlength=len(longest)) // np.maximum(1, buckets.batches))
    if share < 1:
        rows = np.maximum(
            1, np.minimum(budget // longest[:, 0], np.ceil(rows / share).astype(np.int64))
        )
    most = int(np.argmax(relative_size(rows, longest.sum(1))))
    target_length, *lengths = longest[most].tolist()
    return BatchSize(int(rows[most]), target_length, dict(zip(train.sources, lengths, strict=True)))


def side_positions(train: Encoded) -> np.ndarray:
    """Return the positions of each pair, on its target and on each source. -> (pairs, sides)

    Of a story they are sentences.
    """
    sources = map(source_positions, train.sources.values())
    return np.stack([train.target.positions(), *sources], 1)


def source_positions(ids: Ids | Features) -> np.ndarray:
    """Return the positions of each row, of a story its sentences. -> (rows,)"""
    return ids.lengths() if ids.is_story else ids.positions()


def relative_size(rows: Any, positions: Any) -> Any:
    """Return the size by which batches are compared: rows and their positions on all sides."""
    return rows * positions * (1 + positions / QUADRATIC)


def _longest(recipe: Recipe, side: str) -> int:
    length = recipe.model.output.length
    if side == TARGET and length is not None:
        return int(length) + 1
    if story := story_shape(recipe, side):
        return story.sentences
    if settings := feature_settings(recipe.data, side):
        if settings.kind == "audio" and settings.seconds is not None:
            return round(settings.seconds / settings.features.log_mel.hop)
        if settings.kind != "image":
            return FRAMES
        height, width = image_size(settings)
        return height if settings.positions == "rows" else width
    return int(recipe.data.max_length)


def _devices(recipe: Recipe) -> int:
    """Return the devices that the recipe writes as numbers; `auto` counts as one."""
    devices, nodes = recipe.trainer.devices, recipe.trainer.num_nodes
    count = len(devices) if isinstance(devices, tuple) else devices
    return max(1, count if isinstance(count, int) else 1) * (nodes if isinstance(nodes, int) else 1)
