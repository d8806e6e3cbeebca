"""`self_attention`: every position reads every position it may see."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from blocks.core.attention import RelativeAttention, apply_rotary, attention, check_heads, join_heads, split_heads
from blocks.core.contract import Block, BlockError, Context, Count, NoEffect, Rate, Site, State
from blocks.core.functional import last_positions

HEADS = 8


class SelfAttention(Block):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    y = W_o concat_h softmax(q_h k_h^T / sqrt(D/H)) v_h, with q, k, v linear in x.
    relative: k_j + a_ij and v_j + b_ij in place of k_j and v_j, learned for each i - j (Shaw et al. 2018, equations 3
    and 4); rotary: q_i and k_j turned by angles that grow with i and j (Su et al. 2021, equation 34).

    Settings:
        heads: How many heads; they divide the width that arrives.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.
        window: How far it sees: the position itself and the window - 1 before it (in an encoder, after it too).
            Without it, everything; with it, decoding keeps a state of fixed size.
        positions: What it knows of distances: none | relative | rotary.
        max_distance: Of relative positions, from where on all distances are one, 1 or more; 16 by default.

    Shapes: (B, T, D) -> (B, T, D). State: keys and values (B, H, N, D/H), their mask (B, N); with rotary positions,
    how many there were (B,).
    Raises BlockError where a grid arrives, where heads do not divide D, for rotary positions of heads that are not of
    even width, and for a `max_distance` of other positions than relative ones.
    """

    family = "attention"

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = HEADS,
        dropout: Rate = 0.0,
        window: Count | None = None,
        positions: Literal["none", "relative", "rotary"] = "none",
        max_distance: Count | None = None,
    ) -> None:
        super().__init__()
        stream = site.sequence("self_attention")
        width = stream.width
        check_heads(heads, width)
        if window == 1 and positions == "rotary":
            message = "the position itself is all that is seen, and its distance is 0"
            raise NoEffect("positions", message, fix="remove `positions`, or write `window: 2` or more")
        if window is not None and max_distance is not None and max_distance >= window:
            message = f"in a window of {window} no distance is above {window - 1}"
            fix = f"remove it, or write `max_distance: {window - 1}`" if window > 1 else ""
            raise NoEffect("max_distance", message, fix=fix)
        if window == 1 and positions == "none" and heads != HEADS and not dropout and width % HEADS == 0:
            raise NoEffect("heads", "in a window of 1 all heads see the position itself, and nothing to choose from")
        self.heads, self.dropout, self.window, self.causal = heads, dropout, window, bool(site.causal)
        self.rotary, self.relative = positions == "rotary", None
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.out = stream
        nn.init.xavier_uniform_(self.project.weight, gain=0.5**0.5)
        nn.init.xavier_uniform_(self.merge.weight)
        nn.init.zeros_(self.project.bias)
        nn.init.zeros_(self.merge.bias)
        if positions == "relative":
            furthest = max_distance or 16 if window is None else min(max_distance or 16, window - 1)
            self.relative = RelativeAttention(width // heads, furthest, future=not self.causal)
        elif max_distance is not None:
            message = "only relative positions have a largest distance"
            raise NoEffect("max_distance", message, fix="remove it, or write `positions: relative`")
        if self.rotary:
            _check_rotary(heads, width)

    def start(self, x: Tensor, context: Context) -> State:
        if not self.causal:
            return ()
        num_kept = 0 if self.window is None else self.window - 1
        empty = x.new_zeros(x.shape[0], self.heads, num_kept, self.out.width // self.heads)
        state = empty, empty, context.mask.new_zeros(x.shape[0], num_kept)
        return (*state, context.mask.new_zeros(x.shape[0], dtype=torch.long)) if self.rotary else state

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        query, keys, values = (split_heads(tensor, self.heads) for tensor in self.project(x).chunk(3, dim=-1))
        if not self.rotary:
            attended, after = self._read(query, keys, values, state, context)
            return self.merge(join_heads(attended)), after
        where = torch.arange(x.shape[1], device=x.device)[None]  # (1, T)
        counted, past = state[3:], state[:3]
        if counted:
            where, counted = counted[0][:, None] + where, (counted[0] + context.mask.sum(1),)
        attended, after = self._read(apply_rotary(query, where), apply_rotary(keys, where), values, past, context)
        return self.merge(join_heads(attended)), (*after, *counted)

    def _read(
        self, query: Tensor, keys: Tensor, values: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State]:
        if not self.causal:
            return self._attend(query, keys, values, context.mask, context), ()
        if state[2].shape[1] == 0 and self.window is None and self.relative is None:
            after = (keys, values, context.mask)
            dropout = self.dropout if self.training else 0.0
            return attention(query, keys, values, None, context, causal=True, dropout=dropout), after
        keys, values = torch.cat((state[0], keys), 2), torch.cat((state[1], values), 2)  # (B, H, N, D/H)
        seen = torch.cat((state[2], context.mask), 1)  # (B, N)
        attended = self._attend(query, keys, values, seen, context)
        return attended, self._state_after(keys, values, seen, context.mask)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, context: Context) -> Tensor:
        """Return what the queries, the last of the slots, read of those of `seen` (B, N) that they may see."""
        dropout, length = self.dropout if self.training else 0.0, query.shape[2]
        mask = self._near(seen[:, None, None, :], length)  # (B, 1, T or 1, N)
        if self.relative is None:
            return attention(query, keys, values, mask, context, dropout=dropout)
        return self.relative(query, keys, values, mask, self._distance(seen, length), context, dropout)

    def _near(self, mask: Tensor, length: int) -> Tensor:
        """Return the mask of all slots, less what each of the last `length` queries may not see: (B, 1, T, N)."""
        if self.window is None and (length == 1 or not self.causal):
            return mask
        slots = torch.arange(mask.shape[-1], device=mask.device)
        distance = slots[-length:, None] - slots  # (T, N)
        if self.window is not None:
            mask = mask & (distance.abs() < self.window)
        return mask & (distance >= 0) if self.causal else mask

    def _distance(self, seen: Tensor, length: int) -> Tensor:
        """Return how many real positions each slot is before each of the last `length`: (B or 1, T, N).

        Where a chunk was ragged, its padding stands between the slots, unless a window has kept the real ones alone.
        """
        if self.window is not None or seen.shape[1] == length:
            where = torch.arange(seen.shape[1], device=seen.device)[None]  # (1, N)
        else:
            where = seen.cumsum(1)  # (B, N)
        return where[:, -length:, None] - where[:, None, :]

    def _state_after(self, keys: Tensor, values: Tensor, seen: Tensor, mask: Tensor) -> State:
        """Return what later positions may still see: everything, or each row's last window - 1 real positions."""
        if self.window is None:
            return keys, values, seen
        count, num_kept = mask.sum(1), self.window - 1
        keys, values = (
            last_positions(tensor.transpose(1, 2), count, num_kept).transpose(1, 2) for tensor in (keys, values)
        )
        return keys, values, last_positions(seen, count, num_kept)


def _check_rotary(heads: int, width: int) -> None:
    """Raise BlockError where a head has no pairs of features to turn."""
    head_width = width // heads
    if head_width % 2:
        fits = [n for n in range(1, width + 1) if width % (2 * n) == 0]
        fix = f"write `heads: {min(fits, key=lambda n: abs(n - heads))}`" if fits else "write `positions: relative`"
        message = f"rotary positions turn pairs of features, and a head is {head_width} wide"
        raise BlockError("positions", message, code="width", fix=fix)
