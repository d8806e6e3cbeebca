"""`flatten`: the cells of a grid as a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.core.contract import Block, BlockError, Context, Site, State


class Flatten(Block):
    """The cells of a grid one after another, position by position: y_(t W + w) = s[t, w].

    Cells that are not real come last, so that padding is on the right; the others close up.

    Shapes: (B, T, W, D) -> (B, T W, D).
    Raises BlockError where a sequence arrives, on a causal site, where every position is one token,
    and where the stream has one position for all.
    """

    family = "shape"

    def __init__(self, site: Site) -> None:
        super().__init__()
        stream = site.grid("flatten")
        if site.causal:
            message = (
                f"{site.causal} has one position for each token, and `flatten` makes"
                f" {stream.columns} of it"
            )
            raise BlockError(
                "", message, code="length", fix="write `- sum_columns` or `- select_column: 0`"
            )
        if stream.length_ratio == 0 and stream.columns > 1:
            message = (
                f"a stream with one position for all has one, and `flatten` makes {stream.columns}"
                " of it"
            )
            raise BlockError(
                "", message, code="length", fix="write `- sum_columns` or `- select_column: 0`"
            )
        self.out = stream._replace(
            grid=False, columns=0, length_ratio=stream.length_ratio * stream.columns
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        cells, there = x.flatten(1, 2), context.mask.flatten(1)  # (B, T W, D), (B, T W)
        order = real_first(there)
        return cells.gather(1, order[..., None].expand(-1, -1, x.shape[-1])), state  # (B, T W, D)

    def mask(self, mask: Tensor) -> Tensor:
        cells = mask.flatten(1)
        return torch.arange(cells.shape[1], device=mask.device) < cells.sum(
            1, keepdim=True
        )  # (B, T W)


def real_first(there: Tensor) -> Tensor:
    """Return each row's places in another order, the real ones first: (B, N) -> (B, N) long"""
    before = there.cumsum(1) - 1  # of the real ones
    place = torch.arange(there.shape[1], device=there.device).expand_as(before)
    # before a place that is not real, all others but the real ones so far are not
    target = torch.where(there, before, before[:, -1:] + place - before)
    return torch.zeros_like(target).scatter(1, target, place)
