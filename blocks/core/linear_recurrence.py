"""Element-wise linear recurrences, y_t = a_t y_(t-1) + b_t, many positions at once; of
probabilities in logarithms too.

Every element is a recurrence of its own. The positions are cut into about sqrt(T) chunks. All run
at once from zero, which leaves the end of each and the product of its a; a loop over the chunks
then finds what each begins from; and all run at once again, from there. So there are 3 sqrt(T)
steps in place of T, and nothing is divided: an a of exactly 0 forgets, one of 1 keeps, and a
product that underflows is of what has been forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocks.core.functional import state_dtype
from blocks.core.loops import is_free, is_one, over_positions

LOG_OF_NOTHING = -1e30
"""Logarithm that stands for that of 0: sums with it stay finite."""
STEP_BY_STEP = 32
"""Up to how many positions one loop over them costs less than chunks."""


def linear_recurrence(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """Run y_t = a_t y_(t-1) + b_t from y_(-1) = `before`, in float32 at least.

    a, b: (B, T, ...), before: (B, ...) -> (B, T, ...). A position with a = 1 and b = 0 changes
    nothing. Training keeps a and y; the backward pass is the same recurrence from the end.
    """
    dtype = state_dtype(b)
    return cast(Tensor, LinearRecurrence.apply(a.to(dtype), b.to(dtype), before.to(dtype)))


class LinearRecurrence(torch.autograd.Function):
    """The recurrence, with the gradient dL/db_t = g_t + a_(t+1) dL/db_(t+1), g that of y."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, before: Tensor) -> Tensor:
        y = scan(a, b, before)
        ctx.save_for_backward(a, y, before)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, y, before = ctx.saved_tensors
        grad_b, grad_a = scan_back(a, grad), torch.empty_like(a)
        write(grad_a[:, 0], torch.mul, grad_b[:, 0], before)
        write(grad_a[:, 1:], torch.mul, grad_b[:, 1:], y[:, :-1])
        return grad_a, grad_b, a[:, 0] * grad_b[:, 0]


def scan(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """Run y_t = a_t y_(t-1) + b_t, as `linear_recurrence` does, without gradients."""
    if is_one(b.shape[1]):
        return torch.addcmul(b, a, before[:, None])
    if is_free(b.shape[1]):
        return _scan_free(a, b, before)
    y = torch.empty_like(b)
    _scan(y, a, b, before, 1)
    return y


def _scan_free(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    def step(y: Tensor, gain: Tensor, entering: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        y = torch.addcmul(entering, gain, y)
        return y, (y,)

    return over_positions(step, before, (a, b))[1][0]


def scan_back(a: Tensor, grad: Tensor) -> Tensor:
    """Return dL/db of a recurrence from the gradient at y: r_t = g_t + a_(t+1) r_(t+1). (B, T, ...)
    -> (B, T, ...)
    """
    total = torch.empty_like(a)
    total[:, -1] = grad[:, -1]
    _scan(total[:, :-1], a[:, 1:], grad[:, :-1], grad[:, -1], -1)
    return total


def _scan(y: Tensor, a: Tensor, b: Tensor, before: Tensor, step: int) -> None:
    """Write y_t = a_t y_(t - step) + b_t; `step` is 1, or -1 from the last position."""
    length = y.shape[1]
    rest = slice(None)
    if length > STEP_BY_STEP:
        odd = length % math.isqrt(length)
        in_chunks, rest = slice(length - odd), slice(length - odd, None)
        if step < 0:
            in_chunks, rest = slice(odd, None), slice(odd)
        before = _scan_chunks(y[:, in_chunks], a[:, in_chunks], b[:, in_chunks], before, step)
    _scan_positions(y[:, rest], a[:, rest], b[:, rest], before, step)


def _scan_positions(
    y: Tensor, a: Tensor, b: Tensor, before: Tensor, step: int, dim: int = 1
) -> Tensor:
    for place, gain, entering in zip(*(x.unbind(dim)[::step] for x in (y, a, b)), strict=True):
        before = write(place, torch.addcmul, entering, gain, before)
    return before


def _scan_chunks(y: Tensor, a: Tensor, b: Tensor, before: Tensor, step: int) -> Tensor:
    y, a, b = (x.unflatten(1, (-1, math.isqrt(x.shape[1]))) for x in (y, a, b))  # (B, N, C, ...)
    product, end = torch.ones_like(a[:, :, 0]), torch.zeros_like(b[:, :, 0])  # (B, N, ...)
    for gain, entering in zip(a.unbind(2)[::step], b.unbind(2)[::step], strict=True):
        product.mul_(gain)
        torch.addcmul(entering, gain, end, out=end)
    begins = []
    for gain, entering in zip(product.unbind(1)[::step], end.unbind(1)[::step], strict=True):
        begins.append(before)
        before = torch.addcmul(entering, gain, before)
    _scan_positions(y, a, b, torch.stack(begins[::step], 1), step, dim=2)
    return before


def write(place: Tensor, operation: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Write the result of an operation to a place, and return it."""
    if torch.compiler.is_compiling():  # which writes to contiguous places alone
        return place.copy_(operation(*arguments))
    return operation(*arguments, out=place)


def log_linear_recurrence(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return log y_t of y_t = a_t y_(t-1) + b_t with y_(-1) = 0, all above 0: for what leaves the
    range of numbers.

    log a, log b: (B, T), finite -> (B, T). Two cumulative sums: logarithms lose nothing by a
    difference of sums but their rounding.
    """
    if is_free(log_a.shape[1]):
        return _scan_logs(log_a, log_b)
    product = log_a.cumsum(1)
    return product + (log_b - product).logcumsumexp(1)


def _scan_logs(log_a: Tensor, log_b: Tensor) -> Tensor:
    def step(log_y: Tensor, gain: Tensor, entering: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        log_y = torch.stack((log_y + gain, entering)).logsumexp(0)
        return log_y, (log_y,)

    nothing = torch.full_like(log_b[:, 0], LOG_OF_NOTHING)
    return over_positions(step, nothing, (log_a, log_b))[1][0]
