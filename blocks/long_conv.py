"""`long_conv`: a convolution as long as the row, with filters of decaying oscillations."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, BlockError, Context, Count, InitialState, Site, State, write
from blocks.core.directions import Directions, Reader
from blocks.core.functional import no_autocast, random_dt
from blocks.core.loops import is_free, is_one, over_positions
from blocks.core.recurrence import reverse

CHUNK = 64
"""How many positions are convolved at once; the matrices of a feature are as large as its state is
by default.
"""


class LongConv(Block):
    """Long convolution of each feature by a sum of exponentials (S4D: Gu et al. 2022, arXiv
    2206.11893, section 3).

    y_t = sum_j K_j x_(t-j) + D x_t, K_j = 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(j dt A_n), Re
    A_n = -exp(.) < 0. It is also the recurrence s_t = exp(dt A) s_(t-1) + x_t (Massaroli et al.
    2023, arXiv 2310.18780, section 3): one position is a step of that, many are convolved in
    chunks, and both go on from any state. A Fourier transform would cost no less here, and rounding
    would let each output see the future. At first A_n = -1/2 + i pi n (S4D-Lin). In an encoder a
    second filter reads each row from its end; both sums are added.

    Settings:
        state: How wide the state of each feature is, twice the number of exponentials; even, 2 or
            more.
        initial_state: zeros | learned | a memory (its mean, projected, as the input before the
            first position) | {copy: MEMORY.x} (the last state of a long_conv).

    Shapes: (B, T, D) -> (B, T, D). State, for each direction: s, (B, D, state / 2, 2), real and
    imaginary parts, in float32.
    Raises BlockError where a grid arrives, for an odd state, or a state to copy of another kind.
    """

    family = "convolution"

    def __init__(
        self, site: Site, *, state: Count = 64, initial_state: InitialState = "zeros"
    ) -> None:
        super().__init__()
        self.out = site.sequence("long_conv")
        if state % 2:
            message = f"each exponential is a pair of numbers, and {state} is odd"
            raise BlockError("state", message, fix=write("state", state + 1))
        width = self.out.width
        self.skip = nn.Parameter(torch.randn(width))
        self.state_kind = ("long_conv", ("width", width), ("state", state))

        def build() -> ExponentialFilter:
            return ExponentialFilter(width, state // 2)

        self.directions = Directions(site, build, initial_state, self.state_kind)

    def start(self, x: Tensor, context: Context) -> State:
        return self.directions.start(x, context)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = self.directions(x, state, context.mask)
        return (y + self.skip * x).to(x.dtype), state


class ExponentialFilter(Reader):
    """The filters of one direction. Complex numbers are pairs in the last dimension; P exponentials
    a feature.
    """

    # `weight` are the coefficients C
    layouts: ClassVar = {"log_rate": "", "frequency": "", "weight": ""}

    def __init__(self, width: int, pairs: int) -> None:
        super().__init__()
        self.sizes = (width,)
        self.log_dt = nn.Parameter(random_dt(width).log())
        self.log_rate = nn.Parameter(torch.full((width, pairs), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(float(pairs)).repeat(width, 1))
        self.weight = nn.Parameter(torch.randn(width, pairs, 2) * 0.5**0.5)

    def start(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        real = leaves[0][..., None].expand(-1, -1, self.weight.shape[1])  # (B, D, P)
        return (torch.stack((real, torch.zeros_like(real)), -1),)

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (s,) = state
        with no_autocast(s):
            x = x.to(s.dtype).masked_fill(~mask[..., None], 0.0)
            exponent, weight = self._poles(s)
            if is_one(x.shape[1]) or is_free(x.shape[1]):
                y, s = self._by_positions(x, s, mask, exponent, weight)
            else:
                y, s = self._many(x, s, mask, exponent, weight)
        return y, (s,)

    def _poles(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return dt A and 2 C (exp(dt A) - 1) / A, (D, P, 2), in double: exp(dt A) is close to 1,
        angles are large.
        """
        wide = like.dtype if like.device.type == "mps" else torch.float64
        dt = self.log_dt.to(wide).exp()[:, None, None]
        pole = torch.stack((-self.log_rate.to(wide).exp(), self.frequency.to(wide)), -1)
        exponent = dt * pole
        real, imaginary = exponential(exponent).unbind(-1)
        change = torch.stack((real - 1.0, imaginary), -1)
        conjugate = torch.stack((pole[..., 0], -pole[..., 1]), -1)
        integral = product(change, conjugate) / pole.square().sum(-1, keepdim=True)
        return exponent, 2.0 * product(self.weight.to(wide), integral)

    def _by_positions(
        self, x: Tensor, s: Tensor, mask: Tensor, exponent: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        turn, weight = exponential(exponent).to(s.dtype), weight.to(s.dtype)

        def step(s: Tensor, one: Tensor, real: Tensor) -> tuple[Tensor, tuple[Tensor]]:
            entering = torch.stack((one, torch.zeros_like(one)), -1)[:, :, None]  # (B, D, 1, 2)
            after = product(turn, s) + entering
            y = real_product(weight, after).sum(-1)  # (B, D)
            return torch.where(real[:, None, None, None], after, s), (y,)

        s, (y,) = over_positions(step, s, (x, mask))
        return y, s

    def _many(
        self, x: Tensor, s: Tensor, mask: Tensor, exponent: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Convolve within chunks, and carry s from chunk to chunk; all but the carrying is products
        of matrices.
        """
        batch, length, size = x.shape[0], x.shape[1], min(CHUNK, x.shape[1])
        powers = exponential(
            exponent[:, None] * torch.arange(size + 1, device=x.device)[:, None, None]
        )
        reads = product(weight[:, None], powers)  # (D, C + 1, P, 2)
        reads = (
            torch.stack((reads[..., 0], -reads[..., 1]), -1).flatten(-2).to(s.dtype)
        )  # (D, C + 1, 2 P)
        powers = powers.to(s.dtype)  # (D, C + 1, P, 2)
        taps = toeplitz(reads[:, :size, ::2].sum(-1))  # (D, C, C)
        x = F.pad(x, (0, 0, 0, -length % size)).unflatten(1, (-1, size))  # (B, N, C, D)
        rows = x.permute(3, 0, 1, 2).flatten(1, 2)  # (D, B N, C)
        entering = rows @ powers[:, :size].flip(1).flatten(-2)  # (D, B N, 2 P)
        states = [s]
        for entered in (
            entering.unflatten(1, (batch, -1)).unflatten(-1, (-1, 2)).permute(2, 1, 0, 3, 4)
        ):
            states.append(product(powers[:, size], states[-1]) + entered)  # (B, D, P, 2)
        before = (
            torch.stack(states[:-1], 1).permute(2, 0, 1, 3, 4).flatten(-2).flatten(1, 2)
        )  # (D, B N, 2 P)
        y = rows @ taps.mT + before @ reads[:, 1:].mT  # (D, B N, C)
        y = y.unflatten(1, (batch, -1)).permute(1, 2, 3, 0).flatten(1, 2)[:, :length]
        return y, self._last_state(x, torch.stack(states, 1), mask.sum(1), powers)

    def _last_state(self, x: Tensor, states: Tensor, count: Tensor, powers: Tensor) -> Tensor:
        """Return the state after `count` (B,) positions: from the one before their last chunk, if
        it is not full.

        x: (B, N, C, D), states: (B, N + 1, D, P, 2), powers: (D, C + 1, P, 2) -> (B, D, P, 2)
        """
        row, size = torch.arange(x.shape[0], device=x.device), x.shape[2]
        full, rest = count // size, count % size
        chunk = x[row, full.clamp(max=x.shape[1] - 1)]  # (B, C, D)
        real = torch.arange(size, device=x.device) < rest[:, None]  # (B, C)
        backwards = (
            reverse(chunk, real).masked_fill(~real[..., None], 0.0).permute(2, 0, 1)
        )  # (D, B, C)
        entered = (backwards @ powers[:, :size].flatten(-2)).unflatten(-1, (-1, 2)).transpose(0, 1)
        return product(powers[:, rest].transpose(0, 1), states[row, full]) + entered


def toeplitz(taps: Tensor) -> Tensor:
    """Return the matrices of convolutions, taps_(i-j) at (i, j) for j <= i and 0 else: (D, C) ->
    (D, C, C)
    """
    place = torch.arange(taps.shape[1], device=taps.device)
    return taps[:, (place[:, None] - place).clamp(min=0)].tril()


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply complex numbers that are pairs: (..., 2)"""
    (p, q), (r, s) = a.unbind(-1), b.unbind(-1)
    return torch.stack((p * r - q * s, p * s + q * r), -1)


def real_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the real part of a product of complex numbers that are pairs: (..., 2) -> (...)"""
    return a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1]


def exponential(x: Tensor) -> Tensor:
    """Return exp of complex numbers that are pairs: (..., 2)"""
    return x[..., :1].exp() * torch.stack((x[..., 1].cos(), x[..., 1].sin()), -1)
