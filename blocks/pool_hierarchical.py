"""`pool_hierarchical`: one vector for a whole row, by convolutions over growing pieces."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Count, Site, State, remove
from blocks.core.functional import activate
from blocks.core.loops import is_free, over_positions


class PoolHierarchical(Block):
    """The convolutional sentence model (Kalchbrenner & Blunsom 2013, section 3.1), over each
    feature on its own.

    c_(j) = f(sum_k K^i_k * x_(j + k)), k = 1 .. i, turns n columns into n - i + 1, first with the
    kernel K^2, then K^3, K^4 ... for as long as i <= n. What is left, n columns with 1 < n < i,
    becomes one by the kernel L^n of just that size: six words become 5 by K^2, 3 by K^3 and 1 by
    L^3. A row of one token is its own vector, and one without tokens is zero. The kernels grow
    until a row of `max_length` needs no more; a longer row goes on with the largest.

    Settings:
        max_length: Tokens of the longest row for which each layer has a kernel of its own, 1 or
            more.
        activation: What is applied after each convolution.

    Shapes: (B, T, D) -> (B, 1, D).
    Raises BlockError on a causal site, and where a grid arrives.
    """

    family = "convolution"

    layouts: ClassVar = {"kernels": "own", "last_kernels": "own"}

    def __init__(
        self,
        site: Site,
        *,
        max_length: Count = 256,
        activation: Literal["none", "relu", "gelu", "silu", "tanh", "sigmoid"] = "tanh",
    ) -> None:
        super().__init__()
        stream = site.sequence("pool_hierarchical")
        site.require_full_context(
            "", "`pool_hierarchical`", remove(rest=", or move it to the encoder")
        )
        width = stream.width
        self.activation, self.largest = (
            activation,
            max([2, *(size for size, _ in convolution_schedule(max_length, max_length))]),
        )
        sizes = range(2, self.largest + 1)
        # K^2, K^3 ..., one below the other
        self.kernels = nn.Parameter(torch.empty(sum(sizes), width))
        self.last_kernels = nn.Parameter(torch.empty(sum(sizes), width))  # L^2, L^3 ...
        self.out = stream._replace(length_ratio=Fraction(0), rounded=())
        for kernel in (
            *self.kernels.detach().split(list(sizes)),
            *self.last_kernels.detach().split(list(sizes)),
        ):
            nn.init.normal_(kernel, std=kernel.shape[0] ** -0.5)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        closing = self._closing()
        left = context.mask.sum(1)  # (B,), the columns of each row that are left
        x = x.masked_fill(~context.mask[..., None], 0.0)
        y = x.new_zeros(x.shape[0], x.shape[2])  # (B, D)
        if is_free(x.shape[1]):
            x, left, y = self._run_any_length(x, left, y, closing)
        else:
            for size, least in convolution_schedule(x.shape[1], self.largest):
                y = y + self._end(x, left * (left < least), closing)
                x = self._convolved(x, self._kernel(self.kernels, size))
                left = (left - size + 1) * (left >= least)
        return (y + self._end(x, left, closing))[:, None], state

    def _run_any_length(
        self, x: Tensor, left: Tensor, y: Tensor, closing: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run as many convolutions as there are columns, after which no row has one left."""
        sizes, place = range(2, self.largest + 1), torch.arange(x.shape[1], device=x.device)
        padded = [
            F.pad(self._kernel(self.kernels, size), (0, 0, 0, self.largest - size))
            for size in sizes
        ]
        kernels = torch.stack(padded)  # (sizes, largest, D)

        def step(state: State, size: Tensor) -> tuple[State, tuple[()]]:
            x, left, y = state
            least, size = size.clamp(max=self.largest + 1), size.clamp(max=self.largest)
            y = y + self._end(x, left * (left < least), closing)
            x = F.pad(x * (place < left[:, None])[..., None], (0, 0, 0, self.largest - 1))
            x = self._convolved(x, kernels.index_select(0, size[None] - 2)[0])
            return (x, (left - size + 1) * (left >= least), y), ()

        last: tuple[Tensor, Tensor, Tensor] = over_positions(
            step, (x, left, y), (place + 2,), dim=0
        )[0]
        return last

    def _convolved(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Convolve x (B, T, D) with a kernel (n, D), without padding: (B, T - n + 1, D)"""
        weight = kernel.t()[:, None]  # (D, 1, n)
        y = F.conv1d(x.transpose(1, 2), weight, groups=x.shape[2])
        return activate(self.activation, y.transpose(1, 2))

    def _kernel(self, kernels: Tensor, size: int) -> Tensor:
        before = size * (size - 1) // 2 - 1  # 2 + 3 + ... + (size - 1)
        return kernels[before : before + size]  # (size, D)

    def _closing(self) -> Tensor:
        """Return L by the number of columns left, zeros below: (largest + 1, largest, D); L^1
        leaves all.
        """
        identity = torch.ones_like(self.last_kernels[:1])
        kernels = [
            identity[:0],
            identity,
            *(self._kernel(self.last_kernels, size) for size in range(2, self.largest + 1)),
        ]
        return torch.stack(
            [F.pad(kernel, (0, 0, 0, self.largest - len(kernel))) for kernel in kernels]
        )

    def _end(self, x: Tensor, left: Tensor, closing: Tensor) -> Tensor:
        """Return the end of the first `left` (B,) columns of x (B, T, D), zeros for none: (B, D)"""
        x = F.pad(x, (0, 0, 0, self.largest))[:, : self.largest]  # (B, largest, D)
        summed = activate(self.activation, (closing[left] * x).sum(1))  # (B, D)
        ended = torch.where(left[:, None] == 1, x[:, 0], summed)
        return ended.masked_fill(left[:, None] == 0, 0.0)

    def mask(self, mask: Tensor) -> Tensor:
        return mask.any(1, keepdim=True)


def convolution_schedule(length: int, largest: int) -> Iterator[tuple[int, int]]:
    """Yield for each convolution over rows of `length` its kernel's size, and how many columns a
    row needs for it.
    """
    for size in count(2):
        least = min(size, largest + 1)
        if length < least:
            return
        yield min(size, largest), least
        length -= min(size, largest) - 1
