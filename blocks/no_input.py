"""`no_input`: a stream of zeros, for what must hear nothing of the tokens."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Count, Site, State


class NoInput(Block):
    """Zeros in place of the stream: y_t = 0.

    A decoder that begins with it reads none of the tokens it has written, as a Neural Turing
    Machine answers (Graves et al. 2014, section 4.1): what it says is a function of the memories
    and of the number of positions so far.

    Settings:
        width: The width that comes out, `model.width` unless given.

    Shapes: (B, T, .) -> (B, T, width); of a grid (B, T, W, .) -> (B, T, W, width).
    """

    family = "combination"
    packs = True

    reads_stream = False

    def __init__(self, site: Site, *, width: Count | None = None) -> None:
        super().__init__()
        self.out = site.stream._replace(width=site.width if width is None else width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x.new_zeros(*x.shape[:-1], self.out.width), state
