"""Recurrent layers of one direction (LSTM, GRU, tanh, minGRU; with layer norm): fused for many
positions, or a cell.

No kernel is told lengths: they would have to be on the CPU. Padding is on the right, so no real
position sees it, and only the last state needs care: h is read where each row ends, c is kept
through the padding by saturated gates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import _VF, Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import State
from blocks.core.functional import apply_dropout
from blocks.core.linear_recurrence import linear_recurrence
from blocks.core.loops import is_free, is_one, over_positions

Cell = Literal["lstm", "gru", "tanh", "min_gru"]
"""lstm (Hochreiter & Schmidhuber 1997) | gru (Cho et al. 2014) | tanh (Elman 1990) | min_gru (Feng
et al. 2024).
"""

OutputActivation = Literal["tanh", "none"]
"""What an LSTM with normalised gates applies to its cell before the output gate."""

ONEDNN_HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether this CPU multiplies bfloat16 as oneDNN needs it (AVX-512 or better)."""

SATURATED = 1e4
"""sigmoid(-SATURATED) is 0 and sigmoid(SATURATED) is 1 in every precision, and both have the
gradient 0.
"""


def reverse(x: Tensor, mask: Tensor) -> Tensor:
    """Reverse each row within its own length; its padding stays on the right. x: (B, T, D), mask:
    (B, T)
    """
    batch, length = mask.shape
    place = torch.arange(length, device=mask.device)  # (T,)
    opposite = torch.where(mask, mask.sum(1, keepdim=True) - 1 - place, place)  # (B, T)
    row = torch.arange(batch, device=mask.device)[:, None] * length
    return x.flatten(0, 1).index_select(0, (row + opposite).flatten()).view_as(x)


def last_real(x: Tensor, mask: Tensor, otherwise: Tensor) -> Tensor:
    """Return x at each row's last real position, `otherwise` (B, D) in a row without one. x: (B, T,
    D) -> (B, D)
    """
    if is_one(x.shape[1]):
        return masked_update(mask[:, 0], x[:, 0], otherwise)
    count = mask.sum(1)  # (B,)
    row = torch.arange(x.shape[0], device=x.device)
    return masked_update(count > 0, x[row, (count - 1).clamp(min=0)], otherwise)


def masked_update(real: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """Return `after` in the rows that are real (B,), `before` in the others, in the precision of
    `before`.
    """
    return torch.where(real[:, None], after.to(before.dtype), before)


class RecurrentLayer(nn.Module):
    """One layer in one direction. `sizes` are the widths of the leaves of its state, the first of
    them its output's.

    `weight_dropout` is the rate at which weights from h to h are dropped, the same at all positions
    of a call.
    """

    sizes: tuple[int, ...]
    weight_dropout = 0.0

    def drop(self, recurrent: Tensor) -> Tensor:
        """Apply dropout to a matrix from h to h (DropConnect: Merity et al. 2018, section 2)."""
        return apply_dropout(recurrent, self.weight_dropout, self.training)

    def dropped(self, recurrent: nn.Linear) -> Callable[[Tensor], Tensor]:
        """Return the map with dropout on its matrix; itself, whose form may be another in decoding,
        without.
        """
        if not (self.training and self.weight_dropout):
            return recurrent
        weight = self.drop(recurrent.weight)
        return lambda h: F.linear(h, weight)

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        """Run the layer: x (B, T, D), state, mask (B, T) -> (B, T, sizes[0]), last state."""
        raise NotImplementedError


class FusedLayer(RecurrentLayer):
    """What the fused kernels share: W and U with the gates' rows one below the other, and a bias
    for each.

    torch's own modules for them are not used, since the compiler refuses to look into those.
    """

    def __init__(
        self, arriving: int, width: int, gates: int, projection: int | None = None
    ) -> None:
        super().__init__()
        self.sizes = (projection or width,)
        self.arriving = nn.Parameter(torch.empty(gates * width, arriving))
        self.recurrent = nn.Parameter(torch.empty(gates * width, self.sizes[0]))
        self.arriving_bias = nn.Parameter(torch.zeros(gates * width))
        self.recurrent_bias = nn.Parameter(torch.zeros(gates * width))
        self.projection = (
            None if projection is None else nn.Parameter(torch.empty(projection, width))
        )
        init_per_gate(self.arriving, width, nn.init.xavier_uniform_)
        init_per_gate(self.recurrent, width, nn.init.orthogonal_)
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection)

    def weights(self) -> tuple[Tensor, ...]:
        """Return the weights in the kernels' order."""
        return self.arriving, self.drop(self.recurrent), self.arriving_bias, self.recurrent_bias


class LSTMLayer(FusedLayer):
    """LSTM with a forget gate (Gers et al. 2000), with a projection if wanted (Sak et al. 2014)."""

    def __init__(self, arriving: int, width: int, projection: int | None) -> None:
        super().__init__(arriving, width, 4, projection)
        self.sizes = (*self.sizes, width)
        # to forget little before training
        nn.init.ones_(self.arriving_bias.detach()[width : 2 * width])

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        x = x.to(self.arriving.dtype)
        if is_one(x.shape[1]):
            return self._one(x, state, mask)
        if self.projection is not None and is_free(x.shape[1]):
            return self._loop(x, state, mask)  # no exported graph has a kernel with a projection
        return self._many(x, state, mask)

    def _loop(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        def step(state: State, x: Tensor, real: Tensor) -> tuple[State, tuple[Tensor]]:
            y, after = self._one(x[:, None], state, real[:, None])
            return after, (y[:, 0],)

        state, (y,) = over_positions(step, state, (x, mask))
        return y, state

    def _one(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        h, c = state
        if self.projection is None:
            y, cell = _VF.lstm_cell(x[:, 0], (h, c), *self.weights())
        else:
            arriving, recurrent, arriving_bias, recurrent_bias = self.weights()
            gates = F.linear(x[:, 0], arriving, arriving_bias)
            i, f, g, o = (gates + F.linear(h, recurrent, recurrent_bias)).chunk(4, dim=-1)
            cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            y = F.linear(torch.sigmoid(o) * torch.tanh(cell), self.projection)
        return y[:, None], (masked_update(mask[:, 0], y, h), masked_update(mask[:, 0], cell, c))

    def _many(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        h, c = state
        closed = self._closed_gates()  # (4 D, P)
        x, padding = (
            x.transpose(0, 1),
            (~mask).to(x.dtype).t()[..., None],
        )  # (T, B, D), (T, B, 1): the kernels' layout
        padding = F.pad(padding, (0, closed.shape[1] - 1))  # (T, B, P)
        grad = torch.is_grad_enabled()
        if grad and torch.compiler.is_compiling():
            # the compiler chooses a kernel without gradients for an input that needs none, though
            # the weights do
            padding = padding + 0.0 * self.arriving_bias[0]
        pieces = [torch.cat((self.arriving, closed), 1), *self.weights()[1:]]
        if self.projection is not None:
            pieces.append(self.projection)
        x, h0, c0, *pieces = cast_as_autocast(
            torch.cat((x, padding), 2), as_layers(h), as_layers(c), *pieces
        )
        with without_autocast_on_gpu(x), suppress_onednn_warning(self.projection is not None):
            y, _, cell = _VF.lstm(
                x, (h0, c0), flatten_weights(pieces), True, 1, 0.0, grad, False, False
            )
        y = y.transpose(0, 1)
        return y, (last_real(y, mask, h), cell[0].to(c.dtype))

    def _closed_gates(self) -> Tensor:
        """Return the weights of the padding: input gate shut, forget gate open, so that c stays as
        it is. (4 D, P)

        On a GPU columns of zeros follow, since its fast kernels want a number of columns that 8
        divides.
        """
        width = self.sizes[1]
        columns = -(self.arriving.shape[1] + 1) % 8 + 1 if self.arriving.is_cuda else 1
        weights = self.arriving.new_zeros(4 * width, columns)
        weights[:width, 0] = -SATURATED
        weights[width : 2 * width, 0] = SATURATED
        return weights


class TanhLayer(FusedLayer):
    """h' = tanh(W x + U h + b)"""

    many: Callable[..., Any] = staticmethod(_VF.rnn_tanh)
    one: Callable[..., Any] = staticmethod(_VF.rnn_tanh_cell)

    def __init__(self, arriving: int, width: int, gates: int = 1) -> None:
        super().__init__(arriving, width, gates)

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        x = x.to(self.arriving.dtype)
        if x.shape[1] == 1:
            after = self.one(x[:, 0], h, *self.weights())
            return after[:, None], (masked_update(mask[:, 0], after, h),)
        grad = torch.is_grad_enabled()
        operands = x, as_layers(h), *self.weights()
        # a CPU has this kernel
        x, before, *weights = cast_as_autocast(*operands) if x.is_cuda else operands
        with without_autocast_on_gpu(x):
            y, _ = self.many(x, before, flatten_weights(weights), True, 1, 0.0, grad, False, True)
        return y, (last_real(y, mask, h),)


class GRUResetAfter(TanhLayer):
    """A GRU with reset after the matrix product, the form of torch and cuDNN.

    r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + r * (U_n h + c_n)); h' = (1 - z) n + z h
    """

    many, one = staticmethod(_VF.gru), staticmethod(_VF.gru_cell)

    def __init__(self, arriving: int, width: int) -> None:
        super().__init__(arriving, width, 3)


class GRUResetBefore(RecurrentLayer):
    """A GRU with reset before the matrix product, a loop over the positions (Cho et al. 2014,
    equations 5-8).

    r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + U_n (r * h)); h' = (1 - z) n + z h
    """

    def __init__(self, arriving: int, width: int) -> None:
        super().__init__()
        self.sizes = (width,)
        self.arriving = nn.Linear(arriving, 3 * width)
        self.gates = nn.Linear(width, 2 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)
        init_per_gate(self.arriving.weight, width, nn.init.xavier_uniform_)
        init_per_gate(self.gates.weight, width, nn.init.orthogonal_)
        nn.init.orthogonal_(self.candidate.weight)
        nn.init.zeros_(self.arriving.bias)

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        width = self.sizes[0]
        recur, recur_candidate = self.dropped(self.gates), self.dropped(self.candidate)
        arriving = self.arriving(x.to(self.arriving.weight.dtype)).split((2 * width, width), dim=-1)

        def step(h: Tensor, gates: Tensor, candidate: Tensor) -> tuple[Tensor, tuple[Tensor]]:
            r, z = torch.sigmoid(gates + recur(h)).chunk(2, dim=-1)
            n = torch.tanh(candidate + recur_candidate(r * h))
            h = n + z * (h - n)
            return h, (h,)

        _, (y,) = over_positions(step, state[0], arriving)
        return y, (last_real(y, mask, state[0]),)


class MinGRU(RecurrentLayer):
    """z = sigmoid(W x + b); h' = (1 - z) h + z (V x + c), all positions at once (Feng et al. 2024,
    section 3.1).

    The state is in float32 at least.
    """

    def __init__(self, arriving: int, width: int) -> None:
        super().__init__()
        self.sizes = (width,)
        self.arriving = nn.Linear(arriving, 2 * width)
        init_per_gate(self.arriving.weight, width, nn.init.xavier_uniform_)
        nn.init.zeros_(self.arriving.bias)

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        arriving = self.arriving(x.to(self.arriving.weight.dtype))
        gate, candidate = arriving.to(torch.promote_types(arriving.dtype, torch.float32)).chunk(
            2, dim=-1
        )
        real = mask[..., None]
        decay = torch.sigmoid(-gate).masked_fill(~real, 1.0)
        entering = (torch.sigmoid(gate) * candidate).masked_fill(~real, 0.0)
        y = linear_recurrence(decay, entering, h)
        return y.to(arriving.dtype), (y[:, -1],)


def build_layer(
    cell: Cell, reset: str, arriving: int, width: int, projection: int | None
) -> RecurrentLayer:
    """Build one layer in one direction."""
    if cell == "lstm":
        return LSTMLayer(arriving, width, projection)
    if cell == "tanh":
        return TanhLayer(arriving, width)
    if cell == "min_gru":
        return MinGRU(arriving, width)
    return GRUResetAfter(arriving, width) if reset == "after" else GRUResetBefore(arriving, width)


def cast_as_autocast(*operands: Tensor) -> tuple[Tensor, ...]:
    """Cast the operands of a fused kernel to the type of autocast, where autocast would ask for a
    wrong kernel.

    On a GPU it asks for float16 whatever its type is, in which small gradients vanish; on a CPU
    whose oneDNN has no bfloat16, for an LSTM of oneDNN in it (PyTorch 2.13).
    """
    x = operands[0]
    is_wrong = x.is_cuda or (x.is_cpu and not ONEDNN_HAS_BFLOAT16)
    if not (is_wrong and torch.is_autocast_enabled(x.device.type)):
        return operands
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(operand.to(dtype) for operand in operands)


def without_autocast_on_gpu(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast leaves the operands of a fused kernel as they are."""
    is_wrong = x.is_cuda and torch.is_autocast_enabled("cuda")
    return torch.autocast("cuda", enabled=False) if is_wrong else nullcontext()


def suppress_onednn_warning(projected: bool) -> AbstractContextManager[object]:
    """Return a context in which oneDNN does not warn that another kernel computes an LSTM with a
    projection.
    """
    # the compiler cannot trace the warnings module
    if not projected or torch.compiler.is_compiling():
        return nullcontext()
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def as_layers(h: Tensor) -> Tensor:
    """Return the state of one layer as the kernels want it: (1, B, D), contiguous, which cuDNN
    insists on.
    """
    return h[None].contiguous()


def flatten_weights(weights: Sequence[Tensor]) -> list[Tensor]:
    """Copy the weights into one piece of memory on a GPU, where cuDNN would else copy them and
    warn.
    """
    if not weights[0].is_cuda:
        return list(weights)
    pieces = torch.cat([weight.flatten() for weight in weights]).split(
        [weight.numel() for weight in weights]
    )
    return [piece.view_as(weight) for piece, weight in zip(pieces, weights, strict=True)]


def init_per_gate(weight: Tensor, rows: int, initialise: Callable[[Tensor], Tensor]) -> None:
    """Initialise each gate's rows on their own."""
    for gate in weight.detach().split(rows):
        initialise(gate)


class LayerNormLayer(RecurrentLayer):
    """Layer normalisation of the sum, per gate (Chen et al. 2018, section 3).

    LN_k(a) = g_k (a - mean) / sqrt(var + 1e-5) + b_k, of the sum a of what arrives and what recurs.
    Ba et al. 2016 normalise W x, U h and c each on its own, which is not here.
    `gain` and `bias` have a row for each gate; W and U have the gates' rows one below the other.
    """

    layouts: ClassVar = {"gain": "", "bias": ""}

    def __init__(self, arriving: int, width: int, gates: int) -> None:
        super().__init__()
        self.sizes = (width,)
        self.arriving = nn.Parameter(torch.empty(gates * width, arriving))
        self.recurrent = nn.Parameter(torch.empty(gates * width, width))
        self.gain = nn.Parameter(torch.ones(gates, width))
        self.bias = nn.Parameter(torch.zeros(gates, width))
        init_per_gate(self.arriving, width, nn.init.xavier_uniform_)
        init_per_gate(self.recurrent, width, nn.init.orthogonal_)

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        recurrent = self.drop(self.recurrent)
        arriving = F.linear(x.to(self.arriving.dtype), self.arriving)  # (B, T, gates D)

        def step(state: State, one: Tensor, real: Tensor) -> tuple[State, tuple[Tensor]]:
            after = self.step(one, state, recurrent)
            state = tuple(
                masked_update(real, new, old) for new, old in zip(after, state, strict=True)
            )
            return state, (state[0],)

        state, (y,) = over_positions(step, state, (arriving, mask))
        return y, state

    def step(self, arriving: Tensor, state: State, recurrent: Tensor) -> tuple[Tensor, ...]:
        """Return the state after one position. arriving: W x (B, gates D), recurrent: U"""
        raise NotImplementedError

    def norm(self, gates: Tensor, first: int = 0) -> tuple[Tensor, ...]:
        """Normalise each gate on its own, row `first` first: (B, n D) -> n times (B, D)"""
        width = self.sizes[0]
        normalised = F.layer_norm(gates.unflatten(-1, (-1, width)), (width,))  # (B, n, D)
        rows = slice(first, first + normalised.shape[-2])
        return torch.addcmul(self.bias[rows], normalised, self.gain[rows]).unbind(-2)


class LayerNormLSTM(LayerNormLayer):
    """i, f, o = sigmoid(LN(W x + U h)); c' = f c + i tanh(LN_g(W_g x + U_g h)).

    h' = o tanh(c'), or o c' without the activation.
    """

    def __init__(self, arriving: int, width: int, output_activation: OutputActivation) -> None:
        super().__init__(arriving, width, 4)
        self.sizes, self.output_activation = (width, width), output_activation
        nn.init.ones_(self.bias.detach()[1])  # to forget little before training

    def step(self, arriving: Tensor, state: State, recurrent: Tensor) -> tuple[Tensor, ...]:
        h, c = state
        i, f, g, o = self.norm(arriving + F.linear(h, recurrent))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * (torch.tanh(c) if self.output_activation == "tanh" else c), c


class LayerNormGRU(LayerNormLayer):
    """r, z = sigmoid(LN(W x + U h)); h' = (1 - z) n + z h, with n = tanh(LN_n(W_n x + U_n (r h)))
    for reset before, n = tanh(LN_n(W_n x + r U_n h)) for reset after.
    """

    def __init__(self, arriving: int, width: int, reset: str) -> None:
        super().__init__(arriving, width, 3)
        self.after = reset == "after"

    def step(self, arriving: Tensor, state: State, recurrent: Tensor) -> tuple[Tensor, ...]:
        (h,) = state
        width = self.sizes[0]
        gates, candidate = arriving.split((2 * width, width), dim=-1)
        recurrent, inner = recurrent.split((2 * width, width))
        r, z = (torch.sigmoid(gate) for gate in self.norm(gates + F.linear(h, recurrent)))
        read = r * F.linear(h, inner) if self.after else F.linear(r * h, inner)
        n = torch.tanh(self.norm(candidate + read, 2)[0])
        return (n + z * (h - n),)


class LayerNormTanh(LayerNormLayer):
    """h' = tanh(LN(W x + U h))"""

    def __init__(self, arriving: int, width: int) -> None:
        super().__init__(arriving, width, 1)

    def step(self, arriving: Tensor, state: State, recurrent: Tensor) -> tuple[Tensor, ...]:
        return (torch.tanh(self.norm(arriving + F.linear(state[0], recurrent))[0]),)


def build_layer_norm_layer(
    cell: Cell, reset: str, output_activation: OutputActivation, arriving: int, width: int
) -> RecurrentLayer:
    """Build one layer in one direction."""
    if cell == "lstm":
        return LayerNormLSTM(arriving, width, output_activation)
    return (
        LayerNormTanh(arriving, width) if cell == "tanh" else LayerNormGRU(arriving, width, reset)
    )
