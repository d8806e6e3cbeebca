"""`linear_attention`: attention without a softmax, whose state is as large after a million
positions as after one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.attention import join_heads, split_heads
from blocks.core.attention_parts import AttentionParts
from blocks.core.contract import Chunk, Context, Count, InitialState, ShortKernel, Site, State
from blocks.core.functional import no_autocast
from blocks.core.mixer import Mixer, Parts, build_projection, mask_heads, width_of_heads
from blocks.core.outer_product_state import scan_outer_products

EPSILON = 1e-6
"""What keeps the normaliser from 0, as in the authors' code."""


class LinearAttention(Mixer):
    """Linear attention (Katharopoulos et al. 2020, equations 7, 16 to 20), phi(x) = elu(x) + 1.

    S_t = S_(t-1) + phi(k_t) v_t^T, z_t = z_(t-1) + phi(k_t), y_t = W_o S_t^T phi(q_t) / (z_t^T
    phi(q_t) + 1e-6), for each head, with q, k, v linear in x.
    In an encoder every position reads S and z of the whole row (equation 6), its own k and v
    counted once.

    Settings:
        heads: How many heads; they divide the width that arrives, unless `head_width` is given.
        head_width: The width of a head's values; the width that arrives, divided by the heads,
            unless given.
        state: The width of a head's queries and keys; `head_width` unless given.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions a depthwise convolution of q, k and v reads, with SiLU;
            in an encoder it is centred; 0 for none.
        initial_state: zeros | learned | a memory (its mean, projected to S and z, z by magnitude) |
            {copy: MEMORY.x} (the last state of a linear_attention).

    Shapes: (B, T, D) -> (B, T, D). State: S and z side by side, (B, H, K, V + 1), in float32 at
    least; with `short_conv` the last inputs of the convolution.
    Raises BlockError where a grid arrives, where heads do not divide D, and for a state to copy of
    another kind.
    """

    normalised = True

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 8,
        head_width: Count | None = None,
        state: Count | None = None,
        chunk: Chunk = 64,
        short_conv: ShortKernel = 0,
        initial_state: InitialState = "zeros",
    ) -> None:
        width = site.sequence("linear_attention").width
        head_width = width_of_heads(site, heads, head_width)
        key_width = state or head_width
        sizes = [heads * key_width, heads * key_width, heads * head_width]
        super().__init__(
            site,
            "linear_attention",
            heads=heads,
            key_width=key_width,
            head_width=head_width,
            chunk=chunk,
            short_conv=short_conv,
            kept_width=sum(sizes) if short_conv else 0,
            initial_state=initial_state,
        )
        self.sizes = sizes
        self.project = build_projection(width, sizes)
        self.merge = build_projection(heads * head_width, [width])

    def attention_parts(self) -> AttentionParts:
        return self.parts_beside(self.project, self.merge)

    def start(self, x: Tensor, context: Context) -> State:
        memory, *others = super().start(x, context)
        return (torch.cat((memory[..., :-1], memory[..., -1:].abs()), -1), *others)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        features, conv = self.convolve(self.project(x), state, context.mask)
        y, after = self.scan(features.split(self.sizes, -1), state, context.mask)
        return self.merge(y.to(x.dtype)), (*after, *conv)

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        memory, value = (
            state[0],
            self.values_and_ones(parts[2]),
        )  # (B, H, K, V + 1), (B, H, T, V + 1)
        query, key = (F.elu(x.to(memory.dtype)) + 1.0 for x in parts[:2])  # (B, T, H K)
        query, key = (
            split_heads(query, self.heads),
            mask_heads(key, mask, self.heads),
        )  # (B, H, T, K)
        if self.directions == 2:
            sums, memory = sum_outer_products(query, key, value, memory)
        else:
            undecayed = memory.new_zeros(query.shape[-2], 1)
            sums, memory = scan_outer_products(
                query, key, value, undecayed, memory, chunk=self.chunk
            )
        return join_heads(sums[..., :-1] / (sums[..., -1:] + EPSILON)), (memory,)


def sum_outer_products(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Read the running sum of outer products with every query. Arguments are those of the scan."""
    with no_autocast(state):
        query, key, value = (x.to(state.dtype) for x in (query, key, value))
        state = state + key.mT @ value  # (B, H, K, V)
        return query @ state, state
