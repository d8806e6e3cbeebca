"""Documents of packed rows in buckets: those that are about as long stand side by side, so that
little is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocks.core.documents import Documents, Rearrange


class Buckets(NamedTuple):
    """Where the documents of some rows stand, bucket after bucket: P places in all, with what is
    padded.

    `shapes` has how many documents stand in each bucket, and how many positions the longest of them
    has.
    """

    shapes: tuple[tuple[int, int], ...]
    numbers: tuple[Tensor, ...]  # which documents stand in each bucket, in the order of the rows
    position: Tensor  # (P,) index into all B T positions; 0 after a document's end
    there: Tensor  # (P,) bool, False after a document's end
    place: Tensor  # (B, T) at which place a position of the rows is
    in_order: bool = False  # whether all stand in one bucket, in the order of the rows

    def split(self, x: Tensor) -> list[Tensor]:
        """Return one document per row, with anything after its end: (B, T, ...) -> of each bucket
        (N, L, ...)
        """
        return self.cut(Rearrange.apply(x.flatten(0, 1), self.position, self.place.flatten(), None))

    def split_mask(self, mask: Tensor) -> list[Tensor]:
        """Return the mask of each bucket: (B, T), or (B, T, W) of a grid -> (N, L) each"""
        there = self.there.view(-1, *[1] * (mask.ndim - 2))
        return self.cut(mask.flatten(0, 1)[self.position] & there)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the rows of these documents: of each bucket (N, L, ...) -> (B, T, ...)"""
        x = (
            torch.cat([part.flatten(0, 1) for part in parts])
            if len(parts) > 1
            else parts[0].flatten(0, 1)
        )
        joined: Tensor = Rearrange.apply(x, self.place.flatten(), self.position, self.there)
        return joined.unflatten(0, self.place.shape)

    def cut(self, x: Tensor) -> list[Tensor]:
        """Return the positions of each bucket: (P, ...) -> (N, L, ...) each"""
        parts = x.split([count * length for count, length in self.shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def find(self, numbers: Tensor) -> Tensor:
        """Return the places of documents in the order of the buckets."""
        return numbers if self.in_order else torch.cat(self.numbers).argsort()[numbers]

    def like(self, documents: Documents) -> Buckets:
        """Return buckets in which other documents stand as these do."""
        return one_bucket(documents) if self.in_order else arrange(documents, self.numbers)


def one_bucket(documents: Documents) -> Buckets:
    """Put all documents into one bucket, in the order of the rows."""
    (count, length), device = documents.there.shape, documents.there.device
    every = torch.arange(count, device=device)
    position, there = documents.position.flatten(), documents.there.flatten()
    return Buckets(((count, length),), (every,), position, there, documents.place, in_order=True)


def bucket_by_length(documents: Documents, count: int) -> Buckets:
    """Put each document into the bucket, of `count`, of its share of the longest length, the short
    ones first.

    What would be empty is left out. It waits for the device, unless there is one.
    """
    if count == 1:
        return one_bucket(documents)
    lengths = documents.there.sum(1)  # (N,)
    bucket = (lengths - 1) * count // documents.there.shape[1]  # (N,)
    numbers = tuple((bucket == at).nonzero()[:, 0] for at in bucket.unique().tolist())
    return arrange(documents, numbers) if len(numbers) > 1 else one_bucket(documents)


def arrange(documents: Documents, numbers: tuple[Tensor, ...]) -> Buckets:
    """Put documents into buckets by their numbers, each of them once. It waits for the device."""
    shapes, positions, theres = [], [], []
    for chosen in numbers:
        length = int(documents.there[chosen].any(0).sum())
        shapes.append((len(chosen), length))
        positions.append(documents.position[chosen, :length].flatten())
        theres.append(documents.there[chosen, :length].flatten())
    position, there = torch.cat(positions), torch.cat(theres)
    place = documents.place.flatten().index_copy(0, position[there], there.nonzero()[:, 0])
    return Buckets(tuple(shapes), numbers, position, there, place.view_as(documents.place))


def run_slices(
    layer: Callable[..., Any], buckets: list[Tensor], state: tuple[Tensor, ...], masks: list[Tensor]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Run a layer over buckets of rows, the shortest first: each slice in the rows that reach it.

    layer: From x (B, T, D), leaves (B, .) and mask (B, T) to (B, T, .), and the leaves after it.
    buckets: (N, L, D) each, masks: (N, L) each, state: of all rows -> (N, L, .) each, the state
    """
    if len(buckets) == 1:
        y, state = layer(buckets[0], state, masks[0])
        return [y], state
    counts = [len(x) for x in buckets]
    outputs: list[list[Tensor]] = [[] for _ in buckets]
    ended, begin = [], 0
    for at, count in enumerate(counts):
        end = buckets[at].shape[1]
        x = torch.cat([x[:, begin:end] for x in buckets[at:]])
        mask = torch.cat([mask[:, begin:end] for mask in masks[at:]])
        begin = end
        y, state = layer(x, state, mask)
        for output, piece in zip(outputs[at:], y.split(counts[at:]), strict=True):
            output.append(piece)
        ended.append([leaf[:count] for leaf in state])
        state = tuple(leaf[count:] for leaf in state)
    return [torch.cat(output, 1) for output in outputs], tuple(
        map(torch.cat, zip(*ended, strict=True))
    )
