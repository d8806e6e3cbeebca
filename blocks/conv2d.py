"""`conv2d`: a convolution over the positions and columns of a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Count, Site, State
from blocks.core.functional import Activation, activate, gate_factor, mask_cells, pad_same
from blocks.core.windows import check_columns, stream_of_windows, window_mask


class Conv2d(Block):
    """Convolution over a grid, centred: y[t, w] = f(sum_ij W_ij s[r t + i - l, r' w + j - m] + b), of a stride r x r'.

    Of a kernel k x k', i = 0 .. k - 1, j = 0 .. k' - 1, l = (k - 1) // 2 and m = (k' - 1) // 2; an even kernel reaches
    one further at the end. What lies beyond the edges is zero, and so are cells that are not real. With a stride, a
    cell is real where one of the r x r' is that it begins with.

    Settings:
        kernel: Positions, then columns, that are read at once.
        activation: What is applied to the result; with glu and swiglu the convolution is twice as wide inside.
        width: The width that comes out; `model.width` unless given.
        stride: Distances between two positions, then columns, that come out: 1 or more, of columns as many as arrive at
            most.

    Shapes: (B, T, W, D) -> (B, ceil(T / r), ceil(W / r'), width).
    Raises BlockError where a sequence arrives, on a causal site, and for a stride wider than the grid.
    """

    family = "convolution"

    def __init__(
        self,
        site: Site,
        *,
        kernel: tuple[Count, Count] = (3, 3),
        activation: Activation = "none",
        width: Count | None = None,
        stride: tuple[Count, Count] = (1, 1),
    ) -> None:
        super().__init__()
        stream = site.grid("conv2d")
        site.require_full_context("", "a convolution over the whole grid", fix="move it to the encoder")
        check_columns("stride", stride, stream)
        width = site.width if width is None else width
        self.activation, self.kernel, self.stride = activation, tuple(kernel), tuple(stride)
        inner = width * gate_factor(activation)
        self.weight = nn.Parameter(torch.empty(inner, stream.width, *self.kernel))
        self.bias = nn.Parameter(torch.zeros(inner))
        gain = {"glu": 4.0, "swiglu": 4.0, "relu": 2.0}.get(activation, 1.0)
        nn.init.normal_(self.weight, std=(gain / self.weight[0].numel()) ** 0.5)
        self.out = stream_of_windows(stream, stride)._replace(width=width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        s, padding = pad_same(mask_cells(x, context.mask).movedim(-1, 1), self.kernel)  # (B, D, T, W)
        z = F.conv2d(s, self.weight, self.bias, self.stride, padding).movedim(1, -1)  # (B, T', W', .)
        y = activate(self.activation, z)
        context.record("image", y)
        return y, state

    def mask(self, mask: Tensor) -> Tensor:
        return mask if self.stride == (1, 1) else window_mask(mask, self.stride, self.stride)
