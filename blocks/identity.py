"""`identity`: y = x."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Site, State


class Identity(Block):
    """Identity, y = x: a branch of `parallel` that skips the others, or, with `as`, a name for what
    arrives here.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    """

    family = "position-wise"
    packs = True

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x, state
