"""Selective scan that stores no state per position (Gu & Dao 2023, algorithm 2).

Letters beside the contract's:   E inner width   N state width of each inner feature
                                 C positions of a chunk
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocks.core.functional import no_autocast
from blocks.core.linear_recurrence import scan, scan_back
from blocks.core.loops import is_free, over_positions

CHUNK = 16
"""How many positions have states at once. More of them leave a CPU's cache."""


class Selection(NamedTuple):
    """What the recurrence reads, in float32 at least."""

    dt: Tensor  # (B, T, E), 0 or more
    entering: Tensor  # dt u, (B, T, E)
    into: Tensor  # (B, T, N)
    out: Tensor  # (B, T, N)

    def chunks(self) -> list[Selection]:
        """Return the positions in chunks."""
        chunked = [x.split(CHUNK, 1) for x in self]
        return [Selection(*parts) for parts in zip(*chunked, strict=True)]


def selective_scan(selection: Selection, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run h_t = exp(rate dt_t) h_(t-1) + into_t entering_t^T and y_t = h_t^T out_t from a state.

    rate: (N, E), below 0, state: (B, N, E) -> y: (B, T, E), the state after the last position. A
    position with dt = 0 and entering = 0 changes nothing. Training keeps the states between chunks,
    T / 16 of T; those within a chunk are computed again in the backward pass.
    """
    y, after = SelectiveScan.apply(*selection, rate, state)
    return y, after


class SelectiveScan(torch.autograd.Function):
    """The recurrence chunk by chunk, and its gradient by the chain rule, from the last chunk."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        selection, rate, state = Selection(*arguments[:4]), arguments[4], arguments[5]
        outputs, states = [], [state]
        with no_autocast(state):
            if is_free(selection.dt.shape[1]):
                return _by_positions(selection, rate, state)
            for chunk in selection.chunks():
                y, after = run_chunk(chunk, rate, states[-1])
                outputs.append(y)
                states.append(after)
        ctx.save_for_backward(*selection, rate, *states[:-1])
        return torch.cat(outputs, 1), states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        *arguments, rate = ctx.saved_tensors[:5]
        states, chunks = ctx.saved_tensors[5:], Selection(*arguments).chunks()
        grad_y, grad_state = grads
        grad_rate, collected = torch.zeros_like(rate), []
        with no_autocast(rate):
            for chunk, state, grad in zip(
                chunks[::-1], states[::-1], grad_y.split(CHUNK, 1)[::-1], strict=True
            ):
                selection, of_rate, grad_state = chunk_gradients(
                    chunk, rate, state, grad, grad_state
                )
                grad_rate += of_rate
                collected.append(selection)
        return *_join(collected[::-1]), grad_rate, grad_state


def _by_positions(selection: Selection, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    def step(state: Tensor, *one: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        y, state = run_chunk(Selection(*(x[:, None] for x in one)), rate, state)
        return state, (y[:, 0],)

    state, (y,) = over_positions(step, state, selection)
    return y, state


def run_chunk(chunk: Selection, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return y at all positions of a chunk, (B, C, E), and the state after the last."""
    _, h = chunk_states(chunk, rate, state)
    return (chunk.out[:, :, None] @ h)[:, :, 0], h[:, -1].clone()


def chunk_states(chunk: Selection, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the decays and the states at all positions of a chunk: (B, C, N, E) each."""
    decay = (chunk.dt[:, :, None] * rate).exp_()
    return decay, scan(decay, chunk.entering[:, :, None] * chunk.into[..., None], state)


def chunk_gradients(
    chunk: Selection, rate: Tensor, state: Tensor, grad: Tensor, grad_state: Tensor
) -> tuple[Selection, Tensor, Tensor]:
    """Return the gradients of a chunk, of the rates and of the state before it, from those of y and
    the state after.
    """
    decay, h = chunk_states(chunk, rate, state)
    arriving = grad[:, :, None] * chunk.out[..., None]  # (B, C, N, E)
    arriving[:, -1] += grad_state
    total = scan_back(decay, arriving)  # of each state
    grad_entering = (chunk.into[:, :, None] @ total)[:, :, 0]  # (B, C, E)
    grad_into = (total @ chunk.entering[..., None])[..., 0]  # (B, C, N)
    grad_out = (h @ grad[..., None])[..., 0]
    exponent = decay.mul_(total)  # the gradient of rate dt, but for the state that decays
    before = exponent[:, 0].clone()
    exponent[:, 0].mul_(state)
    exponent[:, 1:].mul_(h[:, :-1])
    grad_rate = (exponent * chunk.dt[:, :, None]).sum((0, 1))
    grad_dt = exponent.mul_(rate).sum(2)
    return Selection(grad_dt, grad_entering, grad_into, grad_out), grad_rate, before


def _join(chunks: list[Selection]) -> Iterator[Tensor]:
    return (torch.cat(parts, 1) for parts in zip(*chunks, strict=True))
