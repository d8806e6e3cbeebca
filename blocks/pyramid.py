"""`pyramid`: neighbouring positions become one."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Block, Bounds, Context, Site, State, remove
from blocks.core.windows import count_windows

Factor = Annotated[int, Bounds(minimum=2, maximum=1_000)]
"""Two or more."""


class Pyramid(Block):
    """Neighbouring positions side by side: y_t = [x_(2 t); x_(2 t + 1)] (Listen, Attend and Spell:
    Chan et al. 2016).

    So there, in section 3.1, between two layers of the pyramidal BLSTM. A row whose length the
    factor does not divide is continued with zeros; the paper leaves that open, and implementations
    that drop the rest lose the last frame.

    Settings:
        factor: How many positions become one, 2 or more.

    Shapes: (B, T, D) -> (B, ceil(T / factor), factor D).
    Raises BlockError where a grid arrives, and on a causal site.
    """

    family = "shape"

    def __init__(self, site: Site, *, factor: Factor = 2) -> None:
        super().__init__()
        stream, self.factor = site.sequence("pyramid"), factor
        site.require_full_context("", "`pyramid`", remove(rest=", or move it to the encoder"))
        self.out = stream.shortened(factor)._replace(width=factor * stream.width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        x = x.masked_fill(~context.mask[..., None], 0.0)
        count = count_windows(x.shape[1], self.factor)
        x = F.pad(x, (0, 0, 0, count * self.factor - x.shape[1]))
        return x.unflatten(1, (count, self.factor)).flatten(2), state  # (B, T / factor, factor D)

    def mask(self, mask: Tensor) -> Tensor:
        return mask[:, :: self.factor]
