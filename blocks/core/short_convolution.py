"""Short depthwise convolutions over the last positions, with the positions that they still read as
their state.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.functional import last_positions


class ShortConvolution(nn.Module):
    """y_t = b + sum_j w_j x_(t - kernel + 1 + j), with a kernel for each feature; zero before the
    first position.

    Where it is not causal it is centred, an even kernel reaching one further to the left. The state
    is (B, kernel - 1, D). With a kernel of 0 it is the identity, and has no parameters.
    """

    layouts: ClassVar = {"weight": "in out"}  # a feature is made of `kernel` positions

    def __init__(self, width: int, kernel: int, causal: bool = True) -> None:
        super().__init__()
        self.reach, self.width, self.causal = max(kernel - 1, 0), width, causal
        most = kernel**-0.5 if kernel else 0.0
        self.weight = (
            nn.Parameter(torch.empty(kernel, width).uniform_(-most, most)) if kernel else None
        )
        self.bias = nn.Parameter(torch.zeros(width)) if kernel else None

    def start(self, like: Tensor) -> Tensor:
        """Return the state before the first position, of the batch and the precision of `like` (B,
        ...).
        """
        return like.new_zeros(like.shape[0], self.reach, self.width)

    def forward(self, x: Tensor, state: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """x: (B, T, D), mask: (B, T) -> (B, T, D) in the precision of x, and the state after."""
        if self.weight is None or self.bias is None:
            return x, state
        since = torch.cat((state.to(x.dtype), x), 1)  # (B, kernel - 1 + T, D)
        after = last_positions(since, mask.sum(1), self.reach).to(state.dtype)
        if not self.causal:
            right = self.reach // 2
            since = F.pad(x.masked_fill(~mask[..., None], 0.0), (0, 0, self.reach - right, right))
        length, y = x.shape[1], self.bias.to(x.dtype)
        for place, weight in enumerate(self.weight.to(x.dtype)):
            y = torch.addcmul(y, since[:, place : place + length], weight)
        return y, after
