"""The scan of the delta rule against its definition, one position at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.core.delta_rule import DeltaInputs, scan_delta_rule, unit_length
from tests.blocks.outer_product_loops import delta_rule, loop, outputs_and_gradients, relative_error
from tests.blocks.test_outer_product_state import CASES, DECAYS, EXACT, HEADS, KEYS, VALUES


def random_arguments(name: str, decay_width: int, length: int) -> list[Tensor]:
    """Queries, keys, values, reads, writes, log decays, and a state that is not empty; eigenvalues
    from -1 to 1.
    """
    generator = torch.Generator().manual_seed(1)
    draw = torch.randn(
        2, HEADS, length, 2 * KEYS + VALUES, generator=generator, dtype=torch.float64
    )
    query, key, value = draw.split([KEYS, KEYS, VALUES], -1)
    u = torch.rand(2, HEADS, length, decay_width, generator=generator, dtype=torch.float64)
    strength = 2 * torch.rand(2, HEADS, length, 1, generator=generator, dtype=torch.float64)
    state = torch.randn(2, HEADS, KEYS, VALUES, generator=generator, dtype=torch.float64)
    key, log_decay = unit_length(key), DECAYS[name](u)
    return [query, strength * key, value, key * log_decay.exp(), -strength * key, log_decay, state]


def one_by_one(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    *parts, state = arguments
    return loop(delta_rule, state, *parts, dim=2)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize(("name", "width"), CASES)
def test_outputs_and_gradients_are_those_of_the_loop(
    name: str, width: int, dtype: torch.dtype
) -> None:
    arguments = [x.to(dtype).requires_grad_() for x in random_arguments(name, width, 45)]
    exact = [x.detach().double().requires_grad_() for x in arguments]
    expected = outputs_and_gradients(one_by_one(*exact), exact)
    for chunk in (1, 4, 16, 64):
        *parts, state = arguments
        made = outputs_and_gradients(
            scan_delta_rule(DeltaInputs(*parts), state, chunk=chunk), arguments
        )
        for one, other in zip(made, expected, strict=True):
            assert relative_error(one, other) < EXACT[dtype]


@pytest.mark.parametrize("width", [1, KEYS])
def test_pieces_of_any_size_go_on_from_the_state_before_them(width: int) -> None:
    *parts, state = random_arguments("near 0 and near 1 in turn", width, 30)
    y, last = scan_delta_rule(DeltaInputs(*parts), state, chunk=8)
    pieces = []
    for piece in zip(*(x.split([1, 7, 1, 8, 13], dim=2) for x in parts), strict=True):
        one, state = scan_delta_rule(DeltaInputs(*piece), state, chunk=8)
        pieces.append(one)
    assert relative_error(torch.cat(pieces, 2), y) < 1e-12
    assert relative_error(state, last) < 1e-12


@pytest.mark.parametrize("width", [1, KEYS])
@pytest.mark.parametrize("name", ["middling", "near 1"])
def test_bfloat16_errs_at_most_twice_as_much_as_the_loop(name: str, width: int) -> None:
    *parts, state = random_arguments(name, width, 2000)
    parts = [x.bfloat16() for x in parts]
    exact = one_by_one(*(x.double() for x in parts), state)
    loops = one_by_one(*(x.float() for x in parts), state.float())
    (y, last), (stepped, _), (true, true_last) = (
        scan_delta_rule(DeltaInputs(*parts), state.float()),
        loops,
        exact,
    )
    assert y.dtype is last.dtype is torch.float32
    assert relative_error(y.bfloat16(), true) <= 2 * relative_error(stepped.bfloat16(), true)
    assert relative_error(last, true_last) < 1e-5
