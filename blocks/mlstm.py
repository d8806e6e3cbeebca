"""`mlstm`: an LSTM whose cell is a matrix, with exponential gates."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import join_heads, split_heads
from blocks.core.contract import Chunk, Context, Count, InitialState, ShortKernel, Site, State
from blocks.core.loops import is_free, is_one, over_positions
from blocks.core.mixer import Mixer, Parts, build_projection, mask_heads, sum_gated, width_of_heads
from blocks.core.outer_product_state import scan_outer_products

SMALLEST = 1e-20
"""What is divided by is not less, however large the input gates are: its reciprocal is finite in
single precision.
"""


class Mlstm(Mixer):
    """The mLSTM of xLSTM: a matrix for a memory, with exponential gates (Beck et al. 2024,
    equations 15 and 19 to 27).

    For each head C_t = f_t C_(t-1) + i_t k_t v_t^T, n_t = f_t n_(t-1) + i_t k_t,
    h_t = o_t C_t^T q_t / max(|n_t^T q_t|, 1), y_t = W h_t + b, with i_t = exp(w_i x_t + b_i),
    f_t = sigmoid(w_f x_t + b_f) or exp, o_t = sigmoid(W_o x_t + b_o), q = W_q x + b_q, k = (W_k x +
    b_k) / sqrt(state), v = W_v x + b_v.
    The state is C and n times e^(-ceil(m)), with m_t = max(log f_t + m_(t-1), log i_t), so that
    nothing overflows. At first f is between 0.95 and 0.998 from head to head, as of the authors'
    code, which has the sigmoid.
    It is the cell alone. The authors' layer reads its gates from q, k and v, normalises each head
    before W, and adds a skip with a SiLU gate (figure 10): `norm` and `residual` around this block
    stand behind W, and are not the same, so weights published for xLSTM do not fit here.
    In an encoder the same runs over each row from its end, with its own i, f and o, and both h are
    added before W: a position's own k v^T is counted in both directions.

    Settings:
        heads: How many heads.
        head_width: The width of a head's values; the width that arrives, divided by the heads,
            unless given.
        state: The width of a head's queries and keys; `head_width` unless given.
        forget_gate: sigmoid | exp.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions of x a depthwise convolution with SiLU reads, of which then q
            and k are made (figure 10); 0 for none.
        initial_state: zeros | learned | a memory (its mean, projected to C and n) | {copy:
            MEMORY.x} (the last state of an mlstm). In an encoder, of the direction that reads
            forwards.

    Shapes: (B, T, D) -> (B, T, D). State: C and n as above, side by side, (B, H, state, head_width
    + 1), and m (B, H), in float32 at least; with `short_conv` the last positions of x.
    Raises BlockError where a grid arrives, where heads do not divide D, and for a state to copy of
    another kind.
    """

    normalised = True

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 4,
        head_width: Count | None = None,
        state: Count | None = None,
        forget_gate: Literal["sigmoid", "exp"] = "sigmoid",
        chunk: Chunk = 64,
        short_conv: ShortKernel = 4,
        initial_state: InitialState = "zeros",
    ) -> None:
        width = site.sequence("mlstm").width
        head_width = width_of_heads(site, heads, head_width)
        key_width = state or head_width
        super().__init__(
            site,
            "mlstm",
            heads=heads,
            key_width=key_width,
            head_width=head_width,
            chunk=chunk,
            short_conv=short_conv,
            kept_width=width if short_conv else 0,
            initial_state=initial_state,
        )
        self.scale, self.forget_gate = key_width**-0.5, forget_gate
        self.query_key = build_projection(width, 2 * [heads * key_width])
        self.value = build_projection(width, [heads * head_width])
        self.input_forget = nn.Linear(width, self.directions * 2 * heads)
        self.gate = build_projection(width, self.directions * [heads * head_width])
        self.merge = build_projection(heads * head_width, [width])
        self._init_gates()

    def _init_gates(self) -> None:
        """Begin as the authors' code does: gates that know nothing of x, and forget little."""
        nn.init.zeros_(self.input_forget.weight)
        for i, f in self.input_forget.bias.detach().view(self.directions, 2, -1):
            nn.init.normal_(i, std=0.1)
            biases = torch.linspace(3.0, 6.0, len(f))
            f.copy_(F.logsigmoid(biases) if self.forget_gate == "exp" else biases)

    def extra_state(self, memory: Tensor) -> tuple[Tensor, ...]:
        return (memory.new_zeros(memory.shape[:2]),)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        convolved, conv = self.convolve(x, state, context.mask)
        parts = (*self.query_key(convolved).chunk(2, -1), self.value(x))
        gates = [
            gate.chunk(2, -1) for gate in self.input_forget(x).chunk(self.directions, -1)
        ]  # (B, T, H) each
        outputs, after = self.scan_both(
            (*parts, *gates[0]), (*parts, *gates[-1]), state, context.mask
        )
        output_gates = torch.sigmoid(self.gate(x)).chunk(self.directions, -1)
        return self.merge(sum_gated(output_gates, [y.to(x.dtype) for y in outputs])), (
            *after,
            *conv,
        )

    def scan(
        self, parts: Parts, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        query, key, value, log_input, forget = parts
        memory, before = state[:2]  # (B, H, K, V + 1), (B, H)
        forget, log_input = forget.to(memory.dtype), log_input.to(memory.dtype)
        log_forget = F.logsigmoid(forget) if self.forget_gate == "sigmoid" else forget
        log_forget = mask_heads(log_forget, mask, self.heads)[..., 0]  # (B, H, T)
        log_input = log_input.masked_fill(~mask[..., None], -math.inf).mT  # (B, H, T)
        # C, n and 1 are divided by the same e^ceil(m), so no gradient goes through it
        with torch.no_grad():
            m = stabilizers(log_input, log_forget, before)  # (B, H, T)
            scale = m.ceil()  # of whole numbers the differences are exact
            since = torch.cat((before[..., None].ceil(), scale[..., :-1]), -1)  # (B, H, T)
        inputs = (log_input - scale).exp()[..., None] * self.scale  # (B, H, T, 1)
        sums, memory = scan_outer_products(
            split_heads(query, self.heads),
            mask_heads(key.to(memory.dtype), mask, self.heads) * inputs,
            self.values_and_ones(value),
            (log_forget + (since - scale))[..., None],
            memory,
            chunk=self.chunk,
        )
        divisor = torch.maximum(sums[..., -1].abs(), (-scale).exp()).clamp(
            min=SMALLEST
        )  # (B, H, T)
        return join_heads(sums[..., :-1] / divisor[..., None]), (memory, m[..., -1])


def stabilizers(log_input: Tensor, log_forget: Tensor, before: Tensor) -> Tensor:
    """Return m_t = max(log f_t + m_(t-1), log i_t) of every position. (B, H, T) twice, (B, H) ->
    (B, H, T)
    """
    forgotten = log_forget.cumsum(-1)
    return forgotten + torch.maximum(largest_so_far(log_input - forgotten), before[..., None])


def largest_so_far(x: Tensor) -> Tensor:
    """Return the largest of each position and those before it: (..., T)"""
    if is_one(x.shape[-1]):
        return x
    if not is_free(x.shape[-1]):
        return x.cummax(-1).values

    def step(before: Tensor, one: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        largest = torch.maximum(before, one)
        return largest, (largest,)

    return over_positions(step, torch.full_like(x[..., 0], -math.inf), (x,), dim=-1)[1][0]
