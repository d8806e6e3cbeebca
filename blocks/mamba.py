"""`mamba`: a selective state space, whose decays depend on what is read."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Count, Few, InitialState, ShortKernel, Site, State
from blocks.core.directions import Directions, Reader
from blocks.core.functional import inverse_softplus, random_dt
from blocks.core.selective_scan import Selection, selective_scan
from blocks.core.short_convolution import ShortConvolution

FEATURES_PER_RANK = 16


class Mamba(Block):
    """Selective state space (S6) between two projections, with a gate (Gu & Dao 2023, arXiv
    2312.00752, figure 3).

    u, z = W x, each `expansion` times as wide; u' = silu(conv(u)); y = W_o (s silu(z)), and s of
    algorithm 2:

    dt_t = softplus(W_2 W_1 u'_t + b), W_1 to a sixteenth of the width; B_t, C_t = W_B u'_t, W_C
    u'_t;
    h_t = exp(A dt_t) h_(t-1) + B_t (dt_t u'_t)^T, s_t = h_t^T C_t + D u'_t; A = -exp(A_log), -1 ..
    -`state` at first.

    The convolution's biases are 0 at first, where those of the authors' code are drawn from its
    kernel's range. In an encoder all between u and s is there twice, and the second reads each row
    from its end; both s are summed (Zhu et al. 2024, arXiv 2401.09417, section 3.2).

    Settings:
        state: How wide the state of each feature is, 1 or more.
        expansion: How many times as wide as what arrives it is inside, 1 or more.
        short_conv: How many positions a convolution before the state space reads, itself included;
            0 for none.
        initial_state: zeros | learned | a memory (its mean, projected: h_0 = q p^T) | {copy:
            MEMORY.x} (the last state of a mamba).

    Shapes: (B, T, D) -> (B, T, D). State: for each direction the last inputs of the convolution,
    (B, short_conv - 1, expansion D), and h, (B, state, expansion D), in float32. Training keeps one
    h for each 16 positions.
    Raises BlockError where a grid arrives, or a state to copy is of another kind.
    """

    family = "recurrence"

    def __init__(
        self,
        site: Site,
        *,
        state: Count = 16,
        expansion: Few = 2,
        short_conv: ShortKernel = 4,
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__()
        self.out = site.sequence("mamba")
        width, inner = self.out.width, expansion * self.out.width
        self.arriving = nn.Linear(width, 2 * inner, bias=False)
        self.leaving = nn.Linear(inner, width, bias=False)
        self.state_kind = (
            "mamba",
            ("width", width),
            ("expansion", expansion),
            ("state", state),
            ("short_conv", short_conv),
        )

        def build() -> SelectiveReader:
            return SelectiveReader(inner, math.ceil(width / FEATURES_PER_RANK), state, short_conv)

        self.directions = Directions(site, build, initial_state, self.state_kind)

    def start(self, x: Tensor, context: Context) -> State:
        return self.directions.start(x, context)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        u, gate = self.arriving(x).chunk(2, dim=-1)  # (B, T, E)
        y, state = self.directions(u, state, context.mask)
        return self.leaving(y.to(gate.dtype) * F.silu(gate)), state


class SelectiveReader(Reader):
    """The convolution and the state space of one direction."""

    layouts: ClassVar = {"log_rate": ""}

    def __init__(self, inner: int, rank: int, state: int, kernel: int) -> None:
        super().__init__()
        self.sizes, self.parts = (inner, state), (rank, state, state)
        self.conv = ShortConvolution(inner, kernel)
        self.select = nn.Linear(inner, sum(self.parts), bias=False)
        self.dt = nn.Linear(rank, inner)
        self.log_rate = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))  # (E, N)
        self.skip = nn.Parameter(torch.ones(inner))
        nn.init.uniform_(self.dt.weight, -(rank**-0.5), rank**-0.5)
        self.dt.bias.detach().copy_(inverse_softplus(random_dt(inner)))

    def start(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        inner, state = leaves
        return self.conv.start(inner), inner[:, None] * state[:, :, None]

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        window, h = state
        u, window = self.conv(x, window, mask)
        u = F.silu(u)
        low, into, out = self.select(u).split(self.parts, -1)
        dt = F.softplus(self.dt(low).to(h.dtype)).masked_fill(~mask[..., None], 0.0)  # (B, T, E)
        wide = u.to(h.dtype)
        selection = Selection(dt, dt * wide, into.to(h.dtype), out.to(h.dtype))
        y, h = selective_scan(selection, -self.log_rate.to(h.dtype).exp().mT.contiguous(), h)
        return y + self.skip * wide, (window, h)
