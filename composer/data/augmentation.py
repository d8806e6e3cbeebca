"""Augmented images, sounds and vectors: a function of the seed, the epoch and the row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from composer.data.features import Features
from composer.data.ids import Encoded
from composer.recipe.data_sections import ImageAugment, SpecAugment, TableColumn

Augment = Callable[..., np.ndarray]


def augment_image(image: np.ndarray, random: np.random.Generator, settings: ImageAugment) -> Any:
    """Rotate, scale and move an image within its size; its edge pixels fill what becomes free.

    image: (T, W, C) float32, all real -> the same
    """
    angle = math.radians(random.uniform(-settings.rotate, settings.rotate))
    factor = 1 / random.uniform(1 - settings.scale, 1 + settings.scale)
    # of coordinates from -1 to 1
    down, right = random.uniform(-2 * settings.shift, 2 * settings.shift, 2)
    ratio = image.shape[0] / image.shape[1]
    cos, sin = factor * math.cos(angle), factor * math.sin(angle)
    matrix = torch.tensor(
        [[[cos, -sin * ratio, right], [sin / ratio, cos, down]]], dtype=torch.float32
    )
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None]  # (1, C, T, W)
    places = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
    moved = F.grid_sample(pixels, places, padding_mode="border", align_corners=False)
    return moved[0].permute(1, 2, 0).numpy()


def augment_sound(
    frames: np.ndarray, random: np.random.Generator, settings: SpecAugment
) -> np.ndarray:
    """Mask bands and stretches of time of frames with their mean. (T, F) -> (T, F)"""
    masked, mean = frames.copy(), frames.mean()
    for _ in range(settings.band_masks):
        start, end = draw_span(random, frames.shape[1], min(settings.bands, frames.shape[1]))
        masked[:, start:end] = mean
    for _ in range(settings.frame_masks):
        start, end = draw_span(
            random, len(frames), min(settings.frames, int(settings.share * len(frames)))
        )
        masked[start:end] = mean
    return masked


def draw_span(random: np.random.Generator, size: int, longest: int) -> tuple[int, int]:
    """Draw where a mask of up to so many places begins and ends."""
    length = int(random.integers(0, longest + 1))
    start = int(random.integers(0, size - length + 1))
    return start, start + length


@dataclass(frozen=True, kw_only=True)
class AugmentedFeatures(Features):
    """Features whose rows are augmented as they are read; random numbers depend on `key`."""

    augment: Augment
    key: tuple[int, ...]

    def outputs(self, rows: np.ndarray) -> np.ndarray:
        out = super().outputs(rows)  # (B, T, F) or (B, T, W, C)
        for at, row in enumerate(rows.tolist()):
            length = self.ends[row] - self.starts[row]
            place: tuple[int | slice, ...] = (at, slice(length))
            if self.columns is not None:
                place = (*place, slice(self.columns[row]))
            out[place] = self.augment(out[place], np.random.default_rng([*self.key, row]))
        return out


def augment_sources(pairs: Encoded, ways: Mapping[str, Augment], seed: int, epoch: int) -> Encoded:
    """Return pairs with the sources that an epoch has. ways: how they are augmented, by source"""
    sources = dict(pairs.sources)
    for number, side in enumerate(sorted(sources)):
        if side in ways:
            sources[side] = AugmentedFeatures(
                **vars(sources[side]), augment=ways[side], key=(seed, epoch, number)
            )
    return replace(pairs, sources=sources)


def augmentation(column: TableColumn) -> Augment | None:
    """Return the augmentation of a column's rows, or None."""
    if column.kind == "image":
        return None if column.augment is None else partial(augment_image, settings=column.augment)
    if column.spec_augment is None:
        return None
    return partial(augment_sound, settings=column.spec_augment)
