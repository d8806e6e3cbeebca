"""`gated_linear_attention`: linear attention in which each feature of a key forgets at a rate of
its own.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import join_heads, split_heads
from blocks.core.attention_parts import AttentionParts
from blocks.core.contract import Chunk, Context, Count, InitialState, ShortKernel, Site, State
from blocks.core.mixer import (
    HeadNorm,
    HeadNormKind,
    Mixer,
    Parts,
    build_projection,
    mask_heads,
    sum_gated,
    width_of_heads,
)
from blocks.core.outer_product_state import scan_outer_products

TEMPERATURE = 16
"""tau: the decays are its roots, and so begin near 1."""


class GatedLinearAttention(Mixer):
    """Gated linear attention (Yang et al. 2023, section 4; the layer of section 4.4).

    S_t = diag(alpha_t) S_(t-1) + k_t v_t^T, y_t = W_o (r_t LN(S_t^T q_t)), for each head, with q,
    k, v linear in x, alpha_t = sigmoid(W_2 W_1 x_t + b)^(1/16), W_1 having `rank` rows, and r_t =
    silu(W_r x_t + b_r). LN normalises each head. There are no other biases.
    LN and the bias of r are the paper's. The authors' code (fla) divides each head by its root mean
    square, `head_norm: rms`, has no b_r, and q / sqrt(state), which is W_q over it.
    In an encoder the same runs over each row from its end, with its own alpha and r, and both are
    added before W_o: a position's own k v^T is counted in both directions.

    Settings:
        heads: How many heads.
        head_width: The width of a head's values; the width that arrives, divided by the heads,
            unless given.
        state: The width of a head's queries and keys; half of `head_width`, rounded up, unless
            given.
        rank: How many numbers of a position decide its decays, 1 or more.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions a depthwise convolution of q, k and v reads, with SiLU;
            in an encoder it is centred; 0 for none.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of a gated_linear_attention). In an encoder, of the direction that reads forwards.
        head_norm: group | rms. What LN does: subtract each head's mean, divide by its deviation,
            with a gain and a bias; or divide by its root mean square, with a gain.

    Shapes: (B, T, D) -> (B, T, D). State: S, (B, H, state, head_width), in float32 at least; with
    `short_conv` the last inputs of the convolution.
    Raises BlockError where a grid arrives, where heads do not divide D, for a `head_width` of 1,
    and for a state to copy of another kind.
    """

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 4,
        head_width: Count | None = None,
        state: Count | None = None,
        rank: Count = 16,
        chunk: Chunk = 64,
        short_conv: ShortKernel = 0,
        initial_state: InitialState = "zeros",
        head_norm: HeadNormKind = "group",
    ) -> None:
        width = site.sequence("gated_linear_attention").width
        head_width = width_of_heads(site, heads, head_width)
        key_width = state or (head_width + 1) // 2
        sizes = [heads * key_width, heads * key_width, heads * head_width]
        super().__init__(
            site,
            "gated_linear_attention",
            heads=heads,
            key_width=key_width,
            head_width=head_width,
            chunk=chunk,
            short_conv=short_conv,
            kept_width=sum(sizes) if short_conv else 0,
            initial_state=initial_state,
        )
        self.sizes = sizes
        self.project = build_projection(width, sizes, bias=False)
        self.low_rank = build_projection(width, self.directions * [rank], bias=False)
        self.decay = nn.ModuleList(
            build_projection(rank, [sizes[1]]) for _ in range(self.directions)
        )
        self.gate = build_projection(width, self.directions * [sizes[2]])
        self.norm = HeadNorm(heads, head_width, head_norm)
        self.merge = build_projection(sizes[2], [width], bias=False)

    def attention_parts(self) -> AttentionParts:
        return self.parts_beside(self.project, self.merge)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        features, conv = self.convolve(self.project(x), state, context.mask)
        parts = features.split(self.sizes, -1)
        low_rank = self.low_rank(x).chunk(self.directions, -1)
        decays = [
            decay(part) for decay, part in zip(self.decay, low_rank, strict=True)
        ]  # (B, T, H K)
        outputs, after = self.scan_both(
            (*parts, decays[0]), (*parts, decays[-1]), state, context.mask
        )
        gates = F.silu(self.gate(x)).chunk(self.directions, -1)
        y = sum_gated(gates, [self.norm(y, x.dtype) for y in outputs])
        return self.merge(y), (*after, *conv)

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        query, key, value, decay = parts
        log_decay = F.logsigmoid(decay.to(state[0].dtype)) / TEMPERATURE  # (B, T, H K)
        y, memory = scan_outer_products(
            split_heads(query, self.heads),
            mask_heads(key, mask, self.heads),
            split_heads(value, self.heads),
            mask_heads(log_decay, mask, self.heads),
            state[0],
            chunk=self.chunk,
        )
        return join_heads(y), (memory,)
