"""`retention`: linear attention that forgets at a fixed rate, slower from head to head."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.attention import join_heads, split_heads
from blocks.core.attention_parts import AttentionParts
from blocks.core.contract import (
    BlockError,
    Chunk,
    Context,
    Count,
    InitialState,
    ShortKernel,
    Site,
    State,
    write,
)
from blocks.core.functional import count_positions, no_positions, state_dtype
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
from blocks.core.rotary import ROTARY_BASE, apply_rotary


class Retention(Mixer):
    """Multi-scale retention (Sun et al. 2023, equations 5, 6 and 8; sections 2.1 and 2.2).

    S_t = gamma_h S_(t-1) + k_t v_t^T, y_t = W_o (silu(W_g x_t) GN(S_t^T q_t)), with gamma_h = 1 -
    2^(-5-h), h = 0 .. heads - 1, q = W_q x, k = W_k x / sqrt(state), v = W_v x. The features 2i and
    2i + 1 of q_t and k_t are turned by the angle t 10000^(-i / (state / 2 - 1)), as in the authors'
    code. GN normalises each head; so the paper's other normalisations, which scale what it reads,
    are left out. There are no biases but GN's.

    GN is the paper's. The authors' code (torchscale) and that of fla divide by the root mean
    square: `head_norm: rms`, in torchscale without its gain. All matrices are Xavier's here, theirs
    less by 2^-2.5, and W_o by 2.

    In an encoder the same runs over each row from its end, with a gate W_g of its own and the same
    angles, and both are added before W_o: a position's own k v^T is counted in both directions.

    Settings:
        heads: How many heads; they divide the width that arrives, unless `head_width` and `state`
            are given.
        head_width: The width of a head's values; twice the width that arrives, divided by the
            heads, unless given.
        state: The width of a head's queries and keys, even; the width that arrives, divided by the
            heads, unless given.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions a depthwise convolution of q, k and v reads, with SiLU;
            in an encoder it is centred; 0 for none.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of a retention). In an encoder, of the direction that reads forwards.
        head_norm: group | rms. What GN does: subtract each head's mean, divide by its deviation,
            with a gain and a bias; or divide by its root mean square, with a gain.

    Shapes: (B, T, D) -> (B, T, D). State: S, (B, H, state, head_width), in float32 at least; how
    many positions there were (B,); with `short_conv` the last inputs of the convolution.
    Raises BlockError where a grid arrives, where heads do not divide D, for an odd `state`, a
    `head_width` of 1, and a state to copy of another kind.
    """

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
        head_norm: HeadNormKind = "group",
    ) -> None:
        width = site.sequence("retention").width
        key_width, head_width = (
            width_of_heads(site, heads, state),
            width_of_heads(site, heads, head_width, factor=2),
        )
        if key_width % 2:
            message = f"pairs of features are turned, and a head's keys are {key_width} wide"
            raise BlockError("state", message, code="width", fix=write("state", key_width + 1))
        sizes = [heads * key_width, heads * key_width, heads * head_width]
        super().__init__(
            site,
            "retention",
            heads=heads,
            key_width=key_width,
            head_width=head_width,
            chunk=chunk,
            short_conv=short_conv,
            kept_width=sum(sizes) if short_conv else 0,
            initial_state=initial_state,
        )
        self.sizes, self.key_width = sizes, key_width
        self.project = build_projection(width, sizes, bias=False)
        self.gate = build_projection(width, self.directions * [sizes[2]], bias=False)
        self.norm = HeadNorm(heads, head_width, head_norm)
        self.merge = build_projection(sizes[2], [width], bias=False)

    def attention_parts(self) -> AttentionParts:
        return self.parts_beside(self.project, self.merge)

    def start(self, x: Tensor, context: Context) -> State:
        state = super().start(x, context)
        # the same count in all layers, which then turn by the same angles
        return (
            state
            if self.initial.copied
            else (state[0], context.once(no_positions, context.mask), *state[2:])
        )

    def extra_state(self, memory: Tensor) -> tuple[Tensor, ...]:
        return (memory.new_zeros(memory.shape[0], dtype=torch.long),)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        features, conv = self.convolve(self.project(x), state, context.mask)
        query, key, value = features.split(self.sizes, -1)
        pairs = torch.stack([split_heads(part, self.heads) for part in (query, key)], 1).to(
            state_dtype(x)
        )
        angles = context.once(rotation_angles, context.mask, state[1], self.key_width, pairs.dtype)
        query, key = map(join_heads, apply_rotary(pairs, *angles).unbind(1))
        parts = query, key * self.key_width**-0.5, value
        outputs, after = self.scan_both(parts, parts, state, context.mask)
        gates = F.silu(self.gate(x)).chunk(self.directions, -1)
        y = sum_gated(gates, [self.norm(y, x.dtype) for y in outputs])
        return self.merge(y), (*after, context.once(count_positions, state[1], context.mask), *conv)

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        memory = state[0]
        query, key = (
            split_heads(parts[0], self.heads),
            mask_heads(parts[1], mask, self.heads),
        )  # (B, H, T, K)
        log_decay = log_decays(self.heads, memory).expand(*mask.shape, -1)  # (B, T, H)
        y, memory = scan_outer_products(
            query,
            key,
            split_heads(parts[2], self.heads),
            mask_heads(log_decay, mask, self.heads),
            memory,
            chunk=self.chunk,
        )
        return join_heads(y), (memory,)


def log_decays(heads: int, like: Tensor) -> Tensor:
    """Return log(1 - 2^(-5-h)) of each head: (H,), in the precision and on the device of `like`."""
    head = torch.arange(heads, dtype=like.dtype, device=like.device)
    return torch.log1p(-torch.exp2(-5.0 - head))


def rotation_angles(
    mask: Tensor, before: Tensor, width: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of t 10000^(-i / (width / 2 - 1)), for the positions t of `mask` after
    `before` others.

    mask: (B, T), before: (B,) -> (B, 1, 1, T, width / 2) each
    """
    where = before[:, None] + torch.arange(mask.shape[1], device=mask.device)  # (B, T)
    pair, last = torch.arange(width // 2, dtype=dtype, device=mask.device), max(width // 2 - 1, 1)
    angles = where[:, None, None, :, None].to(dtype) * torch.exp(
        pair * (-math.log(ROTARY_BASE) / last)
    )
    return angles.cos(), angles.sin()
