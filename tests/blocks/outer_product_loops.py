"""Outer-product states one position at a time, as the papers write them: what the blocks are
compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block, State
from tests.blocks.single_block import context_of, mask_of, run, site_of

EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}
"""How far an output or a gradient may be from the equations, as a share of the largest, by
precision.
"""
Step = Callable[..., tuple[Tensor, Any]]


def loop(step: Step, state: Any, *inputs: Tensor, dim: int = 1) -> tuple[Tensor, Any]:
    """Call `step(state, *positions)` for each position along `dim`: what it returns, stacked, and
    the last state.
    """
    outputs = []
    for position in zip(*(x.unbind(dim) for x in inputs), strict=True):
        y, state = step(state, *position)
        outputs.append(y)
    return torch.stack(outputs, dim), state


def decayed_sum(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """S' = diag(exp(log_decay)) S + k v^T, y = S'^T q. Vectors (..., K), (..., V), log_decay (...,
    1) or (..., K)
    """
    state = log_decay.exp()[..., None] * state + k[..., None] * v[..., None, :]
    return torch.einsum("...k,...kv->...v", q, state), state


def outputs_and_gradients(outputs: Iterable[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of their sum with random weights, always the same."""
    outputs, generator = list(outputs), torch.Generator().manual_seed(3)
    weighted = (
        y * torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
        for y in outputs
    )
    gradients = torch.autograd.grad(sum(part.sum() for part in weighted), inputs)
    return [*outputs, *gradients]


def relative_error(mine: Tensor, exact: Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    return ((mine.double() - exact.double()).abs().max() / exact.abs().max()).item()


def delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, read: Tensor, write: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """S' = (diag(exp(log_decay)) + write read^T) S + k v^T, y = S'^T q, with vectors as those of
    `decayed_sum`.
    """
    value_of_key = torch.einsum("...k,...kv->...v", read, state)
    state = (
        log_decay.exp()[..., None] * state
        + write[..., None] * value_of_key[..., None, :]
        + k[..., None] * v[..., None, :]
    )
    return torch.einsum("...k,...kv->...v", q, state), state


def expect_equations(
    build: Callable[[Any], Block],
    equations: Callable[[Any, Tensor, State], Tensor],
    dtype: torch.dtype,
    change: Callable[[Any], object] = lambda block: None,
) -> None:
    """Compare a block in a decoder, its outputs and gradients in `dtype`, with `equations(block, x,
    state)` in double.

    `change` changes its parameters first, under `no_grad`. Where the equations in `dtype` err by
    more than `EXACT`, since what they subtract is nearly equal, the block may err by twice as much
    as they do.
    """
    torch.manual_seed(1)
    site, x = site_of(12, causal="a decoder"), torch.randn(3, 37, 12)
    block, exact = build(site), build(site)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        change(block)
    exact.load_state_dict(block.state_dict())
    block, exact, x = block.to(dtype), exact.double(), x.to(dtype)

    def computed(block: Block, x: Tensor) -> list[Tensor]:
        y = equations(block, x, block.start(x, context_of(mask_of(37))))
        return outputs_and_gradients([y], list(block.parameters()))

    expected, loops = computed(exact, x.double()), computed(block, x)
    made = outputs_and_gradients([run(block, x)[0]], list(block.parameters()))
    for name, mine, step, true in zip(
        ["y", *dict(block.named_parameters())], made, loops, expected, strict=True
    ):
        error, bound = relative_error(mine, true), max(EXACT[dtype], 2 * relative_error(step, true))
        assert error < bound, (name, error, bound)


def normalised_heads(block: Any, y: Tensor) -> Tensor:
    """What `head_norm` makes of each head: (B, T, H, V) -> (B, T, H V)"""
    if block.norm.bias is None:
        return block.norm.weight * (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(
            2
        )
    mean, variance = y.mean(-1, keepdim=True), y.var(-1, keepdim=True, correction=0)
    return block.norm.bias + block.norm.weight * ((y - mean) / (variance + 1e-5).sqrt()).flatten(2)
