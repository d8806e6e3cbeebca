"""Where the documents of packed rows are, and the same documents side by side, one per row."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """Where the documents of some rows are: N of them, the longest of L positions, row by row.

    Every row begins with one. Padding belongs to the document before it.
    """

    starts: Tensor  # (B, T) bool, True where a document begins
    position: (
        Tensor  # (N, L) which of the B T positions of all rows is a document's; 0 after its end
    )
    there: Tensor  # (N, L) bool, False after its end
    place: Tensor  # (B, T) which of the N L positions of all documents is a row's
    row: Tensor  # (N,) the row of a document
    last: Tensor  # (B,) the last document of a row

    def split(self, x: Tensor) -> Tensor:
        """Return one document per row, with anything after its end: (B, T, ...) -> (N, L, ...)"""
        split: Tensor = Rearrange.apply(
            x.flatten(0, 1), self.position.flatten(), self.place.flatten(), None
        )
        return split.unflatten(0, self.position.shape)

    def join(self, x: Tensor) -> Tensor:
        """Return the rows of these documents: (N, L, ...) -> (B, T, ...)"""
        there = self.there.flatten()
        joined: Tensor = Rearrange.apply(
            x.flatten(0, 1), self.place.flatten(), self.position.flatten(), there
        )
        return joined.unflatten(0, self.place.shape)


class Rearrange(torch.autograd.Function):
    """Autograd function: take positions by an index whose inverse is known, so that no gradient is
    added up.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, there: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inverse, there)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inverse, there = ctx.saved_tensors
        gradient = gradients[0].index_select(0, inverse)
        if there is not None:
            gradient = gradient.masked_fill(~there.view(-1, *[1] * (gradient.ndim - 1)), 0.0)
        return gradient, None, None, None


def find_documents(starts: Tensor) -> Documents:
    """Return the documents of rows, from their starts (B, T).

    It waits for the device: best done on the CPU.
    """
    batch, length = starts.shape
    begins = starts.clone()
    begins[:, 0] = True
    document = begins.flatten().cumsum(0) - 1  # (B T,)
    first = begins.flatten().nonzero()[:, 0]  # (N,)
    every = torch.arange(batch * length, device=starts.device)  # (B T,)
    offset = every - first[document]  # (B T,)
    longest = int(offset.max()) + 1
    place = document * longest + offset  # (B T,)
    position = place.new_zeros(len(first) * longest).scatter(0, place, every)
    there = torch.zeros_like(position, dtype=torch.bool).index_fill(0, place, True)
    return Documents(
        starts,
        position.unflatten(0, (-1, longest)),
        there.unflatten(0, (-1, longest)),
        place.unflatten(0, (batch, length)),
        first // length,
        document[length - 1 :: length],
    )
