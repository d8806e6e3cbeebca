"""`pool2d`: windows of a grid, each as one cell."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Block, BlockError, Context, Count, Site, State, remove, write
from blocks.core.windows import check_columns, pad_windows, stream_of_windows, window_mask


class Pool2d(Block):
    """The maximum or the mean of each window of a grid, over the cells that are real.

    Of a stride r x r', the window of cell t, w begins at position r t and column r' w; the last
    ones end with the grid. A window without a real cell is not real.

    Settings:
        how: max | mean.
        size: Positions, then columns, of a window; more than one cell, and at most as many columns
            as arrive.
        stride: Distances between two windows, at most their size, which it is unless given.

    Shapes: (B, T, W, D) -> (B, ceil(T / r), ceil(W / r'), D).
    Raises BlockError where a sequence arrives, on a causal site, for windows of one cell or wider
    than the grid, and for a stride above their size.
    """

    family = "convolution"

    def __init__(
        self,
        site: Site,
        *,
        how: Literal["max", "mean"] = "max",
        size: tuple[Count, Count] = (2, 2),
        stride: tuple[Count, Count] | None = None,
    ) -> None:
        super().__init__()
        stream = site.grid("pool2d")
        site.require_full_context("", "`pool2d`", remove(rest=", or move it to the encoder"))
        check_columns("size", size, stream)
        if tuple(size) == (1, 1):
            fix = write("size", [2, 2], ", or remove the block")
            raise BlockError("size", "a window of one cell is that cell", fix=fix)
        self.how, self.size, self.stride = (
            how,
            tuple(size),
            tuple(size if stride is None else stride),
        )
        if any(step > window for step, window in zip(self.stride, self.size, strict=True)):
            message = (
                f"a stride of {list(self.stride)} skips cells between windows of {list(self.size)}"
            )
            raise BlockError(
                "stride", message, fix=remove("stride", ", or make it smaller than `size`")
            )
        self.out = stream_of_windows(stream, self.stride)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        nothing = -math.inf if self.how == "max" else 0.0
        s = x.masked_fill(~context.mask[..., None], nothing).movedim(-1, 1)  # (B, D, T, W)
        s = pad_windows(s, self.size, self.stride, nothing)
        if self.how == "max":
            y = F.max_pool2d(s, self.size, self.stride)  # (B, D, T', W')
        else:
            there = pad_windows(context.mask[:, None].to(x.dtype), self.size, self.stride)
            y = self._summed(s) / self._summed(there).clamp(min=1.0)
        return y.movedim(1, -1).masked_fill(~self.mask(context.mask)[..., None], 0.0), state

    def _summed(self, x: Tensor) -> Tensor:
        """(B, D, T, W) -> (B, D, T', W')"""
        return F.avg_pool2d(x, self.size, self.stride, divisor_override=1)

    def mask(self, mask: Tensor) -> Tensor:
        return window_mask(mask, self.size, self.stride)
