"""`split_columns`: the features of each position as columns of a grid."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Block, BlockError, Context, Count, Site, State


class SplitColumns(Block):
    """The features of each position in N equal parts, the columns of a grid: [s[t, 0]; s[t, 1];
    ...] = x_t.

    So a spectrogram, (B, T, bands), is an image of as many columns with one channel.

    Settings:
        columns: Columns N of the grid, 1 or more; they divide the width.

    Shapes: (B, T, D) -> (B, T, N, D / N).
    Raises BlockError where a grid arrives, and for columns that do not divide the width.
    """

    family = "shape"

    def __init__(self, site: Site, *, columns: Count) -> None:
        super().__init__()
        stream, self.columns = site.sequence("split_columns"), columns
        if stream.width % columns:
            parts = ", ".join(
                str(part) for part in range(1, stream.width + 1) if stream.width % part == 0
            )
            message = f"a width of {stream.width} cannot be split into {columns} equal columns"
            raise BlockError(
                "columns", message, fix=f"write one of {parts}, or put a `linear` before it"
            )
        self.out = stream._replace(grid=True, columns=columns, width=stream.width // columns)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x.unflatten(-1, (self.columns, -1)), state  # (B, T, N, D / N)

    def mask(self, mask: Tensor) -> Tensor:
        return mask[..., None].expand(-1, -1, self.columns)  # (B, T, N)
