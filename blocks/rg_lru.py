"""`rg_lru`: a gated linear recurrence of each feature."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import check_heads
from blocks.core.contract import Block, Context, Few, InitialState, ShortKernel, Site, State
from blocks.core.directions import Directions, Reader
from blocks.core.functional import count_positions
from blocks.core.headwise_linear import HeadwiseLinear
from blocks.core.linear_recurrence import linear_recurrence
from blocks.core.short_convolution import ShortConvolution

SHARPNESS = 8.0
"""c of the paper."""
DECAY_RANGE = 0.9, 0.999
"""What the initial a^c are drawn from."""
ROUNDED_AWAY = -37.0
"""Where log(1 + exp(x)) is exp(x) in double precision."""
VANISHING = 1e-20
"""Where (1 - exp(-2 x)) / 2 is x in double precision."""


class RgLru(Block):
    """Real-gated linear recurrent unit (De et al. 2024, arXiv 2402.19427, section 2.4).

    r_t, i_t = sigmoid(W_a x_t + b_a), sigmoid(W_x x_t + b_x); a_t = a^(8 r_t) with a = sigmoid(L)

    y_t = h_t = a_t h_(t-1) + sqrt(1 - a_t^2) (i_t x_t)

    It is the layer alone, with the convolution before it if wanted. The recurrent block around it
    in Griffin (section 2.3) is written as stacks: a `linear` before it, its output multiplied by
    that of a `linear` with gelu, a `linear`. In an encoder a second layer reads each row from its
    end, and both outputs are summed.

    It is the paper's. The authors' code (recurrentgemma) takes the first input of a row as it is,
    `first: plain`, which is felt a hundred positions later, and draws a where the paper draws a^8.

    Settings:
        heads: How many blocks the matrices of the gates have on their diagonals; they divide the
            width that arrives. 1 is dense; the paper's models have 16 (section 4.1).
        short_conv: How many positions a depthwise convolution before the layer reads, itself
            included, 4 in Griffin; 0 for none.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of a rg_lru).
        first: scaled | plain. Whether the input of a row's first position, in an encoder also that
            of its last in the layer that begins there, is multiplied by sqrt(1 - a^2) as all others
            are.

    Shapes: (B, T, D) -> (B, T, D). State: for each direction the last inputs of the convolution,
    (B, short_conv - 1, D), and h, (B, D), in float32; with `first: plain` how many positions there
    were, (B,).
    Raises BlockError where a grid arrives, where heads do not divide D, or a state to copy is of
    another kind.
    """

    family = "recurrence"

    def __init__(
        self,
        site: Site,
        *,
        heads: Few = 1,
        short_conv: ShortKernel = 0,
        initial_state: InitialState = "zeros",
        first: Literal["scaled", "plain"] = "scaled",
    ) -> None:
        super().__init__()
        self.out = site.sequence("rg_lru")
        width = self.out.width
        check_heads(heads, width)
        self.state_kind = ("rg_lru", ("width", width), ("short_conv", short_conv), ("first", first))
        build = partial(RgLruReader, width, heads, short_conv, first == "plain")
        self.directions = Directions(site, build, initial_state, self.state_kind)

    def start(self, x: Tensor, context: Context) -> State:
        return self.directions.start(x, context)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = self.directions(x, state, context.mask)
        return y.to(x.dtype), state

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        h: Tensor = state[0][1]
        return h[:, None].to(x.dtype)


class RgLruReader(Reader):
    """The layer in one direction."""

    def __init__(self, width: int, heads: int, kernel: int, has_plain_first: bool) -> None:
        super().__init__()
        self.sizes, self.has_plain_first = (width,), has_plain_first
        self.conv = ShortConvolution(width, kernel)
        self.recurrence_gate, self.input_gate = (
            HeadwiseLinear(width, heads),
            HeadwiseLinear(width, heads),
        )
        log_decay = torch.empty(width).uniform_(*DECAY_RANGE).log() / SHARPNESS
        # whose sigmoid is a
        self.decay = nn.Parameter(log_decay - torch.log(-torch.expm1(log_decay)))

    def start(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        (h,) = leaves
        before = [h.new_zeros(h.shape[0], dtype=torch.long)] if self.has_plain_first else []
        return self.conv.start(h), h, *before

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        window, h, *before = state
        x, window = self.conv(x, window, mask)
        recurrence, entering = (
            gate(x).to(h.dtype) for gate in (self.recurrence_gate, self.input_gate)
        )
        log_rate = (
            math.log(SHARPNESS) + F.logsigmoid(recurrence) + log_softplus(-self.decay.to(h.dtype))
        )
        real = mask[..., None]
        a = (-log_rate.exp()).exp().masked_fill(~real, 1.0)  # (B, T, D)
        scale = input_scale(log_rate)
        if self.has_plain_first:
            where = before[0][:, None] + torch.arange(x.shape[1], device=x.device)  # (B, T)
            scale = scale.masked_fill((where == 0)[..., None], 1.0)
            before = [count_positions(before[0], mask)]
        b = (scale * torch.sigmoid(entering) * x).masked_fill(~real, 0.0)
        y = linear_recurrence(a, b, h)
        return y, (window, y[:, -1], *before)


def log_softplus(x: Tensor) -> Tensor:
    """Return log(log(1 + exp(x))), finite wherever x is."""
    return torch.where(x < ROUNDED_AWAY, x, F.softplus(x.clamp(min=ROUNDED_AWAY)).log())


def input_scale(log_rate: Tensor) -> Tensor:
    """Return sqrt(1 - a^2) of a = exp(-exp(log_rate)), with its gradient even where a is 1 but for
    rounding.

    There it is sqrt(2 exp(log_rate)).
    """
    rate = log_rate.exp()
    tiny = rate < VANISHING
    scale = (-torch.expm1(-2.0 * rate.masked_fill(tiny, 1.0))).sqrt()
    return torch.where(tiny, (0.5 * (log_rate + math.log(2.0))).exp(), scale)
