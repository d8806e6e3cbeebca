"""`multiply`: the stream and named outputs, multiplied."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, NameList, Site, State
from blocks.core.named_inputs import as_tuple, check_same_width, read_named, resolve_streams


class Multiply(Block):
    """The stream and named outputs, multiplied value by value: y_t = x_t * a_t * b_t ...

    Settings:
        of: One name or several. An output with one position for all, such as a `pool`'s, is seen at
            every position.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    Raises BlockError where a name is unknown, has other positions than the stream or another width.
    """

    family = "combination"
    packs = True

    def __init__(self, site: Site, *, of: NameList) -> None:
        super().__init__()
        self.names = as_tuple(of)
        check_same_width(site, self.names, resolve_streams(site, self.names))
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        for named in read_named(x, self.names, context):
            x = x * named
        return x, state
