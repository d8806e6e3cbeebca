"""Layers as one node of a graph each: recurrent ones, of which PyTorch's export would unroll a
loop, and products with their bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._decomp import global_decomposition_table

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
Weights = list[Tensor]
"""Matrices of x and of h, and their biases: (n D, .), (n D,)"""


def _layer(kind: str, states: int) -> Callable[..., Any]:
    """Return an operator of one layer, which a graph keeps whole. It computes nothing itself."""
    names = ", ".join(f"Tensor s{at}" for at in range(states))
    outputs = ", ".join(["Tensor"] * (1 + states))
    schema = f"(Tensor x, {names}, Tensor[] weights) -> ({outputs})"

    def compute(x: Tensor, *states_and_weights: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError(f"{kind} stands for a node of a graph")

    def shapes(x: Tensor, *states_and_weights: Any) -> tuple[Tensor, ...]:
        *before, _ = states_and_weights
        y = x.new_empty(x.shape[0], x.shape[1], before[0].shape[-1])
        return y, *map(torch.empty_like, before)

    name = f"seqcomposer::{kind}"
    layer = torch.library.custom_op(name, compute, mutates_args=(), schema=schema)
    layer.register_fake(shapes)
    return layer


LSTM = _layer("lstm", states=2)
GRU = _layer("gru", states=1)
RNN_TANH = _layer("rnn_tanh", states=1)


def lstm(
    x: Tensor, state: list[Tensor], weights: Weights, *settings: bool | float
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of `aten::lstm` without a projection: x (T, B, D), h and c (1, B, D)."""
    y, h, c = LSTM(x, *state, weights)
    return y, h, c


def gru(x: Tensor, h: Tensor, weights: Weights, *settings: bool | float) -> tuple[Tensor, Tensor]:
    """One layer of `aten::gru`."""
    return _time_first(GRU, x, h, weights, batch_first=bool(settings[-1]))


def rnn_tanh(
    x: Tensor, h: Tensor, weights: Weights, *settings: bool | float
) -> tuple[Tensor, Tensor]:
    """One layer of `aten::rnn_tanh`."""
    return _time_first(RNN_TANH, x, h, weights, batch_first=bool(settings[-1]))


def _time_first(
    layer: Callable[..., Any], x: Tensor, h: Tensor, weights: Weights, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """Run a layer that wants positions first, (T, B, D)."""
    if not batch_first:
        y, h = layer(x, h, weights)
        return y, h
    y, h = layer(x.transpose(0, 1), h, weights)
    return y.transpose(0, 1), h


KERNELS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.lstm.input: lstm,
    torch.ops.aten.gru.input: gru,
    torch.ops.aten.rnn_tanh.input: rnn_tanh,
}


@contextmanager
def whole_layers() -> Iterator[None]:
    """Let a graph keep fused layers whole while it is made."""
    table = global_decomposition_table["post_autograd"]
    before = {kernel: table[kernel] for kernel in KERNELS}
    kernels = {kernel: kernel.py_kernels.pop(COMPOSITE, None) for kernel in KERNELS}
    try:
        for kernel, layer in KERNELS.items():
            table[kernel] = kernel.py_kernels[COMPOSITE] = layer
        yield
    finally:
        for kernel in KERNELS:
            table[kernel] = before[kernel]
            kernel.py_kernels[COMPOSITE] = kernels[kernel]
            if kernels[kernel] is None:
                del kernel.py_kernels[COMPOSITE]


def translations() -> dict[Any, Callable[..., Any]]:
    """Return the nodes of the layers in ONNX, by operator."""
    from onnxscript import opset20

    op: Any = opset20  # its types know no sequences
    named = torch.ops.seqcomposer

    def operands(weights: Any, order: list[int]) -> list[Any]:
        ordered = []
        for weight in weights[:4]:  # the gates' rows in PyTorch's order
            gates = op.Split(weight, num_outputs=len(order), _outputs=len(order))
            ordered.append(op.Concat(*(gates[at] for at in order), axis=0))
        w, u, b, c = ordered
        return [one_direction(x, 0) for x in (w, u, op.Concat(b, c, axis=0))]

    def one_direction(x: Any, axis: int) -> Any:
        return op.Unsqueeze(x, op.Constant(value_ints=[axis]))

    def without_direction(y: Any) -> Any:
        return op.Squeeze(y, op.Constant(value_ints=[1]))

    def to_lstm(x: Any, h: Any, c: Any, weights: Any) -> Any:
        w, u, b = operands(weights, [0, 3, 1, 2])  # i o f c
        y, h, c = op.LSTM(x, w, u, b, None, h, c, hidden_size=h.shape[2])
        return without_direction(y), h, c

    def to_gru(x: Any, h: Any, weights: Any) -> Any:
        w, u, b = operands(weights, [1, 0, 2])  # z r n
        y, h = op.GRU(x, w, u, b, None, h, hidden_size=h.shape[2], linear_before_reset=1)
        return without_direction(y), h

    def to_rnn(x: Any, h: Any, weights: Any) -> Any:
        w, u, b, c = weights
        parts = [one_direction(part, 0) for part in (w, u, op.Concat(b, c, axis=0))]
        y, h = op.RNN(x, *parts, None, h, hidden_size=h.shape[2])
        return without_direction(y), h

    def to_linear(x: Any, weight: Any, bias: Any = None) -> Any:
        """A product and its bias are one node for a matrix (N, D); other shapes are reshaped."""
        sizes = [size if isinstance(size, int) else -1 for size in x.shape]
        if bias is None or sizes.count(-1) > 1:  # the shape afterwards would be computed
            y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
            return y if bias is None else op.Add(y, bias)
        rows = op.Reshape(x, op.Constant(value_ints=[-1, sizes[-1]]))
        y = op.Gemm(rows, weight, bias, transB=1)
        return op.Reshape(y, op.Constant(value_ints=[*sizes[:-1], weight.shape[0]]))

    return {
        torch.ops.aten.linear.default: to_linear,
        named.lstm.default: to_lstm,
        named.gru.default: to_gru,
        named.rnn_tanh.default: to_rnn,
    }
