"""`self_attention`: every position reads every position it may see."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from blocks.core.attention import (
    RelativeAttention,
    TransformerXlAttention,
    apply_rotary,
    attention,
    check_heads,
    join_heads,
    last_slots,
    no_slots,
    rotary_angles,
    slot_distances,
    visible_slots,
)
from blocks.core.contract import Block, BlockError, Context, Count, NoEffect, Rate, Site, State
from blocks.core.functional import count_positions, last_positions, no_positions
from blocks.core.kv_cache import append

HEADS = 8


class SelfAttention(Block):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    y = W_o concat_h softmax(q_h k_h^T / sqrt(D/H)) v_h, with q, k, v linear in x.
    relative: k_j + a_ij and v_j + b_ij in place of k_j and v_j, learned for each i - j (Shaw et al. 2018, equations 3
    and 4); rotary: q_i and k_j turned by angles that grow with i and j (Su et al. 2021, equation 34); transformer_xl:
    (q_i + u) k_j + (q_i + v) W_r R_(i-j) in place of q_i k_j, with the sinusoids R of a distance, and u and v learned
    for each head of each layer (Dai et al. 2019, section 3.3).

    Settings:
        heads: How many heads; they divide the width that arrives.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.
        window: How far it sees: the position itself and the window - 1 before it (in an encoder, after it too).
            Without it, everything; with it, decoding keeps a state of fixed size.
        positions: What it knows of distances: none | relative | rotary | transformer_xl.
        max_distance: Of `relative` positions, from where on all distances are one, 1 or more; 16 by default.
        bias: Whether q, k, v and y have biases.

    Shapes: (B, T, D) -> (B, T, D). State: keys and values (B, 2, H, N, D/H), their mask (B, N); with rotary
    positions, how many there were (B,).
    Raises BlockError where a grid arrives, where heads do not divide D, for rotary positions of heads that are not of
    even width, and for a `max_distance` of other positions than `relative` ones.
    """

    family = "attention"

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = HEADS,
        dropout: Rate = 0.0,
        window: Count | None = None,
        positions: Literal["none", "relative", "rotary", "transformer_xl"] = "none",
        max_distance: Count | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        stream = site.sequence("self_attention")
        width = stream.width
        check_heads(heads, width)
        if window == 1 and positions in ("rotary", "transformer_xl"):
            message = "the position itself is all that is seen, and its distance is 0"
            raise NoEffect("positions", message, fix="remove `positions`, or write `window: 2` or more")
        if window is not None and max_distance is not None and max_distance >= window:
            message = f"in a window of {window} no distance is above {window - 1}"
            fix = f"remove it, or write `max_distance: {window - 1}`" if window > 1 else ""
            raise NoEffect("max_distance", message, fix=fix)
        if window == 1 and positions == "none" and heads != HEADS and not dropout and width % HEADS == 0:
            raise NoEffect("heads", "in a window of 1 all heads see the position itself, and nothing to choose from")
        self.heads, self.dropout, self.window, self.causal = heads, dropout, window, bool(site.causal)
        self.rotary = positions == "rotary"
        self.relative: RelativeAttention | TransformerXlAttention | None = None
        self.project = nn.Linear(width, 3 * width, bias=bias)
        self.merge = nn.Linear(width, width, bias=bias)
        self.out = stream
        nn.init.xavier_uniform_(self.project.weight, gain=0.5**0.5)
        nn.init.xavier_uniform_(self.merge.weight)
        if bias:
            nn.init.zeros_(self.project.bias)
            nn.init.zeros_(self.merge.bias)
        if positions == "relative":
            furthest = max_distance or 16 if window is None else min(max_distance or 16, window - 1)
            self.relative = RelativeAttention(width // heads, furthest, future=not self.causal)
        elif max_distance is not None:
            message = "only `relative` positions have a largest distance"
            raise NoEffect("max_distance", message, fix="remove it, or write `positions: relative`")
        if positions == "transformer_xl":
            self.relative = TransformerXlAttention(width, heads, window, future=not self.causal)
        if self.rotary:
            _check_rotary(heads, width)

    def start(self, x: Tensor, context: Context) -> State:
        if not self.causal:
            return ()
        num_kept = 0 if self.window is None else self.window - 1
        pairs = x.new_zeros(x.shape[0], 2, self.heads, num_kept, self.out.width // self.heads)
        state = pairs, context.once(no_slots, context.mask, num_kept)
        return (*state, context.once(no_positions, context.mask)) if self.rotary else state

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        projected = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(0, 2, 3, 1, 4)  # (B, 3, H, T, D/H)
        query, pairs = projected[:, 0], projected[:, 1:]
        counted = state[2:]
        if self.rotary:
            before = counted[0] if counted else None
            turned = apply_rotary(projected[:, :2], *context.once(rotary_angles, context.mask, before, query.shape[-1]))
            query, pairs = turned[:, 0], torch.cat((turned[:, 1:], projected[:, 2:]), 1)
            counted = (context.once(count_positions, before, context.mask),) if counted else ()
        attended, after = self._read(query, pairs, state[:2], context)
        return self.merge(join_heads(attended)), (*after, *counted)

    def _read(self, query: Tensor, pairs: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        """Return what the queries read (B, H, T, D/H), and the state after them. pairs: (B, 2, H, T, D/H)"""
        if not self.causal:
            return self._attend(query, pairs, context.mask, context), ()
        if state[1].shape[1] == 0 and self.window is None and self.relative is None:
            keys, values, dropout = *pairs.unbind(1), self.dropout if self.training else 0.0
            attended = attention(query, keys, values, None, context, causal=True, dropout=dropout)
            return attended, (pairs, context.mask)
        pairs = append(state[0], pairs, 3)  # (B, 2, H, N, D/H)
        seen = context.once(append, state[1], context.mask, 1)  # (B, N)
        attended = self._attend(query, pairs, seen, context)
        if self.window is None:
            return attended, (pairs, seen)
        last = last_positions(pairs.transpose(1, 3), context.mask.sum(1), self.window - 1).transpose(1, 3)
        return attended, (last, context.once(last_slots, seen, context.mask, self.window - 1))

    def _attend(self, query: Tensor, pairs: Tensor, seen: Tensor, context: Context) -> Tensor:
        """Return what the queries, the last of the slots, read of those of `seen` (B, N) that they may see."""
        (keys, values), length = pairs.unbind(1), query.shape[2]
        dropout = self.dropout if self.training else 0.0
        mask = context.once(visible_slots, seen, length, self.window, self.causal)  # (B, 1, T or 1, N)
        if self.relative is None:
            return attention(query, keys, values, mask, context, dropout=dropout)
        distance = context.once(slot_distances, seen, length, self.window is not None)  # (B or 1, T, N)
        return self.relative(query, keys, values, mask, distance, context, dropout)


def _check_rotary(heads: int, width: int) -> None:
    """Raise BlockError where a head has no pairs of features to turn."""
    head_width = width // heads
    if head_width % 2:
        fits = [n for n in range(1, width + 1) if width % (2 * n) == 0]
        fix = f"write `heads: {min(fits, key=lambda n: abs(n - heads))}`" if fits else "write `positions: relative`"
        message = f"rotary positions turn pairs of features, and a head is {head_width} wide"
        raise BlockError("positions", message, code="width", fix=fix)
