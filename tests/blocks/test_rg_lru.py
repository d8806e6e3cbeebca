"""`rg_lru` against a loop over its equations, with decays near 0 and near 1."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError
from blocks.rg_lru import RgLru, input_scale, log_softplus
from tests.blocks.single_block import grid_site, site_of
from tests.blocks.step_loops import expect_equations, loop_both_ways, short_convolution

VARIANTS = {
    "rg_lru": (
        {},
        {"heads": 3, "short_conv": 4, "initial_state": "encoder"},
        {"initial_state": {"copy": "encoder.same"}},
        {"short_conv": 2, "initial_state": "learned"},
        {"first": "plain", "short_conv": 2, "initial_state": "encoder"},
        {"first": "plain", "initial_state": {"copy": "encoder.same"}},
    )
}
"""Settings with which the laws are checked, by block."""


def gated(reader: Any, x: Tensor) -> Tensor:
    """Equations 1 to 4 of De et al. 2024, as they are written; a plain first input as in the
    authors' code.
    """
    x = short_convolution(reader.conv, x)
    h, y = torch.zeros_like(x[:, 0]), []
    for place, one in enumerate(x.unbind(1)):
        r, i = (torch.sigmoid(dense(gate) @ one.T + gate.bias[:, None]).T for gate in gates(reader))
        a = torch.sigmoid(reader.decay) ** (8.0 * r)
        is_plain = place == 0 and reader.has_plain_first
        h = a * h + (1.0 if is_plain else torch.sqrt(1.0 - a**2)) * (i * one)
        y.append(h)
    return torch.stack(y, 1)


def gates(reader: Any) -> tuple[Any, Any]:
    return reader.recurrence_gate, reader.input_gate


def dense(gate: Any) -> Tensor:
    return torch.block_diag(*gate.weight)


def rg_lru(block: Any, x: Tensor) -> Tensor:
    return loop_both_ways(block.directions.readers, x, gated)


@pytest.mark.parametrize("causal", ["a decoder", ""])
@pytest.mark.parametrize("first", ["scaled", "plain"])
@pytest.mark.parametrize("decay", [0.0, 6.0, -30.0])
def test_equals_a_loop(causal: str, decay: float, first: Literal["scaled", "plain"]) -> None:
    """With 30 less in L, a^(8 r) is about exp(-120); with 6 more, it is 1 but for 1e-5."""
    torch.manual_seed(0)
    block = RgLru(site_of(6, causal=causal), heads=2, short_conv=3, first=first)
    for reader in block.directions.readers:
        reader.decay.data += decay
    expect_equations(block, rg_lru)


def test_the_input_is_scaled_where_the_decay_rounds_to_1() -> None:
    """sqrt(1 - a^2) = sqrt(2 rate) up to rate^1.5 with a = exp(-rate), and its gradient is half of
    it.
    """
    log_rate = torch.tensor([-500.0, -87.5, -60.0, -20.0]).requires_grad_()
    scale = input_scale(log_rate)
    scale.sum().backward()
    expected = (2.0 * log_rate.double().exp()).sqrt()
    torch.testing.assert_close(scale.double(), expected, rtol=1e-5, atol=1e-42)
    torch.testing.assert_close(log_rate.grad.double(), expected / 2, rtol=1e-5, atol=1e-42)


def test_the_logarithm_of_softplus_is_finite() -> None:
    x = torch.tensor([-1e4, -200.0, -37.5, -36.5, 0.0, 50.0]).double().requires_grad_()
    y = log_softplus(x)
    y.sum().backward()
    torch.testing.assert_close(
        y[1:], torch.nn.functional.softplus(x[1:]).log(), rtol=1e-12, atol=1e-12
    )
    assert y[0] == -1e4
    torch.testing.assert_close(x.grad[:3], torch.ones(3).double())
    assert x.grad.isfinite().all()


def test_initial_decays_are_the_papers() -> None:
    (reader,) = RgLru(site_of(64, causal="a decoder")).directions.readers
    a_to_8 = torch.sigmoid(reader.decay) ** 8
    assert 0.899 < a_to_8.min() < a_to_8.max() < 0.9991


def test_heads_that_do_not_divide_the_width_and_grids_are_refused() -> None:
    with pytest.raises(BlockError, match="5 does not divide the width 6"):
        RgLru(site_of(6), heads=5)
    with pytest.raises(BlockError, match="a grid arrives"):
        RgLru(grid_site(4, 2))
