"""`maxout`: the largest of several linear maps."""

from __future__ import annotations

from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, Few, Site, State


class Maxout(Block):
    """Maxout (Goodfellow et al. 2013, section 3; after a decoder: Bahdanau et al. 2015, appendix
    A.2.2).

    y_i = max_j (W_j x + b_j)_i over the pieces j.

    Settings:
        pieces: How many linear maps, 1 or more.
        width: The width that comes out; `model.width` unless given.

    Shapes: (B, T, .) -> (B, T, width), or so for each cell of a grid.
    """

    family = "position-wise"
    packs = True

    def __init__(self, site: Site, *, pieces: Few = 2, width: Count | None = None) -> None:
        super().__init__()
        width = site.width if width is None else width
        self.pieces = pieces
        self.map = nn.Linear(site.stream.width, pieces * width)
        self.out = site.stream._replace(width=width)
        for piece in self.map.weight.detach().split(width):
            nn.init.xavier_uniform_(piece)
        nn.init.zeros_(self.map.bias)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.map(x).unflatten(-1, (self.pieces, -1)).amax(-2), state
