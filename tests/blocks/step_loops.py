"""Outer-product states one position at a time, as the papers write them: what the blocks are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[..., tuple[Tensor, Any]]


def loop(step: Step, state: Any, *inputs: Tensor, dim: int = 1) -> tuple[Tensor, Any]:
    """Call `step(state, *positions)` for each position along `dim`: what it returns, stacked, and the last state."""
    outputs = []
    for position in zip(*(x.unbind(dim) for x in inputs), strict=True):
        y, state = step(state, *position)
        outputs.append(y)
    return torch.stack(outputs, dim), state


def decayed_sum(state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """S' = diag(exp(log_decay)) S + k v^T, y = S'^T q. Vectors (..., K), (..., V), log_decay (..., 1) or (..., K)"""
    state = log_decay.exp()[..., None] * state + k[..., None] * v[..., None, :]
    return torch.einsum("...k,...kv->...v", q, state), state


def outputs_and_gradients(outputs: Iterable[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of their sum with random weights, always the same."""
    outputs, generator = list(outputs), torch.Generator().manual_seed(3)
    weighted = (y * torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs)
    gradients = torch.autograd.grad(sum(part.sum() for part in weighted), inputs)
    return [*outputs, *gradients]


def relative_error(mine: Tensor, exact: Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    return ((mine.double() - exact.double()).abs().max() / exact.abs().max()).item()


def delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, read: Tensor, write: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """S' = (diag(exp(log_decay)) + write read^T) S + k v^T, y = S'^T q, with vectors as those of `decayed_sum`."""
    found = torch.einsum("...k,...kv->...v", read, state)
    state = log_decay.exp()[..., None] * state + write[..., None] * found[..., None, :] + k[..., None] * v[..., None, :]
    return torch.einsum("...k,...kv->...v", q, state), state
