"""`slstm`: an LSTM with exponential gates, whose heads do not see each other."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import check_heads
from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Few,
    InitialState,
    ShortKernel,
    Site,
    State,
)
from blocks.core.directions import Directions, Reader
from blocks.core.functional import no_autocast
from blocks.core.headwise_linear import HeadwiseLinear
from blocks.core.loops import over_positions
from blocks.core.short_convolution import ShortConvolution

NOTHING_YET = -1e30
"""The stabiliser m before anything was read: the first input gate is then exp(0), and what came
before is 0.
"""
FORGET_BIAS = 5.0, -7.0
"""The biases of the forget gates, from the first feature of a head to its last."""


class Slstm(Block):
    """The sLSTM (Beck et al. 2024, arXiv 2405.04517, section 2.2), a loop over the positions.

    i, f, z, o = W x_t + R h_(t-1) + b

    m_t = max(log sigmoid(f) + m_(t-1), i)

    i', f' = exp(i - m_t), exp(log sigmoid(f) + m_(t-1) - m_t)

    c_t = f' c_(t-1) + i' tanh(z); n_t = f' n_(t-1) + i'; h_t = sigmoid(o) c_t / n_t

    W and R are block-diagonal, with one block per head. As in the paper's block (appendix A.2), a
    convolution with silu comes before W of i and f, and each head of the output is normalised:
    y = g (h - mean) / sqrt(var + 1e-5). The gated feed-forward after it is a block of its own. The
    forget gates begin as those of the first layer of the authors' code, in every layer.

    In an encoder a second one reads each row from its end, and both h are summed before they are
    normalised.

    Settings:
        heads: How many heads; they divide the width that arrives, into two features or more.
        short_conv: How many positions the convolution before two of the gates reads, itself
            included; 0 for none.
        initial_state: zeros | learned | a memory (its mean, projected to h and c, with n = 1 and m
            = 0) | {copy: MEMORY.x} (the last state of a slstm).

    Shapes: (B, T, D) -> (B, T, D). State: for each direction the last inputs of the convolution,
    (B, short_conv - 1, D), and h, c, n and m, (B, D) each, in float32.
    Raises BlockError where a grid arrives, where heads do not divide D or have one feature each, or
    a state to copy is of another kind.
    """

    family = "recurrence"

    def __init__(
        self,
        site: Site,
        *,
        heads: Few = 4,
        short_conv: ShortKernel = 4,
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__()
        self.out, self.heads = site.sequence("slstm"), heads
        width = self.out.width
        check_heads(heads, width)
        if heads == width:
            message = "a head of one feature has nothing to be normalised with"
            raise BlockError(
                "heads", message, code="width", fix="write fewer `heads`, or choose a larger width"
            )
        self.gain = nn.Parameter(torch.ones(width))
        self.state_kind = ("slstm", ("width", width), ("short_conv", short_conv))

        def build() -> SlstmReader:
            return SlstmReader(width, heads, short_conv, starts_empty=initial_state == "zeros")

        self.directions = Directions(site, build, initial_state, self.state_kind)

    def start(self, x: Tensor, context: Context) -> State:
        return self.directions.start(x, context)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        h, state = self.directions(x, state, context.mask)
        return self._normalise(h).to(x.dtype), state

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        return self._normalise(state[0][1])[:, None].to(x.dtype)

    def _normalise(self, h: Tensor) -> Tensor:
        heads = h.unflatten(-1, (self.heads, -1))
        return F.layer_norm(heads, heads.shape[-1:]).flatten(-2) * self.gain


class SlstmReader(Reader):
    """The cell in one direction."""

    layouts: ClassVar = {"recurrent": "head in out", "bias": ""}

    def __init__(self, width: int, heads: int, kernel: int, *, starts_empty: bool) -> None:
        super().__init__()
        self.sizes, self.heads, self.starts_empty = (width, width), heads, starts_empty
        self.conv = ShortConvolution(width, kernel)
        self.smooths = kernel > 0
        gates = [HeadwiseLinear(width, heads, bias=False, gain=0.4 / heads) for _ in range(4)]
        self.arriving = nn.ModuleList(gates)  # i, f, z, o
        share = width // heads
        self.recurrent = nn.Parameter(torch.zeros(heads, share, 4 * share))
        self.bias = nn.Parameter(torch.zeros(4, width))
        first, last = FORGET_BIAS
        place = torch.linspace(0.0, 1.0, share) ** 0.3
        with torch.no_grad():
            self.bias[1] = (first + (last - first) * place).repeat(heads)

    def start(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        h, c = leaves
        n, m = (torch.zeros_like(h), torch.full_like(h, NOTHING_YET))
        if not self.starts_empty:
            n, m = torch.ones_like(h), torch.zeros_like(h)
        return self.conv.start(h), h, c, n, m

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        window, *cell = state
        smooth, window = self.conv(x, window, mask)
        smooth = F.silu(smooth) if self.smooths else x
        arriving = [
            gate(one) for gate, one in zip(self.arriving, (smooth, smooth, x, x), strict=True)
        ]
        gates = torch.stack(arriving, 2).to(cell[0].dtype) + self.bias  # (B, T, 4, D)
        gates = (
            gates.unflatten(-1, (self.heads, -1)).permute(1, 3, 0, 2, 4).flatten(-2)
        )  # (T, H, B, 4 D/H)
        with no_autocast(gates):
            y, cell = self._run(
                gates, [leaf.unflatten(-1, (self.heads, -1)).transpose(0, 1) for leaf in cell], mask
            )
        return y, (window, *(leaf.transpose(0, 1).flatten(1) for leaf in cell))

    def _run(self, gates: Tensor, cell: list[Tensor], mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        recurrent = self.recurrent.to(gates.dtype)

        def run(
            cell: list[Tensor], arriving: Tensor, real: Tensor
        ) -> tuple[list[Tensor], tuple[Tensor]]:
            after = step(torch.baddbmm(arriving, cell[0], recurrent), *cell[1:])
            cell = [torch.where(real, new, old) for new, old in zip(after, cell, strict=True)]
            return cell, (cell[0],)

        cell, (y,) = over_positions(run, cell, (gates, mask.t()[..., None]), dim=0)
        return y.permute(2, 0, 1, 3).flatten(2), cell  # (B, T, D)


def step(gates: Tensor, c: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return h, c, n and m after one position. n is 1 or more, since m is the largest of all
    exponents so far.
    """
    i, f, z, o = gates.chunk(4, -1)
    decay = F.logsigmoid(f) + m
    m = torch.maximum(decay, i)
    entering, decay = (i - m).exp(), (decay - m).exp()
    c, n = decay * c + entering * torch.tanh(z), decay * n + entering
    return torch.sigmoid(o) * c / n, c, n, m
