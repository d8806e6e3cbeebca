"""`mamba2`: a selective state space whose heads forget by one number each."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import join_heads, split_heads
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
from blocks.core.functional import check_rms_width, inverse_softplus, random_dt
from blocks.core.mixer import Mixer, Parts, build_projection, mask_heads
from blocks.core.outer_product_state import scan_outer_products

RATES = (1.0, 16.0)
"""Between what A is drawn."""


class Mamba2(Mixer):
    """Mamba-2: linear attention whose decays depend on what is read (Dao & Gu 2024, section 7.1,
    and their code).

    For each head S_t = exp(-dt_t A) S_(t-1) + B_t (dt_t x_t)^T, y_t = W_o RMS((S_t^T C_t + D x_t)
    silu(z_t)), with dt_t = softplus(W_dt u_t + b), A > 0 and D learned for each head. z, x, B and C
    are linear in the input u; x, B and C then pass a short depthwise convolution with SiLU. The
    heads of a group share B and C, and RMS normalises a group. Matrices are Xavier's at first and
    the convolution's biases 0, where the authors' code has PyTorch's own draw. In an encoder the
    same runs over each row from its end, with its own dt, A, D and z, and both are added before
    W_o: a position's own B (dt x)^T is counted in both directions.

    Settings:
        heads: How many heads; so many that all values together are twice as wide as the input,
            unless given.
        head_width: The width of a head's values x, 1 or more.
        state: The width of B and C.
        groups: How many groups of heads there are; they divide the heads.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions of x, B and C the convolution reads, centred in an encoder; 0
            for none, and no SiLU.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of a mamba2). In an encoder, of the direction that reads forwards.

    Shapes: (B, T, D) -> (B, T, D). State: S, (B, H, state, head_width), in float32 at least; with
    `short_conv` the last inputs of the convolution.
    Raises BlockError where a grid arrives, where head_width does not divide 2 D and no heads are
    given, where groups do not divide the heads, and for a state to copy of another kind.
    """

    layouts: ClassVar = {"rate": "", "skip": ""}

    def __init__(
        self,
        site: Site,
        *,
        heads: Count | None = None,
        head_width: Count = 64,
        state: Count = 128,
        groups: Count = 1,
        chunk: Chunk = 64,
        short_conv: ShortKernel = 4,
        initial_state: InitialState = "zeros",
    ) -> None:
        width = site.sequence("mamba2").width
        heads = heads or _default_heads(width, head_width)
        if heads % groups:
            message = f"{groups} does not divide the {heads} heads"
            raise BlockError("groups", message, fix=write("groups", math.gcd(heads, groups)))
        sizes = [groups * state, groups * state, heads * head_width]
        check_rms_width(sizes[2] // groups, "groups", "write fewer `groups`")
        super().__init__(
            site,
            "mamba2",
            heads=heads,
            key_width=state,
            head_width=head_width,
            chunk=chunk,
            short_conv=short_conv,
            kept_width=sum(sizes) if short_conv else 0,
            initial_state=initial_state,
        )
        self.sizes, self.groups = sizes, groups
        self.project = build_projection(width, sizes, bias=False)
        self.gate = build_projection(width, self.directions * [sizes[2]], bias=False)
        self.step = build_projection(width, self.directions * [heads])
        self.rate = nn.Parameter(torch.empty(self.directions, heads).uniform_(*RATES).log())
        self.skip = nn.Parameter(torch.ones(self.directions, heads))
        self.norm = nn.Parameter(torch.ones(sizes[2]))
        self.merge = build_projection(sizes[2], [width], bias=False)
        self.step.bias.detach().copy_(inverse_softplus(random_dt(self.directions * heads)))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        features, conv = self.convolve(self.project(x), state, context.mask)
        parts = features.split(self.sizes, -1)
        steps, gates = (
            part.chunk(self.directions, -1) for part in (self.step(x), F.silu(self.gate(x)))
        )
        rates = [
            rate.exp().expand_as(step) for rate, step in zip(self.rate, steps, strict=True)
        ]  # (B, T, H)
        forwards, backwards = (*parts, steps[0], rates[0]), (*parts, steps[-1], rates[-1])
        outputs, after = self.scan_both(forwards, backwards, state, context.mask)
        skips = [
            skip.repeat_interleave(self.head_width) * parts[2] for skip in self.skip
        ]  # (B, T, H P)
        read = [(y + skip) * gate for y, skip, gate in zip(outputs, skips, gates, strict=True)]
        normalised = [self.normalise(y).to(x.dtype) for y in read]
        return self.merge(sum(self.norm * y for y in normalised)), (*after, *conv)

    def normalise(self, y: Tensor) -> Tensor:
        """Divide each group by its root mean square: (B, T, H P)"""
        groups = y.unflatten(-1, (self.groups, -1))
        return F.rms_norm(groups, groups.shape[-1:], eps=1e-5).flatten(-2)

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        key, query, value, step, rate = parts
        dtype = state[0].dtype
        step = F.softplus(step.to(dtype))  # (B, T, H)
        value = split_heads(value.to(dtype), self.heads) * step.mT[..., None]  # (B, H, T, P)
        y, memory = scan_outer_products(
            split_heads(query, self.groups)[:, :, None],  # (B, G, 1, T, N)
            mask_heads(key, mask, self.groups)[:, :, None],
            self.split_groups(value),  # (B, G, H/G, T, P)
            self.split_groups(mask_heads(-step * rate, mask, self.heads)),
            self.split_groups(state[0]),  # (B, G, H/G, N, P)
            chunk=self.chunk,
        )
        return join_heads(y.flatten(1, 2)), (memory.flatten(1, 2),)

    def split_groups(self, x: Tensor) -> Tensor:
        """(B, H, ...) -> (B, G, H/G, ...)"""
        return x.unflatten(1, (self.groups, -1))


def _default_heads(width: int, head_width: int) -> int:
    """Return the number of heads that are twice as wide as the input. Raises BlockError if none
    are.
    """
    if 2 * width % head_width:
        message = f"{head_width} does not divide {2 * width}, twice the width that arrives"
        nearest = min(
            (n for n in range(1, 2 * width + 1) if 2 * width % n == 0),
            key=lambda n: abs(n - head_width),
        )
        fix = write("head_width", nearest, ", or say how many `heads` there are")
        raise BlockError("head_width", message, code="width", fix=fix)
    return 2 * width // head_width
