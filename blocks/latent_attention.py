"""`latent_attention`: self-attention whose keys and values are made of one narrow latent, which
alone is kept.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from blocks.core.attention import (
    attention,
    check_heads,
    join_heads,
    no_slots,
    split_heads,
    visible_slots,
)
from blocks.core.contract import Block, BlockError, Bounds, Context, Count, Rate, Site, State, write
from blocks.core.functional import RmsNorm, check_rms_width, count_positions, no_positions
from blocks.core.kv_cache import append
from blocks.core.mixer import build_projection
from blocks.core.rotary import apply_rotary, rotary_angles

Width = Annotated[int, Bounds(minimum=0, maximum=1_000_000)]
"""A width, or 0 for none."""


class LatentAttention(Block):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

    c_t = norm(W_c x_t); k_ht = (U_h c_t, r_t); v_ht = V_h c_t

    q_ht = (W_h z_t, turned R_h z_t), z_t = x_t or norm(W_z x_t)

    y = W_o concat_h softmax(q_h k_h^T / sqrt(d + D_r)) v_h

    r_t, the decoupled key, is linear in x_t, turned by angles that grow with t, and the same for
    all heads. The norms of the latents divide by the root mean square (section 3.1.2), with 1e-5
    under the root, in the authors' code 1e-6. A single query, as in decoding, is mapped to be
    compared with c itself, and what it reads of c to a value: then no keys and values are expanded.

    Settings:
        heads: How many heads; without `head_width` they divide the width that arrives.
        latent: The width D_c of the latent c, 2 or more; 4 times the width of a head by default, as
            in the paper.
        query_latent: The width of the latent z of the queries, 2 or more; without it they are made
            of x itself.
        head_width: The width d of each head's keys and values; by default D / heads.
        rotary_width: The width D_r of the decoupled key, an even number; 0 for none, without which
            positions are not known. By default half the width of a head, or what makes that even.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.

    Shapes: (B, T, D) -> (B, T, D). State: latents and decoupled keys (B, N, D_c + D_r), their mask
    (B, N), and how many there were (B,).
    Raises BlockError where a grid arrives, where heads do not divide D, for a latent of one
    feature, and for an odd `rotary_width`.
    """

    family = "attention"
    layouts: ClassVar = {"keys": "head in out", "values": "head in out"}

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 8,
        latent: Count | None = None,
        query_latent: Count | None = None,
        head_width: Count | None = None,
        rotary_width: Width | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        stream = site.sequence("latent_attention")
        if head_width is None:
            check_heads(heads, stream.width)
        width = head_width or stream.width // heads
        self.heads, self.width, self.latent = heads, width, latent or 4 * width
        self.rotary_width = (width // 2 + width // 2 % 2) if rotary_width is None else rotary_width
        self.dropout, self.causal = dropout, bool(site.causal)
        _check_widths(self.rotary_width, latent, query_latent)
        self.compress = nn.Linear(stream.width, self.latent + self.rotary_width, bias=False)
        self.norm = RmsNorm(self.latent)
        self.compress_query = (
            build_projection(stream.width, [query_latent], False) if query_latent else nn.Identity()
        )
        self.query_norm = RmsNorm(query_latent) if query_latent else nn.Identity()
        self.query = nn.Linear(
            query_latent or stream.width, heads * (width + self.rotary_width), bias=False
        )
        # no linear maps: decoding multiplies queries with these, and what is read, in place of keys
        # and values
        self.keys = nn.Parameter(torch.empty(heads, self.latent, width))
        self.values = nn.Parameter(torch.empty(heads, self.latent, width))
        self.merge = nn.Linear(heads * width, stream.width, bias=False)
        self.out = stream
        for weight in (self.compress.weight, self.query.weight, self.merge.weight):
            nn.init.xavier_uniform_(weight)
        for matrix in (*self.keys, *self.values):
            nn.init.xavier_uniform_(matrix.data)

    def start(self, x: Tensor, context: Context) -> State:
        if not self.causal:
            return ()
        pairs = x.new_zeros(x.shape[0], 0, self.latent + self.rotary_width)
        return (
            pairs,
            context.once(no_slots, context.mask, 0),
            context.once(no_positions, context.mask),
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        latent, key = self.compress(x).split((self.latent, self.rotary_width), -1)
        query = split_heads(
            self.query(self.query_norm(self.compress_query(x))), self.heads
        )  # (B, H, T, d + D_r)
        before = state[2] if self.causal else None
        query, key = self._turn(query, key, before, context)
        pairs = torch.cat((self.norm(latent), key), -1)  # (B, T, D_c + D_r)
        if not self.causal:
            mask = context.once(visible_slots, context.mask, x.shape[1], None, False)
            return self.merge(join_heads(self._attend(query, pairs, mask, context))), ()
        pairs, seen = append(state[0], pairs, 1), context.once(append, state[1], context.mask, 1)
        is_first = pairs.shape[1] == x.shape[1]
        mask = None if is_first else context.once(visible_slots, seen, x.shape[1], None, True)
        attended = self._attend(query, pairs, mask, context)
        return self.merge(join_heads(attended)), (
            pairs,
            seen,
            context.once(count_positions, before, context.mask),
        )

    def _turn(
        self, query: Tensor, key: Tensor, before: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Turn the last features of queries (B, H, T, d + D_r) and the shared key (B, T, D_r)."""
        if not self.rotary_width:
            return query, key
        angles = context.once(rotary_angles, context.mask, before, self.rotary_width)
        content, turning = query.split((self.width, self.rotary_width), -1)
        query = torch.cat((content, apply_rotary(turning, *angles)), -1)
        return query, apply_rotary(key[:, None], *angles)[:, 0]

    def _attend(
        self, query: Tensor, pairs: Tensor, mask: Tensor | None, context: Context
    ) -> Tensor:
        """Return the result of attention, (B, H, T, d). Without a mask it is causal."""
        dropout, scale = self.dropout if self.training else 0.0, query.shape[-1] ** -0.5
        latent, key = pairs.split((self.latent, self.rotary_width), -1)
        if query.shape[2] == 1:
            content, turned = query.split((self.width, self.rotary_width), -1)
            query = torch.cat(
                (content @ self.keys.transpose(-2, -1), turned), -1
            )  # (B, H, 1, D_c + D_r)
            shared = pairs[:, None], latent[:, None]  # one head of each, for all queries
            return (
                attention(query, *shared, mask, context, dropout=dropout, scale=scale) @ self.values
            )
        keys, values = (
            latent[:, None] @ weight for weight in (self.keys, self.values)
        )  # (B, H, N, d)
        keys = torch.cat((keys, key[:, None].expand(-1, self.heads, -1, -1)), -1)
        return attention(
            query, keys, values, mask, context, causal=mask is None, dropout=dropout, scale=scale
        )


def _check_widths(rotary_width: int, latent: int | None, query_latent: int | None) -> None:
    """Raise BlockError for a decoupled key without pairs of features to turn, and for latents of
    one feature.
    """
    if rotary_width % 2:
        message = f"rotary positions turn pairs of features, and {rotary_width} is odd"
        raise BlockError(
            "rotary_width", message, code="width", fix=write("rotary_width", rotary_width + 1)
        )
    check_rms_width(latent or 0, "latent", write("latent", 2, " or more"))
    check_rms_width(
        query_latent or 0, "query_latent", write("query_latent", 2, " or more, or remove it")
    )
