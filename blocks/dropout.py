"""`dropout`: drops values at random while training."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Rate, Site, State
from blocks.core.functional import apply_dropout


class Dropout(Block):
    """Dropout (Srivastava et al. 2014): each value is zero with probability `rate`, else divided by 1 - rate.

    Settings:
        rate: Probability of dropping, 0 <= rate < 1; `model.dropout` unless given.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    """

    family = "normalization"

    def __init__(self, site: Site, *, rate: Rate = 0.0) -> None:
        super().__init__()
        self.rate = rate
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return apply_dropout(x, self.rate, self.training), state
