"""What the blocks of the delta rule share: keys of length 1, the share of what they hold that is
corrected, a norm.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.attention import join_heads, split_heads
from blocks.core.attention_parts import AttentionParts
from blocks.core.contract import Site, State, write
from blocks.core.delta_rule import DeltaInputs, scan_delta_rule, unit_length
from blocks.core.functional import RmsNorm, check_rms_width
from blocks.core.mixer import Mixer, Parts, build_projection, mask_heads, width_of_heads


class DeltaMixer(Mixer):
    """Queries, keys and values through a short convolution with SiLU, and a strength beta of
    writing for each head.

    `strengths` are the rates of both directions where there are two; `strongest` is what a beta is
    below, and `query_scale` the length of q.
    """

    def __init__(
        self,
        site: Site,
        word: str,
        *,
        heads: int,
        head_width: int | None,
        state: int | None,
        chunk: int,
        short_conv: int,
        negative_eigenvalues: bool,
        scale_queries: bool,
        initial_state: str | dict[str, str],
    ) -> None:
        width = site.sequence(word).width
        head_width = width_of_heads(site, heads, head_width)
        key_width = state or head_width
        check_rms_width(head_width, "head_width", "write fewer `heads`, or `head_width: 2` or more")
        check_rms_width(key_width, "state", write("state", 2, " or more"))
        sizes = [heads * key_width, heads * key_width, heads * head_width]
        super().__init__(
            site,
            word,
            heads=heads,
            key_width=key_width,
            head_width=head_width,
            chunk=chunk,
            short_conv=short_conv,
            kept_width=sum(sizes) if short_conv else 0,
            initial_state=initial_state,
        )
        self.sizes, self.strongest = sizes, 2.0 if negative_eigenvalues else 1.0
        self.query_scale = key_width**-0.5 if scale_queries else 1.0
        self.project = build_projection(width, sizes, bias=False)
        self.strengths = build_projection(width, self.directions * [heads], bias=False)
        self.norm = RmsNorm(head_width)
        self.merge = build_projection(sizes[2], [width], bias=False)

    def attention_parts(self) -> AttentionParts:
        return self.parts_beside(self.project, self.merge)

    def read_parts(
        self, x: Tensor, state: State, mask: Tensor
    ) -> tuple[Parts, tuple[Tensor, ...], State]:
        """Return q, k, v (B, T, H .), the betas of each direction (B, T, H), and the convolution's
        next state.
        """
        features, conv = self.convolve(self.project(x), state, mask)
        if self.short_conv is None:
            features = F.silu(features)
        strengths = self.strongest * torch.sigmoid(self.strengths(x))
        return tuple(features.split(self.sizes, -1)), strengths.split(self.heads, -1), conv

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """parts: q, k, v, beta, and the log decays (B, T, H) or (B, T, H K)"""
        (memory,) = state
        query, key, value, strength, log_decay = parts
        query, key = (
            unit_length(split_heads(x.to(memory.dtype), self.heads)) for x in (query, key)
        )
        log_decay = mask_heads(log_decay.to(memory.dtype), mask, self.heads)  # (B, H, T, 1 or K)
        scaled_key = key * mask_heads(strength, mask, self.heads)  # (B, H, T, K)
        value, read = split_heads(value, self.heads), key * log_decay.exp()
        inputs = DeltaInputs(
            self.query_scale * query, scaled_key, value, read, -scaled_key, log_decay
        )
        y, memory = scan_delta_rule(inputs, memory, chunk=self.chunk)
        return join_heads(y), (memory,)

    def normalise(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise each head of an output, in `dtype`: (B, T, H V) -> (B, T, H V)"""
        normalised: Tensor = self.norm(y.unflatten(-1, (self.heads, -1)))  # (B, T, H, V)
        return normalised.flatten(2).to(dtype)
