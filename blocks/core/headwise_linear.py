"""Linear maps within heads: block-diagonal matrices."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn


class HeadwiseLinear(nn.Module):
    """y_h = W_h x_h + b_h for each head's share x_h of the features, W_h normal of variance `gain`
    over its width.
    """

    layouts: ClassVar = {"weight": "head out in"}

    def __init__(self, width: int, heads: int, *, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        share = width // heads
        self.weight = nn.Parameter(torch.empty(heads, share, share))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        nn.init.normal_(self.weight, std=(gain / share) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        heads = x.unflatten(-1, (self.weight.shape[0], -1))
        y = torch.einsum("...hi,hoi->...ho", heads, self.weight).flatten(-2)
        return y if self.bias is None else y + self.bias
