"""Windows over the cells of a grid: its size after them, padding for the last ones, which of them
are real.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError, Stream, write


def check_columns(setting: str, size: Sequence[int], stream: Stream) -> None:
    """Raise BlockError where a setting, positions and columns, has more columns than the grid."""
    positions, columns = size
    if columns > stream.columns:
        message = f"`{setting}` has {columns} columns, and the grid {stream.columns}"
        raise BlockError(setting, message, fix=write(setting, [positions, stream.columns]))


def stream_of_windows(stream: Stream, stride: Sequence[int]) -> Stream:
    """Return the grid that has a cell for each window; one begins at every stride-th position and
    column.
    """
    positions, columns = stride
    return stream.shortened(positions)._replace(columns=-(-stream.columns // columns))


def pad_windows(
    x: Tensor, size: Sequence[int], stride: Sequence[int], value: float = 0.0
) -> Tensor:
    """Pad with a value at both ends, so that no window reaches beyond. x: (..., T, W)"""
    missing = []
    for length, window, step in zip(x.shape[-2:], size, stride, strict=True):
        over = count_windows(length, step) * step - length + window - step
        missing.append(over if window >= step else max(0, over))
    return F.pad(x, (0, missing[1], 0, missing[0]), value=value)


def count_windows(length: int, step: int) -> int:
    """Return how many windows begin in a length, one at every step."""
    return (length + step - 1) // step


def window_mask(mask: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return the mask of windows with a real cell: (B, T, W) -> (B, T / stride, W / stride)

    Both sizes are rounded up.
    """
    return F.max_pool2d(pad_windows(mask.float(), size, stride), tuple(size), tuple(stride)) > 0
