"""`dropout`: drops values at random while training."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, NoEffect, Rate, Site, State
from blocks.core.functional import apply_dropout, apply_locked_dropout


class Dropout(Block):
    """Dropout (Srivastava et al. 2014): each value is zero with probability `rate`, else divided by
    1 - rate.

    Settings:
        rate: Probability of dropping, 0 <= rate < 1; `model.dropout` unless given.
        locked: Whether all positions of a row have one mask (Gal & Ghahramani 2016; Merity et al.
            2018, section 4.2); each window of a text has a new one, and each position where
            `recurrent` runs this in its loop.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    Raises NoEffect for a locked mask that drops nothing.
    """

    family = "normalization"

    def __init__(self, site: Site, *, rate: Rate = 0.0, locked: bool = False) -> None:
        super().__init__()
        if locked and not rate:
            raise NoEffect("locked", "at the rate 0, nothing is dropped")
        self.rate, self.packs = rate, not locked
        self.drop = apply_locked_dropout if locked else apply_dropout
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.drop(x, self.rate, self.training), state
