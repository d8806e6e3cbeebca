"""Where a position stands from another's point of view: turned features, and learned vectors of a distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import weights
from blocks.core.contract import Context

BASE = 10_000.0


def rotate(x: Tensor, where: Tensor) -> Tensor:
    """Turns the features 2i and 2i + 1 by the angle t / 10000^(2i/d) (Su et al. 2021, equation 34).

    x: (B, H, T, d), where: the position t of each, (B or 1, T) -> (B, H, T, d)
    """
    half = x.shape[-1] // 2
    rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(BASE) / half))
    angles = where[:, None, :, None] * rates  # (B or 1, 1, T, d/2)
    cos, sin = angles.cos(), angles.sin()
    one, two = x.unflatten(-1, (half, 2)).unbind(-1)  # (B, H, T, d/2)
    return torch.stack((one * cos - two * sin, one * sin + two * cos), -1).flatten(-2).to(x.dtype)


class Relative(nn.Module):
    """Attention with a learned vector of each distance, for keys and for values (Shaw et al. 2018, equations 3 and 4).

    e_ij = q_i (k_j + a_ij) / sqrt(d);   z_i = sum_j softmax_j(e_ij) (v_j + b_ij), with a_ij and b_ij of the distance
    i - j, clipped to `furthest`, for all heads the same; `future` says whether a position may be before another.
    """

    def __init__(self, width: int, furthest: int, future: bool) -> None:
        super().__init__()
        self.furthest, self.nearest = furthest, -furthest if future else 0
        self.keys = nn.Parameter(torch.empty(furthest - self.nearest + 1, width))
        self.values = nn.Parameter(torch.empty(furthest - self.nearest + 1, width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def forward(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        distance: Tensor,
        context: Context,
        dropout: float,
    ) -> Tensor:
        """As `attend`, which has the letters. distance: i - j of each query and slot, (B or 1, T, N)"""
        index = distance.clamp(self.nearest, self.furthest) - self.nearest  # (B or 1, T, N)
        scaled = query * query.shape[-1] ** -0.5  # (B, H, T, d)
        bias = torch.einsum("bhtd,btnd->bhtn", scaled, F.embedding(index, self.keys))
        bias = bias.masked_fill(~(mask | ~mask.any(-1, keepdim=True)), -math.inf)
        mixture = weights(query, keys, bias)  # (B, H, T, N)
        context.record("weights", mixture.transpose(1, 2))
        mixture = F.dropout(mixture, dropout)
        return mixture @ values + torch.einsum("bhtn,btnd->bhtd", mixture, F.embedding(index, self.values))
