"""What kernels put aside while they run, and what oneDNN keeps of an LSTM, which their fakes do not show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LSTM = torch.ops.aten.mkldnn_rnn_layer.default
LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
CTC_BACKWARD = torch.ops.aten._ctc_loss_backward.Tensor
COPYING = {
    torch.ops.aten._softmax.default,
    torch.ops.aten._log_softmax.default,
    torch.ops.aten._softmax_backward_data.default,
    torch.ops.aten._log_softmax_backward_data.default,
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_layer_norm_backward.default,
    torch.ops.aten.embedding_dense_backward.default,
    LSTM_BACKWARD,
}
"""Operations that copy what they are given where it is not contiguous, for as long as they run."""
PUTS_ASIDE = {*COPYING, LSTM, CTC_BACKWARD}
"""Operations of which `scratch_bytes` knows something."""
PAGE, MERGED_ROWS = 4096, 128
"""What oneDNN aligns its buffers to; rows below which it multiplies the inputs of all positions of an LSTM at once."""


def fake_ctc_loss(log_p: Tensor, labels: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return costs and forward variables of CTC. log_p: (S, B, V), labels: (B, L) -> (B,), (B, S, 2 L + 1)"""
    frames, rows, _ = log_p.shape
    return log_p.new_empty(rows), log_p.new_empty(rows, frames, 2 * labels.shape[1] + 1)


def fake_cudnn_rnn(x: Tensor, weights: Any, stride: int, buffer: Any, h: Tensor, c: Any, mode: int, *rest: Any) -> Any:
    """Return what cuDNN's recurrent layers return, with what they keep for the backward pass.

    That they keep gates and output of each position is a guess, which is not documented. x: (T, B, I), h: (1, B, H)
    """
    gates = {2: 4, 3: 3}.get(mode, 1)  # by cuDNN's number of a layer: 2 is an LSTM, 3 a GRU
    y = x.new_empty(*x.shape[:2], h.shape[-1])
    reserve = x.new_empty(*x.shape[:2], (gates + 1) * (h if c is None else c).shape[-1])
    return y, torch.empty_like(h), x.new_empty(0) if c is None else torch.empty_like(c), reserve, x.new_empty(0)


def fake_cudnn_rnn_backward(x: Tensor, weights: Any, stride: int, buffer: Any, h: Tensor, c: Any, *rest: Any) -> Any:
    """Return gradients of the inputs, the state and the weights of cuDNN's recurrent layers."""
    before = (torch.empty_like(x), torch.empty_like(h), x.new_empty(0) if c is None else torch.empty_like(c))
    return *before, [torch.empty_like(weight) for weight in weights]


FAKES = {
    torch.ops.aten._ctc_loss.Tensor: fake_ctc_loss,
    torch.ops.aten._cudnn_rnn.default: fake_cudnn_rnn,
    torch.ops.aten._cudnn_rnn_backward.default: fake_cudnn_rnn_backward,
    CTC_BACKWARD: lambda _, log_p, *rest: torch.empty_like(log_p, memory_format=torch.contiguous_format),
}
"""Operations for which PyTorch has no fakes, or none without a GPU: from arguments to results."""


def scratch_bytes(function: Any, args: Any, output: Tensor) -> int:
    """Return the bytes that an operation puts aside until it is done. output: the first of its results"""
    copied = [one for one in args if isinstance(one, Tensor) and not one.is_contiguous()] if function in COPYING else []
    size = sum(one.numel() * one.element_size() for one in copied)
    if function is CTC_BACKWARD:
        return size + output.untyped_storage().nbytes()  # its kernel makes a second one
    if function not in (LSTM, LSTM_BACKWARD):
        return size
    x, (positions, rows, _), width = args[0], args[0].shape, args[2].shape[1]
    at_once = positions if function is LSTM_BACKWARD or rows < MERGED_ROWS else 1
    number, gates, state = x.element_size(), aligned_width(x, 4 * width), aligned_width(x, width)
    buffers = [at_once * rows * gates, rows * state, rows * state]
    weights = (x.shape[2] + width) * gates  # transposed; backward, their gradients
    if function is LSTM_BACKWARD:  # there the weights are copied where their rows are not aligned
        weights += sum(4 * width * aligned_width(x, one) for one in (x.shape[2], width) if aligned_width(x, one) != one)
    return size + weights * number + sum(whole_pages(one * number) for one in buffers)


def lstm_workspace(x: Tensor, y: Tensor) -> int:
    """Return the bytes that oneDNN 3.12 keeps of an LSTM for its backward pass. x: (T, B, I), y: (T, B, H)

    They are gates and outputs of each position, and what arrives at and leaves each: h twice, c, and as many gradients.
    """
    positions, rows, width = y.shape
    cells, states, exact = positions * rows, 2 * (positions + 1) * rows, max(4, y.element_size())
    wide, narrow = aligned_width(y, max(x.shape[-1], width)), aligned_width(y, width)
    forward = [cells * aligned_width(y, 4 * width), cells * narrow, states * wide, states * width]
    gradients = [states * wide, states * wide, states * width]
    return sum(whole_pages(one * y.element_size()) for one in forward) + sum(
        whole_pages(one * exact) for one in gradients
    )


def aligned_width(x: Tensor, width: int) -> int:
    """Return how long oneDNN makes rows of so many numbers of the type of x: whole cache lines, no multiple of 256."""
    line = 64 // x.element_size()
    aligned = -(-width // line) * line
    return aligned if aligned % 256 else aligned + line


def whole_pages(size: int) -> int:
    """Return a size in bytes, rounded up to whole pages."""
    return -(-size // PAGE) * PAGE
