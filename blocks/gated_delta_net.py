"""`gated_delta_net`: a delta rule that also forgets, and a gate on what is read."""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Chunk, Context, Count, InitialState, ShortKernel, Site, State
from blocks.core.delta_mixer import DeltaMixer
from blocks.core.functional import inverse_softplus, random_dt, state_dtype
from blocks.core.mixer import build_projection, sum_gated

RATE_RANGE = 1.0, 16.0
"""What the initial rates of decay are drawn from, evenly."""


class GatedDeltaNet(DeltaMixer):
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464, equation 10); with vector decays, that of
    Kimi Linear.

    S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_(t-1) + beta_t k_t v_t^T, y_t = W_o (RMSNorm(S_t^T
    q_t) silu(W_g x_t)), with q, k, v and beta of `delta_net`, and alpha_t = exp(-exp(A)
    softplus(f(x_t) + b)).
    scalar: one alpha for a head, f linear; vector: one for each feature of a key, f of rank V (Kimi
    Team 2025, arXiv 2510.26692, section 3; its output gate is a sigmoid of rank V, which is SiLU of
    full rank here).
    q is the papers'. The authors' code (fla) divides it by sqrt(state), `scale_queries`, which the
    norm undoes but for its 1e-5: early in a row y is smaller by more than a third. Their
    convolution has no bias, and their exp(A) is drawn between 0 and 16 for scalars, between 1 and
    16 for vectors; here it is between 1 and 16 for both.
    In an encoder q, k and v are read from both ends, with a beta, decays and a gate for each
    direction, and both are added before W_o: a position's own v is written in both.

    Settings:
        heads: How many heads; they divide the width that arrives, unless `head_width` is given.
        head_width: The width of a head's values; the width that arrives, divided by the heads,
            unless given.
        state: The width of a head's queries and keys; `head_width` unless given.
        decay: scalar | vector.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions a depthwise convolution of q, k and v reads; in an encoder it
            is centred; 0 for none.
        negative_eigenvalues: Whether beta is between 0 and 2, in place of 0 and 1.
        scale_queries: Whether q, of length 1, is divided by sqrt(state), as in the authors' code.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of a gated_delta_net). In an encoder, of the direction that reads forwards; the
            other begins empty.

    Shapes: (B, T, D) -> (B, T, D). State: S, (B, H, K, V), in float32 at least; with `short_conv`
    the last inputs of the convolution.
    Raises BlockError where a grid arrives, where heads do not divide D, for a `head_width` or
    `state` of 1, and for a state to copy of another kind.
    """

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 8,
        head_width: Count | None = None,
        state: Count | None = None,
        decay: Literal["scalar", "vector"] = "scalar",
        chunk: Chunk = 64,
        short_conv: ShortKernel = 4,
        negative_eigenvalues: bool = False,
        scale_queries: bool = False,
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__(
            site,
            "gated_delta_net",
            heads=heads,
            head_width=head_width,
            state=state,
            chunk=chunk,
            short_conv=short_conv,
            negative_eigenvalues=negative_eigenvalues,
            scale_queries=scale_queries,
            initial_state=initial_state,
        )
        width, (_, key_width, value_width) = self.out.width, self.memory_shape
        decays, rank = (key_width, value_width) if decay == "vector" else (1, None)
        self.decays = nn.ModuleList(
            Decay(width, heads, decays, rank) for _ in range(self.directions)
        )
        self.gate = build_projection(width, self.directions * [heads * value_width], bias=False)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        parts, strengths, conv = self.read_parts(x, state, context.mask)
        pairs = zip(strengths, self.decays, strict=True)
        directions = [(*parts, strength, decay(x)) for strength, decay in pairs]
        outputs, after = self.scan_both(directions[0], directions[-1], state[:1], context.mask)
        gates = F.silu(self.gate(x)).chunk(self.directions, -1)
        return self.merge(sum_gated(gates, [self.normalise(y, x.dtype) for y in outputs])), (
            *after,
            *conv,
        )


class Decay(nn.Module):
    """log alpha = -exp(A) softplus(f(x) + b): a rate A for each head, and a b for each decay.

    rank: That of f; None where f is a matrix.
    """

    layouts: ClassVar = {"log_rate": "", "bias": ""}

    def __init__(self, width: int, heads: int, decays: int, rank: int | None) -> None:
        super().__init__()
        maps = [width, heads * decays] if rank is None else [width, rank, heads * decays]
        self.maps = nn.Sequential(
            *(nn.Linear(*pair, bias=False) for pair in itertools.pairwise(maps))
        )
        self.log_rate = nn.Parameter(torch.empty(heads, 1).uniform_(*RATE_RANGE).log())
        self.bias = nn.Parameter(inverse_softplus(random_dt(heads, decays)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the log decays: (B, T, D) -> (B, T, H decays), in float32 at least"""
        f = self.maps(x).unflatten(-1, self.bias.shape)  # (B, T, H, decays)
        f = f.to(state_dtype(f)) + self.bias
        return (-self.log_rate.exp() * F.softplus(f)).flatten(2)
