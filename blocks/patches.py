"""`patches`: a linear map of each patch of a grid."""

from __future__ import annotations

from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, Site, State
from blocks.core.functional import mask_cells
from blocks.core.windows import (
    check_columns,
    count_windows,
    pad_windows,
    stream_of_windows,
    window_mask,
)


class Patches(Block):
    """Patches of a grid, which do not overlap, each as a vector (ViT: Dosovitskiy et al. 2021,
    section 3.1).

    y[t, w] = W [s[p t, q w]; s[p t, q w + 1]; ... s[p t + p - 1, q w + q - 1]] + b, in patches of p
    positions and q columns. What lies beyond the edges is zero, and so are cells that are not real;
    a patch without a real cell is not real.

    Settings:
        size: Positions, then columns, of a patch; at most as many columns as arrive.
        width: The width that comes out; `model.width` unless given.

    Shapes: (B, T, W, D) -> (B, ceil(T / p), ceil(W / q), width).
    Raises BlockError where a sequence arrives, on a causal site, and for patches wider than the
    grid.
    """

    family = "shape"

    def __init__(
        self, site: Site, *, size: tuple[Count, Count], width: Count | None = None
    ) -> None:
        super().__init__()
        stream = site.grid("patches")
        site.require_full_context("", "`patches`", "move it to the encoder")
        check_columns("size", size, stream)
        self.size = positions, columns = tuple(size)
        width = site.width if width is None else width
        self.map = nn.Linear(positions * columns * stream.width, width)
        nn.init.xavier_uniform_(self.map.weight)
        nn.init.zeros_(self.map.bias)
        self.out = stream_of_windows(stream, size)._replace(width=width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        positions, columns = self.size
        s = pad_windows(
            mask_cells(x, context.mask).movedim(-1, 1), self.size, self.size
        )  # (B, D, T, W)
        count = count_windows(x.shape[1], positions)
        s = s.unflatten(3, (-1, columns)).unflatten(
            2, (count, positions)
        )  # (B, D, T / p, p, W / q, q)
        return self.map(s.permute(0, 2, 4, 3, 5, 1).flatten(3)), state  # (B, T / p, W / q, width)

    def mask(self, mask: Tensor) -> Tensor:
        return window_mask(mask, self.size, self.size)
