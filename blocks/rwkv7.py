"""`rwkv7`: a state that each position decays, corrects and writes by vectors of its own, read by a
receptance.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blocks.core.attention import join_heads, split_heads
from blocks.core.contract import (
    BlockError,
    Chunk,
    Context,
    Count,
    Fix,
    InitialState,
    Named,
    Output,
    Remove,
    Result,
    Site,
    State,
)
from blocks.core.delta_rule import DeltaInputs, scan_delta_rule, unit_length
from blocks.core.functional import last_positions
from blocks.core.mixer import (
    HeadNorm,
    Mixer,
    Parts,
    build_projection,
    mask_heads,
    sum_gated,
    width_of_heads,
)
from blocks.core.named_inputs import resolve_streams
from blocks.core.scope import HIDDEN

FASTEST = 0.6065306597126334
"""exp(-1/2): a decay is above exp(-exp(-1/2)) = 0.545."""
VALUES = f"rwkv7{HIDDEN}values of "
"""What the name of a first block's values begins with."""
MIXES = 6
"""r, w, k, v, a and g: each reads its own mixture of a position and the one before it."""


class Rwkv7(Mixer):
    """Time mixing of RWKV-7 (Peng et al. 2025, arXiv 2503.14456, section 4.1), of one layer.

    With x^j_t = x_t + mu^j (x_(t-1) - x_t) for each j of r, w, k, v, a, g: r, k, v linear in
    theirs, log w = -exp(-1/2) sigmoid(f_w(x^w)), a = sigmoid(f_a(x^a)), g = W_2 sigmoid(W_1 x^g),
    kappa = k * xi of length 1 in each head, and k' = k (1 + alpha (a - 1)),
    S_t = (diag(w_t) - (a_t kappa_t) kappa_t^T) S_(t-1) + k'_t v_t^T,
    y_t = W_o (g_t (GroupNorm(S_t^T r_t) + (sum of r_t rho k'_t) v_t)), f of `rank` with tanh for w,
    without for a. With `value_residual`, as in the paper, v = v' + nu (v'_1 - v') in all but the
    first of the blocks that have it, with v' linear in x^v, v'_1 that of the first, and nu =
    sigmoid(f_nu(x^v)).
    The first numbers of the maps are not the authors': Xavier's, and mixes drawn evenly, where
    theirs depend on the layer, with an output of 0.
    In an encoder the same runs over each row from its end, with its own w, a, and g; both are added
    before W_o, and a position's own v is written in both.

    Settings:
        heads: How many heads; they divide the width that arrives, unless `head_width` is given.
        head_width: The width of a head; the width that arrives, divided by the heads, unless given.
            2 or more.
        rank: That of f_w, f_a, and of the gate.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of an rwkv7). In an encoder, of the direction that reads forwards; the other
            begins empty.
        value_residual: Whether the values of the first rwkv7 that has it, in the same encoder or
            decoder, are mixed into those of the others that have it. A `repeat` whose iterations
            share their parameters counts as one.

    Shapes: (B, T, D) -> (B, T, D). State: S, (B, H, V, V), in float32 at least, and the last x, (B,
    1, D).
    Raises BlockError where a grid arrives, where heads do not divide D, for heads of one feature,
    for a state to copy of another kind, and for `value_residual` where the first block's values
    have another width or other positions.
    """

    layouts: ClassVar = {"shift": "", "bonus": ""}

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 8,
        head_width: Count | None = None,
        rank: Count = 32,
        chunk: Chunk = 64,
        initial_state: InitialState = "zeros",
        value_residual: bool = False,
    ) -> None:
        width = site.sequence("rwkv7").width
        head_width = width_of_heads(site, heads, head_width)
        super().__init__(
            site,
            "rwkv7",
            heads=heads,
            key_width=head_width,
            head_width=head_width,
            chunk=chunk,
            short_conv=0,
            kept_width=width,
            initial_state=initial_state,
        )
        inner = heads * head_width
        self.shift = nn.Parameter(torch.rand(MIXES, width))
        self.receive, self.key, self.value = (
            build_projection(width, [inner], bias=False) for _ in range(3)
        )
        self.rates = nn.ModuleList(Rates(width, rank, inner) for _ in range(self.directions))
        self.key_scale = nn.Parameter(
            torch.full((inner,), 0.71)
        )  # 0.71, -0.04 and 1.02 are about the authors' first values
        self.bonus = nn.Parameter(torch.full((heads, head_width), -0.04))
        self.norm = HeadNorm(heads, head_width, eps=1e-5 * head_width)
        self.merge = build_projection(inner, [width], bias=False)
        self.values_read, self.values_given = "", ""
        self.value_mix: nn.Module = nn.Identity()
        if value_residual:
            self._share_values(site, rank, inner)

    def _share_values(self, site: Site, rank: int, inner: int) -> None:
        """Read the values of the first block that shares them, or be that."""
        first = next((name for name in site.names.visible if name.startswith(VALUES)), "")
        if not first:
            self.values_given = f"{VALUES}{'.'.join(map(str, site.path))}"
            site.names.define(self.values_given, Named(site.stream._replace(width=inner)))
            return
        (stream,) = resolve_streams(site, [first], "value_residual")
        if stream.width != inner:
            message = (
                f"the values of the first `rwkv7` are {stream.width} wide, and those here {inner}"
            )
            words = "write the same `heads` and `head_width` in both, or remove `value_residual`"
            fix = Fix(words, Remove(("value_residual",)))
            raise BlockError("value_residual", message, code="width", fix=fix)
        self.values_read = first
        down, up = (
            build_projection(self.out.width, [rank], bias=False),
            build_projection(rank, [inner]),
        )
        nn.init.ones_(up.bias)
        self.value_mix = nn.Sequential(down, up, nn.Sigmoid())

    def start(self, x: Tensor, context: Context) -> State:
        state = super().start(x, context)
        return (
            state if self.initial.copied else (*state, x.new_zeros(x.shape[0], 1, self.out.width))
        )

    def forward(self, x: Tensor, state: State, context: Context) -> Result:
        memory, last = state
        since = torch.cat((last.to(x.dtype), x), 1)  # (B, 1 + T, D)
        of_r, of_w, of_k, of_v, of_a, of_g = (
            torch.lerp(x, since[:, :-1], mix) for mix in self.shift.to(x.dtype)
        )
        r, k, v = self.receive(of_r), self.key(of_k), self.value(of_v)  # (B, T, H V)
        if self.values_read:
            v = torch.lerp(
                v, context.read(self.values_read).states.to(v.dtype), self.value_mix(of_v)
            )
        directions, gates = [], []
        for rates in self.rates:
            log_decay, correction, scale, gate = rates(of_w, of_a, of_g)
            directions.append((r, k, v, log_decay, correction, scale))
            gates.append(gate)
        outputs, after = self.scan_both(directions[0], directions[-1], (memory,), context.mask)
        read = [
            self.norm(y, x.dtype) + self.own_value(parts)
            for y, parts in zip(outputs, directions, strict=True)
        ]
        last = last_positions(since, context.mask.sum(1), 1).to(last.dtype)
        y, after = self.merge(sum_gated(gates, read)), (*after, last)
        return (
            (y, after, {self.values_given: Output(v, context.mask)})
            if self.values_given
            else (y, after)
        )

    def own_value(self, parts: Parts) -> Tensor:
        """Return a position's own value, as often as its receptance finds its key: (B, T, H V)"""
        r, k, v, _, _, scale = parts
        products = (r * k * scale).unflatten(-1, (self.heads, -1)) * self.bonus  # (B, T, H, V)
        return (products.sum(-1, keepdim=True) * v.unflatten(-1, (self.heads, -1))).flatten(2)

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """parts: r, k, v, the log decays, a, and what k is multiplied by: (B, T, H V) each"""
        (memory,) = state
        r, k, v, log_decay, correction, scale = parts
        kappa = unit_length(
            split_heads((k * self.key_scale).to(memory.dtype), self.heads)
        )  # (B, H, T, V)
        delta_parts = DeltaInputs(
            split_heads(r, self.heads),
            mask_heads(k * scale, mask, self.heads),
            split_heads(v, self.heads),
            read=kappa,
            write=-kappa * mask_heads(correction, mask, self.heads),
            log_decay=mask_heads(log_decay.to(memory.dtype), mask, self.heads),
        )
        y, memory = scan_delta_rule(delta_parts, memory, chunk=self.chunk)
        return join_heads(y), (memory,)


class Rates(nn.Module):
    """Decays, rates of correction, factors of keys, and the gate, of one direction."""

    def __init__(self, width: int, rank: int, inner: int) -> None:
        super().__init__()
        decay, correction = nn.Linear(rank, inner), nn.Linear(rank, inner)
        self.decay = nn.Sequential(build_projection(width, [rank], bias=False), nn.Tanh(), decay)
        self.correction = nn.Sequential(build_projection(width, [rank], bias=False), correction)
        self.gate = nn.Sequential(
            build_projection(width, [rank], bias=False),
            nn.Sigmoid(),
            build_projection(rank, [inner], bias=False),
        )
        self.replacement = nn.Parameter(torch.full((inner,), 1.02))
        with torch.no_grad():
            decay.bias.copy_(torch.linspace(-6.0, 0.0, inner))  # from slow to fast
            correction.bias.fill_(-0.19)

    def forward(
        self, of_w: Tensor, of_a: Tensor, of_g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B, T, D) each -> log w, a, 1 + alpha (a - 1), and g, (B, T, H V) each"""
        log_decay = -FASTEST * torch.sigmoid(self.decay(of_w))
        correction = torch.sigmoid(self.correction(of_a))
        return log_decay, correction, 1.0 + self.replacement * (correction - 1.0), self.gate(of_g)
