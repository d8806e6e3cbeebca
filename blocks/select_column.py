"""`select_column`: one column of a grid as a sequence."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, BlockError, Context, NonNegativeInt, Site, State


class SelectColumn(Block):
    """One column of a grid: y_t = s[t, index] (what the Neural GPU's outputs are read from), 0
    where no cell is real.

    Settings:
        index: Which column, from 0.

    Shapes: (B, T, W, D) -> (B, T, D).
    Raises BlockError where a sequence arrives, and where the grid has no such column.
    """

    family = "shape"

    def __init__(self, site: Site, *, index: NonNegativeInt = 0) -> None:
        super().__init__()
        stream = site.grid("select_column")
        if index >= stream.columns:
            message = f"there is no column {index}: the grid has {stream.columns}, counted from 0"
            raise BlockError("index", message, fix=f"write a number from 0 to {stream.columns - 1}")
        self.index = index
        self.out = stream._replace(grid=False, columns=0)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        there = context.mask[:, :, self.index, None]  # (B, T, 1)
        return x[:, :, self.index].masked_fill(~there, 0.0), state  # (B, T, D)

    def mask(self, mask: Tensor) -> Tensor:
        return mask.any(
            -1
        )  # (B, T); else a cell that is not real would be padding between positions
