"""`add`: the stream and named outputs, summed."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, NameList, Positive, Site, State
from blocks.core.named_inputs import as_tuple, check_same_width, read_named, resolve_streams


class Add(Block):
    """The stream and named outputs, summed: y_t = scale (x_t + a_t + b_t ...).

    Settings:
        of: One name or several. An output with one position for all, such as a `pool`'s, is seen at
            every position.
        scale: What the sum is multiplied by, above 0; sqrt(0.5) keeps the variance of two (Gehring
            et al. 2017).

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    Raises BlockError where a name is unknown, has other positions than the stream or another width.
    """

    family = "combination"
    packs = True

    def __init__(self, site: Site, *, of: NameList, scale: Positive = 1.0) -> None:
        super().__init__()
        self.names, self.scale = as_tuple(of), scale
        check_same_width(site, self.names, resolve_streams(site, self.names))
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        for named in read_named(x, self.names, context):
            x = x + named
        return x if self.scale == 1.0 else x * self.scale, state
