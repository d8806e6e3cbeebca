"""States that are corrected where they are written: S_t = (diag(w_t) + a_t b_t^T) S_(t-1) + k_t
v_t^T, y_t = S_t^T q_t.

The delta rule writes what a key should hold less what it holds: with a = -beta k and b = k it is
S_t = (I - beta k k^T) S_(t-1) + beta k v^T (Schlag et al. 2021, equation 24). Many positions are
computed at once (Yang et al. 2024, arXiv 2406.06484, section 3): within a chunk, what each position
reads of the state before it, u_t = b_t^T S_(t-1), depends linearly on what those before it have
read, so all u of a chunk solve one triangular system.

Letters: ... the batch, then heads   T positions   N chunks   C positions of a chunk
         K width of keys   V width of values
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.functional import no_autocast, state_dtype
from blocks.core.loops import is_free, is_one
from blocks.core.outer_product_state import (
    CHUNK,
    by_positions,
    decay_from_start,
    decay_to_end,
    decayed_products,
    split_chunks,
)

EPSILON = 1e-6
"""What keeps the length of a key from 0."""


def unit_length(x: Tensor) -> Tensor:
    """Return the vectors divided by their lengths: (..., K) -> (..., K)"""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


class DeltaInputs(NamedTuple):
    """What each position does to the state and reads of it."""

    query: Tensor  # (..., T, K)
    key: Tensor  # (..., T, K)
    value: Tensor  # (..., T, V)
    read: Tensor  # (..., T, K)
    write: Tensor  # (..., T, K)
    log_decay: Tensor  # (..., T, 1) or (..., T, K), 0 or less


def scan_delta_rule(
    inputs: DeltaInputs, state: Tensor, *, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Run S_t = (diag(exp(log_decay_t)) + write_t read_t^T) S_(t-1) + k_t v_t^T, y_t = S_t^T q_t
    over the positions.

    state: (..., K, V) before the first position -> y: (..., T, V), the state after the last.

    A masked position has zeros as key, write and log decay, and then changes no state. All is
    computed in the state's precision, and in float32 at least. How many positions a chunk has
    changes nothing but speed.
    """
    state, length = state.to(state_dtype(state)), inputs.value.shape[-2]
    with no_autocast(state):
        inputs = DeltaInputs(*(x.to(state.dtype) for x in inputs))
        if is_one(length):
            return _step(*inputs, state)
        if is_free(length):
            return by_positions(_step, inputs, state)
        y, state = _scan_chunks(
            DeltaInputs(*(split_chunks(x, min(chunk, length)) for x in inputs)), state
        )
        return y.flatten(-3, -2)[..., :length, :], state


def _step(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    """Run one position of `scan_delta_rule`, T = 1: its inputs, the state."""
    *parts, state = arguments
    inputs = DeltaInputs(*parts)
    corrected = (
        inputs.write.mT * (inputs.read @ state) + inputs.key.mT * inputs.value
    )  # (..., K, V)
    state = torch.addcmul(corrected, inputs.log_decay.exp().mT, state)
    return inputs.query @ state, state


def _scan_chunks(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run `scan_delta_rule` over chunks (..., N, C, .) -> y (..., N, C, V), the state after the
    last.
    """
    query, key, value, read, write, log_decay = inputs
    # what is read at t has decayed up to t - 1: as if it were asked for there
    asked_before = F.pad(read[..., 1:, :], (0, 0, 0, 1))  # (..., N, C, K)
    products = decayed_products(
        torch.stack((query, asked_before))[:, None], torch.stack((key, write)), log_decay
    )
    products = torch.stack(
        (products[0], F.pad(products[1], (0, 0, 1, 0))[..., :-1, :])
    )  # (2, 2, ..., N, C, C)
    from_start, to_end = decay_from_start(log_decay), decay_to_end(log_decay)  # (..., N, C, 1 or K)
    until_before = F.pad(from_start[..., :-1, :], (0, 0, 1, 0), value=1.0)
    (of_keys, of_writes), (read_keys, read_writes) = products  # (..., N, C, C) each
    # u = u_0 + U S of the state S before the chunk
    system = torch.eye(query.shape[-2], dtype=query.dtype, device=query.device) - read_writes
    right = torch.cat((read_keys @ value, read * until_before), -1)  # (..., N, C, V + K)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    known, of_state = solved.split((value.shape[-1], query.shape[-1]), -1)
    from_state = query * from_start + of_writes @ of_state  # (..., N, C, K)
    ended = (write * to_end).mT  # (..., N, K, C)
    added = (key * to_end).mT @ value + ended @ known  # (..., N, K, V)
    carried = (
        torch.diag_embed(from_start[..., -1, :].expand_as(query[..., 0, :])) + ended @ of_state
    )  # (..., N, K, K)
    before = []
    for one, matrix in zip(added.unbind(-3), carried.unbind(-3), strict=True):
        before.append(state.expand_as(one))
        state = one + matrix @ state
    y = of_keys @ value + of_writes @ known + from_state @ torch.stack(before, -3)
    return y, state
