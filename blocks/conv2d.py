"""`conv2d`: a convolution over the positions and columns of a grid."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Count, NoEffect, Site, State
from blocks.core.functional import Activation, activate, gate_factor, mask_cells, pad_same
from blocks.core.windows import check_columns, pad_windows, stream_of_windows, window_mask


class Conv2d(Block):
    """Convolution over a grid, centred: y[t, w] = f(sum_ij W_ij s[r t + i - l, r' w + j - m] + b),
    of a stride r x r'.

    Of a kernel k x k', i = 0 .. k - 1, j = 0 .. k' - 1, l = (k - 1) // 2 and m = (k' - 1) // 2; an
    even kernel reaches one further at the end. Aligned at its start, it has l = m = 0, as `pool2d`
    and `patches` have: a stack of those sees no further than a patch, where their kernels and
    strides add up to its size. What lies beyond the edges is zero, and so are cells that are not
    real. With a stride, a cell is real where one of the r x r' is that it begins with.

    Settings:
        kernel: Positions, then columns, that are read at once.
        activation: What is applied to the result; with glu, swiglu and geglu the convolution is
            twice as wide inside.
        width: The width that comes out; `model.width` unless given.
        stride: Distances between two positions, then columns, that come out: 1 or more, of columns
            as many as arrive at most.
        align: center | start: Which cell of its kernel lies at r t, r' w.

    Shapes: (B, T, W, D) -> (B, ceil(T / r), ceil(W / r'), width).
    Raises BlockError where a sequence arrives, on a causal site, for a stride wider than the grid,
    and for a kernel of at most two cells that is aligned at its start, as it is anyway.
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
        align: Literal["center", "start"] = "center",
    ) -> None:
        super().__init__()
        stream = site.grid("conv2d")
        site.require_full_context(
            "", "a convolution over the whole grid", fix="move it to the encoder"
        )
        check_columns("stride", stride, stream)
        if align == "start" and max(kernel) <= 2:
            raise NoEffect(
                "align",
                "a kernel of one or two cells begins at its place anyway",
                fix="remove `align`",
            )
        width = site.width if width is None else width
        self.activation, self.kernel, self.stride, self.align = (
            activation,
            tuple(kernel),
            tuple(stride),
            align,
        )
        inner = width * gate_factor(activation)
        self.weight = nn.Parameter(torch.empty(inner, stream.width, *self.kernel))
        self.bias = nn.Parameter(torch.zeros(inner))
        gain = 4.0 if gate_factor(activation) == 2 else 2.0 if activation == "relu" else 1.0
        nn.init.normal_(self.weight, std=(gain / self.weight[0].numel()) ** 0.5)
        self.out = stream_of_windows(stream, stride)._replace(width=width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        s, padding = mask_cells(x, context.mask).movedim(-1, 1), (0, 0)  # (B, D, T, W)
        if self.align == "start":
            s = pad_windows(s, self.kernel, self.stride)
        else:
            s, padding = pad_same(s, self.kernel)
        z = F.conv2d(s, self.weight, self.bias, self.stride, padding).movedim(
            1, -1
        )  # (B, T', W', .)
        y = activate(self.activation, z)
        context.record("image", y)
        return y, state

    def mask(self, mask: Tensor) -> Tensor:
        return mask if self.stride == (1, 1) else window_mask(mask, self.stride, self.stride)
