"""`grid`: a sequence becomes the first column of a grid."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Block, Bounds, Context, Count, Site, State

LengthRatio = Annotated[float, Bounds(minimum=1.0, maximum=100.0)]
"""How many times as long as the question the answer may be, 1 or more."""


class Grid(Block):
    """The Neural GPU's mental image: the stream in column 0, zeros in all others (Kaiser &
    Sutskever 2016, section 2).

    s[t, 0] = x_t, s[t, w] = 0 for w > 0.

    An encoder with a grid reads blanks after its words, zeros that are real positions, as many as
    the answer is longer than the question. In training the answer's length is known; decoding tries
    each length up to `max_length_ratio` times the question's and keeps the best answer (Kaiser &
    Bengio 2016, section 4).

    Settings:
        columns: Columns W of the grid, 1 or more.
        max_length_ratio: How many times as long as the question the answer may be, 1 or more; 1 is
            no longer than it.

    Shapes: (B, T, D) -> (B, T, W, D).
    Raises BlockError where a grid arrives already, and in a decoder, where the answer's size is not
    known.
    """

    family = "shape"

    def __init__(
        self, site: Site, *, columns: Count = 4, max_length_ratio: LengthRatio = 2.0
    ) -> None:
        super().__init__()
        stream = site.sequence("grid")
        site.require_full_context(
            "",
            "a grid, which is as long as the answer,",
            fix="put it into the encoder; `active_memory` reads it from there",
        )
        self.columns, self.max_target_ratio = columns, max_length_ratio
        self.out = stream._replace(grid=True, columns=columns)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y = F.pad(x[:, :, None], (0, 0, 0, self.columns - 1))  # (B, T, W, D)
        context.record("image", y)
        return y, state

    def mask(self, mask: Tensor) -> Tensor:
        return mask[..., None].expand(-1, -1, self.columns)  # (B, T, W)
