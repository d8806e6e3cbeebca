"""`self_attention`: every position reads every position it may see."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blocks.core.attention import attend, heads_divide, join_heads, split_heads
from blocks.core.contract import Block, Context, Count, Rate, Site, State
from blocks.core.tail import tail


class SelfAttention(Block):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    y = W_o concat_h softmax(q_h k_h^T / sqrt(D/H)) v_h, with q, k, v linear in x.

    Settings:
        heads: How many heads; they divide the width that arrives.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.
        window: How far it sees: the position itself and the window - 1 before it (in an encoder, after it too).
            Without it, everything; with it, decoding keeps a state of fixed size.

    Shapes: (B, T, D) -> (B, T, D). State: keys and values (B, H, N, D/H), their mask (B, N).
    Raises BlockError where heads do not divide D.
    """

    def __init__(self, site: Site, *, heads: Count = 8, dropout: Rate = 0.0, window: Count | None = None) -> None:
        super().__init__()
        width = site.stream.width
        heads_divide(heads, width)
        self.heads, self.dropout, self.window, self.causal = heads, dropout, window, bool(site.causal)
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.out = site.stream
        nn.init.xavier_uniform_(self.project.weight, gain=0.5**0.5)
        nn.init.xavier_uniform_(self.merge.weight)
        nn.init.zeros_(self.project.bias)
        nn.init.zeros_(self.merge.bias)

    def start(self, x: Tensor, context: Context) -> State:
        if not self.causal:
            return ()
        kept = 0 if self.window is None else self.window - 1
        empty = x.new_zeros(x.shape[0], self.heads, kept, self.out.width // self.heads)
        return empty, empty, context.mask.new_zeros(x.shape[0], kept)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        query, keys, values = (split_heads(each, self.heads) for each in self.project(x).chunk(3, dim=-1))
        attended, state = self._read(query, keys, values, state, context)
        return self.merge(join_heads(attended)), state

    def _read(
        self, query: Tensor, keys: Tensor, values: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State]:
        dropout = self.dropout if self.training else 0.0
        if not self.causal:
            mask = self._near(context.mask[:, None, None, :], query.shape[2], 0)
            return attend(query, keys, values, mask, context, dropout=dropout), ()
        past = state[2].shape[1]
        if past == 0 and self.window is None:
            after = (keys, values, context.mask)
            return attend(query, keys, values, None, context, causal=True, dropout=dropout), after
        keys, values = torch.cat((state[0], keys), 2), torch.cat((state[1], values), 2)  # (B, H, N, D/H)
        seen = torch.cat((state[2], context.mask), 1)  # (B, N)
        mask = self._near(seen[:, None, None, :], query.shape[2], past)  # (B, 1, T or 1, N)
        attended = attend(query, keys, values, mask, context, dropout=dropout)
        return attended, self._kept(keys, values, seen, context.mask)

    def _near(self, mask: Tensor, length: int, past: int) -> Tensor:
        """The mask of past + `length` slots, less what each of the last `length` may not see: (B, 1, T, N)."""
        if self.window is None and (length == 1 or not self.causal):
            return mask
        slots = torch.arange(past + length, device=mask.device)
        distance = slots[past:, None] - slots  # (T, N)
        if self.window is not None:
            mask = mask & (distance.abs() < self.window)
        return mask & (distance >= 0) if self.causal else mask

    def _kept(self, keys: Tensor, values: Tensor, seen: Tensor, mask: Tensor) -> State:
        """What later positions may still see: everything, or each row's last window - 1 real positions."""
        if self.window is None:
            return keys, values, seen
        count, kept = mask.sum(1), self.window - 1
        keys, values = (tail(each.transpose(1, 2), count, kept).transpose(1, 2) for each in (keys, values))
        return keys, values, tail(seen, count, kept)
