"""`concat`: the stream, then named outputs, side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.core.contract import Block, Context, NameList, Site, State
from blocks.core.named_inputs import as_tuple, read_named, resolve_streams


class Concat(Block):
    """The stream, then named outputs, side by side: y_t = [x_t; a_t; b_t ...].

    Settings:
        of: One name or several. An output with one position for all, such as a `pool`'s, is seen at
            every position.

    Shapes: (B, T, D) -> (B, T, D + the widths of the named), or so for each cell of a grid.
    Raises BlockError where a name is unknown or has other positions than the stream.
    """

    family = "combination"
    packs = True

    def __init__(self, site: Site, *, of: NameList) -> None:
        super().__init__()
        self.names = as_tuple(of)
        streams = resolve_streams(site, self.names)
        self.out = site.stream._replace(
            width=site.stream.width + sum(stream.width for stream in streams)
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return torch.cat((x, *read_named(x, self.names, context)), -1), state
