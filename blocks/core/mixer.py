"""What blocks with an outer-product state share: heads, a short convolution, where the state
starts, both directions.

A block projects x to parts (B, T, .), and its `scan` runs them from a state in one direction. In an
encoder the same `scan` runs over each row reversed within its own length as well, from an empty
state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import check_heads, split_heads
from blocks.core.attention_parts import AttentionParts, attention_parts
from blocks.core.contract import Block, BlockError, Context, Site, State
from blocks.core.functional import state_dtype
from blocks.core.initial_state import StateInitializer
from blocks.core.recurrence import reverse
from blocks.core.short_convolution import ShortConvolution

HeadNormKind = Literal["group", "rms"]
"""group | rms."""
Parts = tuple[Tensor, ...]
"""What one direction reads: queries, keys, values, decays ..., each (B, T, .)."""


class Mixer(Block):
    """A block whose state is a sum of outer products for each head: (B, H, K, V).

    The state is a tuple: the sum, in float32 at least, if `normalised` with that of the keys as one
    more column; what `extra_state` returns; and with a short convolution what its next positions
    read, (B, kernel - 1, .).
    Only the sum is projected from a memory, or learned; the rest is zero unless it is copied.
    `kept_width` is that of the inputs that the state keeps beside the sum.
    """

    family = "recurrence"
    normalised = False

    def __init__(
        self,
        site: Site,
        word: str,
        *,
        heads: int,
        key_width: int,
        head_width: int,
        chunk: int,
        short_conv: int,
        kept_width: int,
        initial_state: str | dict[str, str],
    ) -> None:
        super().__init__()
        self.out, self.directions = site.sequence(word), 1 if site.causal else 2
        self.heads, self.head_width, self.chunk = heads, head_width, chunk
        self.memory_shape = (heads, key_width, head_width + self.normalised)
        self.short_conv = (
            ShortConvolution(kept_width, short_conv, bool(site.causal)) if short_conv else None
        )
        inputs = ("short_conv", short_conv), ("kept width", kept_width)
        self.state_kind = (
            word,
            ("heads", heads),
            ("state", key_width),
            ("head_width", head_width),
            *inputs,
        )
        self.initial = StateInitializer(
            site, initial_state, ((math.prod(self.memory_shape),),), self.state_kind
        )

    def start(self, x: Tensor, context: Context) -> State:
        if self.initial.copied:
            return self.initial(x, context)
        ((memory,),) = self.initial(x.new_zeros(x.shape[0], 1, dtype=state_dtype(x)), context)
        memory = memory.unflatten(-1, self.memory_shape)  # (B, H, K, V)
        conv = () if self.short_conv is None else (self.short_conv.start(x),)
        return (memory, *self.extra_state(memory), *conv)

    def extra_state(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Return the rest of a direction's initial state, batch first. memory: (B, H, K, V)"""
        return ()

    def parts_beside(self, project: nn.Linear, merge: nn.Linear) -> AttentionParts:
        """Return the parts of a map to queries, keys and values, and of the last one."""
        key_width = self.memory_shape[1]
        widths = (key_width, key_width, self.head_width)
        return attention_parts(project, merge, [self.heads] * 3, widths)

    def values_and_ones(self, value: Tensor) -> Tensor:
        """Return the heads' values, and 1 beside them if `normalised`: (B, T, H V) -> (B, H, T, V
        or V + 1)
        """
        return F.pad(split_heads(value, self.heads), (0, 1 if self.normalised else 0), value=1.0)

    def convolve(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        """Run the short convolution and SiLU; without one return x as it is.

        x: (B, T, .), state: the block's -> (B, T, .), the convolution's part of the next state
        """
        if self.short_conv is None:
            return x, ()
        y, after = self.short_conv(x, state[-1], mask)
        return F.silu(y), (after,)

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one direction: mask (B, T) -> y (B, T, H V), state without the convolution's."""
        raise NotImplementedError(f"{type(self).__name__} does not define scan")

    def scan_both(
        self, forwards: Parts, backwards: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run the directions that there are: `backwards` is not read on a causal site.

        -> y of each direction (B, T, H V), and the state after the forward one, less the short
        convolution's
        """
        y, after = self.scan(forwards, state, mask)
        if self.directions == 1:
            return [y], after
        empty = torch.zeros_like(after[0])
        z, _ = self.scan(
            tuple(reverse(x, mask) for x in backwards), (empty, *self.extra_state(empty)), mask
        )
        return [y, reverse(z, mask)], after


def build_projection(width: int, sizes: Sequence[int], bias: bool = True) -> nn.Linear:
    """Build a linear map to several parts side by side, each initialised on its own."""
    project = nn.Linear(width, sum(sizes), bias=bias)
    for part in project.weight.detach().split(list(sizes)):
        nn.init.xavier_uniform_(part)
    if bias:
        nn.init.zeros_(project.bias)
    return project


class HeadNorm(nn.Module):
    """Normalisation of each head of a position.

    group: less its mean, over its deviation, with a gain and a bias (Wu & He 2018; Sun et al. 2023,
    equation 8);
    rms: over its root mean square, with a gain.
    """

    def __init__(
        self, heads: int, head_width: int, kind: HeadNormKind = "group", eps: float = 1e-5
    ) -> None:
        super().__init__()
        if head_width == 1:
            message = "of one feature, a norm leaves nothing but a sign of what arrives"
            raise BlockError(
                "heads",
                message,
                code="width",
                fix="write fewer `heads`, or `head_width: 2` or more",
            )
        self.head_width, self.eps = head_width, eps
        self.weight = nn.Parameter(torch.ones(heads * head_width))
        self.bias = nn.Parameter(torch.zeros(heads * head_width)) if kind == "group" else None

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise in the precision of x, (B, T, H V), and return the result in `dtype`."""
        heads = x.unflatten(-1, (-1, self.head_width))
        if self.bias is None:
            return (
                F.rms_norm(heads, (self.head_width,), eps=self.eps).flatten(-2).to(dtype)
                * self.weight
            )
        heads = F.layer_norm(heads, (self.head_width,), eps=self.eps)
        return torch.addcmul(self.bias, heads.flatten(-2).to(dtype), self.weight)


def sum_gated(gates: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
    """Return the sum over the directions of what comes out, each times its gate: (B, T, H V) each
    -> (B, T, H V)
    """
    first, *others = (gate * y for gate, y in zip(gates, outputs, strict=True))
    return first + others[0] if others else first


def width_of_heads(site: Site, heads: int, width: int | None, factor: int = 1) -> int:
    """Return the width of a head: `width`, else its share of `factor` times the width that arrives.

    Raises BlockError where that share is no whole number.
    """
    if width is not None:
        return width
    check_heads(heads, site.stream.width)
    return factor * site.stream.width // heads


def mask_heads(x: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return the heads' features, 0 where nothing is real: (B, T, H n), (B, T) -> (B, H, T, n)"""
    return split_heads(x.masked_fill(~mask[..., None], 0.0), heads)
