"""`reverse`: each row from its last position to its first."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, Context, Site, State, remove
from blocks.core.recurrence import reverse


class Reverse(Block):
    """Reverses the positions of each row: before an rnn, it then reads a source from right to left.

    That brings the first words of a source near those of its translation, which helps an
    encoder-decoder without attention (Sutskever et al. 2014, section 3.3). y_t = x_(n + 1 - t) in a
    row of n tokens; the padding stays on the right.

    Shapes: (B, T, D) -> (B, T, D).
    Raises BlockError on a causal site, and where a grid arrives.
    """

    family = "shape"

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.out = site.sequence("reverse")
        site.require_full_context("", "`reverse`", remove(rest=", or move it to the encoder"))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return reverse(x, context.mask), state
