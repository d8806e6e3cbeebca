"""`sum_columns`: the columns of a grid, summed."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Site, State
from blocks.core.functional import mask_cells


class SumColumns(Block):
    """The columns of a grid, summed: y_t = sum_w s[t, w] over the cells that are real.

    Shapes: (B, T, W, D) -> (B, T, D).
    Raises BlockError where a sequence arrives.
    """

    family = "shape"

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.out = site.grid("sum_columns")._replace(grid=False, columns=0)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return mask_cells(x, context.mask).sum(2), state  # (B, T, D)

    def mask(self, mask: Tensor) -> Tensor:
        return mask.any(-1)  # (B, T)
