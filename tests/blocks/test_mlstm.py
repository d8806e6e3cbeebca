"""`mlstm` against a loop over the paper's equations, without and with its stabiliser."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import State
from blocks.mlstm import Mlstm
from tests.blocks.outer_product_loops import (
    EXACT,
    expect_equations,
    loop,
    outputs_and_gradients,
    relative_error,
)
from tests.blocks.single_block import mask_of, run, site_of

VARIANTS = {
    "mlstm": (
        {"heads": 2},
        {"heads": 3, "state": 2, "head_width": 5, "short_conv": 0, "forget_gate": "exp"},
        {"heads": 2, "initial_state": "learned"},
        {"heads": 2, "initial_state": "encoder", "short_conv": 3},
        {"heads": 2, "initial_state": {"copy": "encoder.same"}},
    )
}
"""Settings with which the laws are checked, by block."""


def plain_step(
    state: Any, q: Tensor, k: Tensor, v: Tensor, log_i: Tensor, log_f: Tensor
) -> tuple[Tensor, Any]:
    """Equations 19 to 21, as they stand: (B, H, .) each"""
    C, n = state
    i, f = log_i.exp()[..., None], log_f.exp()[..., None]  # (B, H, 1)
    C, n = f[..., None] * C + (i * k)[..., None] * v[..., None, :], f * n + i * k
    read, norm = torch.einsum("bhk,bhkv->bhv", q, C), (n * q).sum(-1, keepdim=True)
    return read / norm.abs().clamp(min=1.0), (C, n)


def stabilised_step(
    state: Any, q: Tensor, k: Tensor, v: Tensor, log_i: Tensor, log_f: Tensor
) -> tuple[Tensor, Any]:
    """Equations 15 to 17 before them, where exp(log_i) would be too large."""
    C, n, before = state
    m = torch.maximum(log_f + before, log_i)
    i, f = (log_i - m).exp()[..., None], (log_f + before - m).exp()[..., None]  # (B, H, 1)
    C, n = f[..., None] * C + (i * k)[..., None] * v[..., None, :], f * n + i * k
    read, norm = torch.einsum("bhk,bhkv->bhv", q, C), (n * q).sum(-1, keepdim=True)
    return read / torch.maximum(norm.abs(), (-m).exp()[..., None]), (C, n, m)


def cell(block: Mlstm, x: Tensor, state: State, stable: bool = False, direction: int = 0) -> Tensor:
    """o_t times what the cell gives: (B, T, H V)"""
    memory, m = state
    query_key = block.query_key(x).chunk(2, -1)
    gates = block.input_forget(x).chunk(block.directions, -1)[direction].chunk(2, -1)
    q, k, v = (
        p.unflatten(-1, (block.heads, -1)) for p in (*query_key, block.value(x))
    )  # (B, T, H, .)
    log_i, log_f = (
        gates[0],
        F.logsigmoid(gates[1]) if block.forget_gate == "sigmoid" else gates[1],
    )  # (B, T, H)
    start = (memory[..., :-1], memory[..., -1])
    inputs = (q, k * k.shape[-1] ** -0.5, v, log_i, log_f)
    y, _ = (
        loop(stabilised_step, (*start, m), *inputs) if stable else loop(plain_step, start, *inputs)
    )
    return torch.sigmoid(block.gate(x).chunk(block.directions, -1)[direction]) * y.flatten(2)


def equations(block: Mlstm, x: Tensor, state: State, stable: bool = False) -> Tensor:
    return block.merge(cell(block, x, state, stable))


def shift_gates(block: Mlstm, input_gate: float, forget_gate: float) -> None:
    shift = torch.tensor([[input_gate], [forget_gate]]).repeat(block.directions, block.heads)
    block.input_forget.bias.add_(shift.flatten())


@pytest.mark.parametrize(
    "forget", [-40.0, -4.0, 12.0], ids=["decays near 0", "decays", "decays near 1"]
)
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_decoder_computes_the_equations(dtype: torch.dtype, forget: float) -> None:
    build = partial(Mlstm, heads=3, state=6, chunk=8, short_conv=0, initial_state="learned")
    expect_equations(build, equations, dtype, lambda block: shift_gates(block, 0.0, forget))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_an_exponential_forget_gate(dtype: torch.dtype) -> None:
    build = partial(Mlstm, heads=3, chunk=8, short_conv=0, forget_gate="exp")
    expect_equations(build, equations, dtype, lambda block: shift_gates(block, -3.0, -4.5))


@pytest.mark.parametrize("gate", [1000.0, -1000.0])
def test_input_gates_whose_exponential_overflows(gate: float) -> None:
    build, stable = partial(Mlstm, heads=3, chunk=8, short_conv=0), partial(equations, stable=True)
    if gate > 0:  # else nothing is read, and all gradients but one are 0
        expect_equations(build, stable, torch.float64, lambda block: shift_gates(block, gate, 0.0))
    block, x = build(site_of(12, causal="a decoder")), torch.randn(3, 37, 12)
    with torch.no_grad():
        shift_gates(block, gate, 0.0)
    assert all(
        part.isfinite().all()
        for part in outputs_and_gradients([run(block, x)[0]], list(block.parameters()))
    )


def test_an_encoder_adds_the_same_from_the_end_of_each_row() -> None:
    torch.manual_seed(1)
    block, x = Mlstm(site_of(12), heads=2, short_conv=0).double(), torch.randn(2, 9, 12).double()
    zeros = torch.zeros(1, *block.memory_shape, dtype=torch.float64)
    with torch.no_grad():
        block.input_forget.weight.normal_()
    y = run(block, x, mask_of(9, 4))[0]
    for row, length in enumerate((9, 4)):
        one, empty = x[row : row + 1, :length], (zeros, zeros[..., 0, 0])
        expected = block.merge(
            cell(block, one, empty) + cell(block, one.flip(1), empty, direction=1).flip(1)
        )
        assert relative_error(y[row : row + 1, :length], expected) < 1e-12
