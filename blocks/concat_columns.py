"""`concat_columns`: the columns of a grid, side by side."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Site, State
from blocks.core.functional import mask_cells


class ConcatColumns(Block):
    """The columns of a grid side by side: y_t = [s[t, 0]; s[t, 1]; ...], with zeros for cells that
    are not real.

    Shapes: (B, T, W, D) -> (B, T, W D).
    Raises BlockError where a sequence arrives.
    """

    family = "shape"

    def __init__(self, site: Site) -> None:
        super().__init__()
        stream = site.grid("concat_columns")
        self.out = stream._replace(grid=False, columns=0, width=stream.columns * stream.width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return mask_cells(x, context.mask).flatten(2), state  # (B, T, W D)

    def mask(self, mask: Tensor) -> Tensor:
        return mask.any(-1)  # (B, T)
