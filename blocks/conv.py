"""`conv`: a convolution over the positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Count,
    NoEffect,
    Positive,
    Site,
    State,
    remove,
)
from blocks.core.functional import (
    Activation,
    activate,
    gate_factor,
    last_positions,
    weight_norm_gain,
    weight_normed,
)
from blocks.core.loops import is_one


class Conv(Block):
    """Convolution over the positions (with glu: Gehring et al. 2017, section 3.2; dilated: van den
    Oord et al. 2016).

    y_t = f(sum_j W_j x_(s t + d (j - l)) + b), with stride s, dilation d, j = 0 .. kernel - 1. On a
    causal site l = kernel - 1: the position itself and those before it. In an encoder l = (kernel -
    1) // 2: centred, and an even kernel reaches one further to the right. What lies outside a row
    is zero. Depthwise, each W_j is diagonal.

    Settings:
        kernel: How many positions are read at once, 1 or more.
        activation: What is applied to the result; with glu, swiglu and geglu the convolution is
            twice as wide inside.
        dilation: Distance between two positions that are read, 1 or more.
        stride: Distance between two positions that come out, 1 or more; above 1 in an encoder only.
        width: The width that comes out; `model.width` unless given.
        depthwise: Whether each feature has a kernel of its own and reads no other (Kalchbrenner &
            Blunsom 2013, section 3.1); the width that arrives is kept.
        weight_norm: Whether the weights of each output are a gain times a direction, g v / |v|
            (Salimans & Kingma 2016, equation 2).
        init_scale: What the initial weights are multiplied by, above 0: sqrt(1 - p) after a dropout
            of p (Gehring et al. 2017, section 3.5). They are normal, of variance c / (kernel D): c
            = 4 for a gate, 2 for relu, else 1.

    Shapes: (B, T, D) -> (B, ceil(T / stride), width). State on a causal site: the inputs that later
    positions still read, (B, (kernel - 1) dilation, D).
    Raises BlockError where a grid arrives, for a stride above 1 on a causal site, for another width
    of a depthwise convolution, and for the dilation of a kernel of 1.
    """

    family = "convolution"

    def __init__(
        self,
        site: Site,
        *,
        kernel: Count = 3,
        activation: Activation = "none",
        dilation: Count = 1,
        stride: Count = 1,
        width: Count | None = None,
        depthwise: bool = False,
        weight_norm: bool = False,
        init_scale: Positive = 1.0,
    ) -> None:
        super().__init__()
        stream = site.sequence("conv")
        if stride > 1:
            site.require_full_context(
                "stride",
                "a strided convolution",
                remove("stride", ", or move this block to the encoder"),
            )
        if dilation > 1 and kernel == 1:
            message = "a kernel of 1 reads one position, and has no distances"
            raise NoEffect("dilation", message, fix="remove `dilation`, or write `kernel: 3`")
        if depthwise and stream.width == 1:
            raise NoEffect("depthwise", "one feature arrives, and is read alone anyway")
        arriving, read = stream.width, 1 if depthwise else stream.width
        width = _width(site, width, depthwise)
        inner = width * gate_factor(activation)
        self.activation, self.causal, self.arriving, self.depthwise = (
            activation,
            bool(site.causal),
            arriving,
            depthwise,
        )
        self.stride, self.dilation, self.reach = stride, dilation, (kernel - 1) * dilation
        self.weight = nn.Parameter(torch.empty(inner, read, kernel))
        self.bias = nn.Parameter(torch.zeros(inner))
        self.out = stream.shortened(stride)._replace(width=width)
        gain = 4.0 if gate_factor(activation) == 2 else 2.0 if activation == "relu" else 1.0
        nn.init.normal_(self.weight, std=init_scale * (gain / (kernel * read)) ** 0.5)
        self.gain = weight_norm_gain(self.weight) if weight_norm else None

    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(x.shape[0], self.reach, self.arriving) if self.causal else ()

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if self.causal and self.reach:
            x = torch.cat((state, x), 1)  # (B, reach + T, D)
            state = last_positions(x, context.mask.sum(1), self.reach)
        elif self.reach:
            left = self.reach // 2
            x = F.pad(x.masked_fill(~context.mask[..., None], 0.0), (0, 0, left, self.reach - left))
        return activate(self.activation, self._convolve(x)), state

    def _convolve(self, x: Tensor) -> Tensor:
        weight, x = weight_normed(self.weight, self.gain), x.transpose(1, 2)  # (B, D, reach + T)
        groups = weight.shape[0] if self.depthwise else 1
        if self.depthwise:
            x = x.repeat(1, groups // self.arriving, 1)  # both halves of a gate read all features
        # one position: a product, which needs no other layout of the weights
        if is_one(x.shape[2] - self.reach):
            window = x[..., :: self.dilation]  # (B, D, kernel)
            if self.depthwise:
                return ((window * weight[:, 0]).sum(-1) + self.bias)[:, None]
            return F.linear(window.flatten(1), weight.flatten(1), self.bias)[:, None]
        y = F.conv1d(
            x, weight, self.bias, stride=self.stride, dilation=self.dilation, groups=groups
        )
        return y.transpose(1, 2)

    def mask(self, mask: Tensor) -> Tensor:
        return mask[:, :: self.stride]


def _width(site: Site, width: int | None, depthwise: bool) -> int:
    """Return the width that comes out. Raises BlockError where a depthwise convolution would have
    to change it.
    """
    if not depthwise:
        return site.width if width is None else width
    if width not in (None, site.stream.width):
        message = f"a depthwise convolution keeps the width that arrives, {site.stream.width}"
        raise BlockError(
            "width",
            message,
            code="width",
            fix=remove("width", ", or put a `linear` after this block"),
        )
    return site.stream.width
