"""`read`: goes on with a named output in place of the stream."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Name, Site, State
from blocks.core.named_inputs import read_named, resolve_streams


class Read(Block):
    """A named output in place of the stream: y_t = a_t.

    What made the stream before it still runs where it has a name that is read: the tops of stacks,
    say, that the next step reads as `prev`, while the output sees the controller alone (Joulin &
    Mikolov 2015, equation 3).

    Settings:
        of: The name. An output with one position for all, such as a `pool`'s, is seen at every
            position.

    Shapes: (B, T, .) -> (B, T, D), or so for each cell of a grid.
    Raises BlockError where the name is unknown or has other positions than the stream.
    """

    family = "combination"
    packs = True

    reads_stream = False

    def __init__(self, site: Site, *, of: Name) -> None:
        super().__init__()
        self.name = of
        self.out = site.stream._replace(width=resolve_streams(site, [of])[0].width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return read_named(x, [self.name], context)[0], state
