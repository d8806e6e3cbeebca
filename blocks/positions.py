"""`positions`: tells each position where it is, by adding a vector."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, Site, State


class Positions(Block):
    """Position embeddings, sinusoidal (Vaswani et al. 2017, section 3.5) or learned (Gehring et al. 2017, section 3.1).

    sinusoidal: y_t = x_t + [sin(t w_i), cos(t w_i)], w_i = 10000^(-2i/D);   learned: y_t = x_t + E_t.

    Settings:
        kind: sinusoidal | learned.
        max_length: Rows of the learned table; later positions share the last row. Nothing to sinusoidal ones.

    Shapes: (B, T, D) -> (B, T, D). State: positions so far (B,).
    """

    def __init__(self, site: Site, *, kind: Literal["sinusoidal", "learned"] = "sinusoidal",
                 max_length: Count = 512) -> None:  # fmt: skip
        super().__init__()
        self.width = site.stream.width
        self.table = nn.Embedding(max_length, self.width) if kind == "learned" else None
        self.out = site.stream
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.1)

    def start(self, x: Tensor, context: Context) -> State:
        return torch.zeros(x.shape[0], dtype=torch.long, device=x.device)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        where = state[:, None] + torch.arange(x.shape[1], device=x.device)  # (B, T)
        after = state + context.mask.sum(1)
        if self.table is not None:
            return x + self.table(where.clamp(max=self.table.num_embeddings - 1)), after
        return x + sinusoids(where, self.width).to(x.dtype), after


def sinusoids(where: Tensor, width: int) -> Tensor:
    """The sinusoidal embedding of positions: (B, T) -> (B, T, width), float32."""
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half, device=where.device) * (-math.log(10_000.0) / max(half, 1)))
    angles = where[..., None] * rates  # (B, T, width/2)
    return torch.cat((angles.sin(), angles.cos()), -1)[..., :width]
