"""`differential_attention`: self-attention by the difference of two softmaxes."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blocks.core.attention import (
    attention,
    attention_weights,
    check_heads,
    join_heads,
    no_slots,
    split_heads,
    visible_slots,
)
from blocks.core.contract import Block, Context, Count, NoEffect, Rate, Site, State
from blocks.core.functional import RmsNorm, count_positions, no_positions
from blocks.core.kv_cache import append
from blocks.core.rotary import apply_rotary, check_rotary, rotary_angles

LAMBDA_INIT = 0.8


class DifferentialAttention(Block):
    """Differential attention: the difference of two softmaxes cancels noise (Ye et al. 2024).

    a_h = (softmax(q_h1 k_h1^T / sqrt(d)) - l softmax(q_h2 k_h2^T / sqrt(d))) v_h

    y = W_o concat_h (1 - l_0) norm(a_h)

    l = exp(u_1.w_1) - exp(u_2.w_2) + l_0

    These are equations 1 to 3 of arXiv 2410.05258. d = D / 2H, v_h is 2d wide, and the vectors u
    and w are learned, for all heads. The norm divides each head by its root mean square, with one
    gain per feature for all heads. Pictures show the difference of the weights, white where it is
    negative.

    Settings:
        heads: How many heads H; twice as many divide the width that arrives. At the same D a
            Transformer has 2 H.
        lambda_init: l_0, 0 <= l_0 < 1. The paper finds 0.8 in all layers about as good as what
            grows with the depth.
        lambda: constant | by_depth. Whether l_0 is `lambda_init`, or 0.8 - 0.6 exp(-0.3 n) in
            iteration n = 0, 1, ... of the innermost `repeat` around it, 0.2 in the first, as in the
            paper.
        positions: What it knows of distances: none | rotary (Su et al. 2021), which the paper has.
        dropout: Probability of dropping a weight of either softmax, 0 <= dropout < 1.

    Shapes: (B, T, D) -> (B, T, D).
    State: keys (B, 2H, N, d), values (B, H, N, 2d), their mask (B, N); with rotary positions, their
    number so far (B,).
    Raises BlockError where a grid arrives, where twice the heads do not divide D, for rotary
    positions of heads that are not of even width, and for `lambda: by_depth` without a `repeat` or
    beside a `lambda_init`.
    """

    family = "attention"

    layouts: ClassVar = {"lambdas": ""}

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 8,
        lambda_init: Rate = LAMBDA_INIT,
        lambda_: Literal["constant", "by_depth"] = "constant",
        positions: Literal["none", "rotary"] = "none",
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        stream = site.sequence("differential_attention")
        self.is_by_depth = lambda_ == "by_depth"
        if self.is_by_depth:
            site.require_repeat("lambda")
        if self.is_by_depth and lambda_init != LAMBDA_INIT:
            raise NoEffect(
                "lambda_init",
                "it is what the depth gives",
                fix="remove it, or write `lambda: constant`",
            )
        check_heads(heads, stream.width, parts=2)
        self.heads, self.width = heads, stream.width // (2 * heads)
        self.rotary = positions == "rotary"
        if self.rotary:
            check_rotary(self.width, heads, stream.width, parts=2)
        self.lambda_init, self.dropout, self.causal = lambda_init, dropout, bool(site.causal)
        self.project = nn.Linear(stream.width, 3 * stream.width, bias=False)
        self.merge = nn.Linear(stream.width, stream.width, bias=False)
        self.lambdas = nn.Parameter(torch.empty(4, self.width))  # u_1, w_1, u_2, w_2
        self.norm = RmsNorm(2 * self.width)
        self.out = stream
        nn.init.xavier_uniform_(self.project.weight, gain=0.5**0.5)
        nn.init.xavier_uniform_(self.merge.weight)
        nn.init.normal_(self.lambdas, std=0.1)

    def start(self, x: Tensor, context: Context) -> State:
        if not self.causal:
            return ()
        keys = x.new_zeros(x.shape[0], 2 * self.heads, 0, self.width)
        values = x.new_zeros(x.shape[0], self.heads, 0, 2 * self.width)
        state = keys, values, context.once(no_slots, context.mask, 0)
        return (*state, context.once(no_positions, context.mask)) if self.rotary else state

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        query, keys, values = self.project(x).chunk(3, -1)
        query, keys = (
            split_heads(query, 2 * self.heads),
            split_heads(keys, 2 * self.heads),
        )  # (B, 2H, T, d)
        values, counted = split_heads(values, self.heads), state[3:]  # (B, H, T, 2d)
        if self.rotary:
            before = counted[0] if counted else None
            angles = context.once(rotary_angles, context.mask, before, self.width)
            query, keys = apply_rotary(query, *angles), apply_rotary(keys, *angles)
            counted = (context.once(count_positions, before, context.mask),) if counted else ()
        if not self.causal:
            mask = context.once(visible_slots, context.mask, x.shape[1], None, False)
            return self._merge(self._attend(query, keys, values, mask, context), context), ()
        keys, values = append(state[0], keys, 2), append(state[1], values, 2)
        seen = context.once(append, state[2], context.mask, 1)  # (B, N)
        is_first = keys.shape[2] == x.shape[1]
        mask = None if is_first else context.once(visible_slots, seen, x.shape[1], None, True)
        attended = self._attend(query, keys, values, mask, context)
        return self._merge(attended, context), (keys, values, seen, *counted)

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, context: Context
    ) -> Tensor:
        """Return a_h: (B, H, T, 2d). Without a mask it is causal."""
        pairs = [
            (query[:, part::2], keys[:, part::2]) for part in (0, 1)
        ]  # (B, H, T, d), (B, H, N, d)
        factor, is_causal = self.factor(context).to(query.dtype), mask is None
        if context.records is not None:
            one, two = (attention_weights(*pair, mask, causal=is_causal) for pair in pairs)
            context.record("weights", (one - factor * two).transpose(1, 2))
            context = context._replace(records=None)
        dropout = self.dropout if self.training else 0.0
        one, two = (
            attention(*pair, values, mask, context, causal=is_causal, dropout=dropout)
            for pair in pairs
        )
        return one - factor * two

    def initial_lambda(self, context: Context) -> float:
        """Return l_0."""
        return (
            0.8 - 0.6 * math.exp(-0.3 * context.iteration) if self.is_by_depth else self.lambda_init
        )

    def factor(self, context: Context) -> Tensor:
        """Return l, how much of the second softmax is taken from the first: a scalar"""
        one, two = (self.lambdas[0::2] * self.lambdas[1::2]).sum(-1).exp().unbind()
        return one - two + self.initial_lambda(context)

    def _merge(self, attended: Tensor, context: Context) -> Tensor:
        """(B, H, T, 2d) -> (B, T, D)"""
        return self.merge(join_heads(self.norm(attended)) * (1.0 - self.initial_lambda(context)))
