"""`pool`: one vector for a whole row."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from torch import Tensor, nn

from blocks.core.contract import Block, Context, Site, State, remove
from blocks.core.recurrence import last_real


class Pool(Block):
    """One vector for all positions of a row; a row without tokens gives zeros.

    last: x_n;   mean: 1/n sum_t x_t;   max: max_t x_t;
    attention: sum_t a_t x_t with a = softmax_t(w x_t)

    The attention is that of Lin et al. 2017, section 2, with one hop and a linear score.

    Settings:
        how: last | mean | max | attention.

    Shapes: (B, T, D) -> (B, 1, D).
    Raises BlockError on a causal site, and where a grid arrives.
    """

    family = "convolution"

    def __init__(
        self, site: Site, *, how: Literal["last", "mean", "max", "attention"] = "last"
    ) -> None:
        super().__init__()
        stream = site.sequence("pool")
        site.require_full_context("", "`pool`", remove(rest=", or move it to the encoder"))
        self.how = how
        self.score = nn.Linear(stream.width, 1, bias=False) if how == "attention" else None
        self.out = stream._replace(length_ratio=Fraction(0), rounded=())

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self._pooled(x, context)[:, None], state

    def _pooled(self, x: Tensor, context: Context) -> Tensor:
        """(B, T, D) -> (B, D)"""
        mask = context.mask[..., None]  # (B, T, 1)
        if self.how == "last":
            return last_real(x, context.mask, x.new_zeros(x.shape[0], x.shape[2]))
        if self.how == "max":
            return x.masked_fill(~mask, -math.inf).amax(1).masked_fill(~mask.any(1), 0.0)
        if self.score is None:
            return x.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        scores = self.score(x).masked_fill(~mask & mask.any(1, keepdim=True), -math.inf)
        weights = scores.softmax(1).masked_fill(~mask, 0.0)  # (B, T, 1)
        context.record("weights", weights)
        return (weights * x).sum(1)

    def mask(self, mask: Tensor) -> Tensor:
        return mask.any(1, keepdim=True)
