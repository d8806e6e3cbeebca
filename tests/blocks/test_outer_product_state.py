"""The scan over outer products against its definition, one position at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.core.outer_product_state import scan_outer_products
from tests.blocks.outer_product_loops import (
    decayed_sum,
    loop,
    outputs_and_gradients,
    relative_error,
)

HEADS, KEYS, VALUES = 3, 6, 5
DECAYS = {
    "middling": lambda u: -u,
    "near 0": lambda u: -300.0 * u,
    "near 1": lambda u: -1e-5 * u,
    "near 0 and near 1 in turn": lambda u: torch.where(u > 0.5, -1e4 * u, -1e-3 * u),
    "none": lambda u: 0.0 * u,
}
CASES = [(name, width) for name in DECAYS for width in (1, KEYS)]
EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}


def random_arguments(
    name: str, decay_width: int, length: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Queries, keys, values, log decays, and a state that is not empty."""
    generator = torch.Generator().manual_seed(1)
    draw = torch.randn(
        2, HEADS, length, 2 * KEYS + VALUES, generator=generator, dtype=torch.float64
    )
    u = torch.rand(2, HEADS, length, decay_width, generator=generator, dtype=torch.float64)
    state = torch.randn(2, HEADS, KEYS, VALUES, generator=generator, dtype=torch.float64)
    arguments = [*draw.split([KEYS, KEYS, VALUES], -1), DECAYS[name](u), state]
    return [x.to(dtype).requires_grad_() for x in arguments]


def one_by_one(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return loop(decayed_sum, state, q, k, v, log_decay, dim=2)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize(("name", "width"), CASES)
def test_outputs_and_gradients_are_those_of_the_loop(
    name: str, width: int, dtype: torch.dtype
) -> None:
    arguments = random_arguments(name, width, 45, dtype)
    exact = [x.detach().double().requires_grad_() for x in arguments]
    expected = outputs_and_gradients(one_by_one(*exact), exact)
    for chunk in (1, 4, 11, 16, 64):
        made = outputs_and_gradients(scan_outer_products(*arguments, chunk=chunk), arguments)
        for one, other in zip(made, expected, strict=True):
            assert relative_error(one, other) < EXACT[dtype]


@pytest.mark.parametrize(("name", "width"), [("middling", 1), ("near 0 and near 1 in turn", KEYS)])
def test_pieces_of_any_size_go_on_from_the_state_before_them(name: str, width: int) -> None:
    *parts, state = random_arguments(name, width, 30)
    y, last = scan_outer_products(*parts, state, chunk=8)
    pieces = []
    for piece in zip(*(x.split([1, 7, 1, 8, 13], dim=2) for x in parts), strict=True):
        one, state = scan_outer_products(*piece, state, chunk=8)
        pieces.append(one)
    assert relative_error(torch.cat(pieces, 2), y) < 1e-12
    assert relative_error(state, last) < 1e-12


@pytest.mark.parametrize("width", [1, KEYS])
def test_a_position_without_key_and_decay_changes_no_state(width: int) -> None:
    q, k, v, log_decay, state = (x.detach() for x in random_arguments("middling", width, 20))
    there = torch.arange(20)[:, None] < 13
    _, padded = scan_outer_products(q, k * there, v, log_decay * there, state, chunk=8)
    _, cut = scan_outer_products(*(x[:, :, :13] for x in (q, k, v, log_decay)), state, chunk=8)
    assert relative_error(padded, cut) < 1e-14


@pytest.mark.parametrize("width", [1, KEYS])
@pytest.mark.parametrize("name", ["middling", "near 1", "near 0 and near 1 in turn"])
def test_bfloat16_errs_at_most_twice_as_much_as_the_loop(name: str, width: int) -> None:
    *parts, state = (x.detach() for x in random_arguments(name, width, 2000))
    parts = [x.bfloat16() for x in parts]
    exact = one_by_one(*(x.double() for x in parts), state)
    loops = one_by_one(*(x.float() for x in parts), state.float())
    scans = scan_outer_products(*parts, state.float())
    for scan, step, true in zip(scans, loops, exact, strict=True):
        assert scan.dtype is torch.float32
        assert relative_error(scan, true) <= 2 * relative_error(step, true)


@pytest.mark.parametrize("width", [1, KEYS])
def test_2000_positions_in_double_precision(width: int) -> None:
    arguments = random_arguments("near 0 and near 1 in turn", width, 2000)
    for one, other in zip(scan_outer_products(*arguments), one_by_one(*arguments), strict=True):
        assert relative_error(one, other) < 1e-10


def test_groups_of_heads_share_keys_by_broadcasting() -> None:
    q, k, v, log_decay, state = random_arguments("middling", 1, 20)
    shared = scan_outer_products(q[:, :1], k[:, :1], v, log_decay, state, chunk=8)
    repeated = scan_outer_products(
        q[:, :1].expand_as(q), k[:, :1].expand_as(k), v, log_decay, state, chunk=8
    )
    for one, other in zip(shared, repeated, strict=True):
        assert relative_error(one, other) < 1e-14
