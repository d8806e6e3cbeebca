"""`mamba` against a loop over algorithm 2, with decays near 0 and near 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.mamba import Mamba
from tests.blocks.single_block import grid_site, mask_of, run, site_of
from tests.blocks.step_loops import expect_equations, loop_both_ways, short_convolution

VARIANTS = {
    "mamba": (
        {},
        {"state": 3, "expansion": 1, "initial_state": "encoder"},
        {"short_conv": 0, "initial_state": "learned"},
        {"state": 2, "initial_state": {"copy": "encoder.same"}},
    )
}
"""Settings with which the laws are checked, by block."""


def selective(reader: Any, x: Tensor) -> Tensor:
    """Algorithm 2 of Gu & Dao 2023 after the convolution, with the discretisation of their equation
    4, B simplified.
    """
    x, rate = F.silu(short_convolution(reader.conv, x)), -reader.log_rate.exp()
    h, y = x.new_zeros(len(x), *rate.shape), []
    for one in x.unbind(1):
        low, into, out = reader.select(one).split(reader.parts, -1)
        dt = torch.log1p(reader.dt(low).exp())
        h = torch.exp(dt[..., None] * rate) * h + dt[..., None] * into[:, None] * one[..., None]
        y.append((h * out[:, None]).sum(-1) + reader.skip * one)
    return torch.stack(y, 1)


def mamba(block: Any, x: Tensor) -> Tensor:
    u, gate = block.arriving(x).chunk(2, dim=-1)
    return block.leaving(loop_both_ways(block.directions.readers, u, selective) * F.silu(gate))


@pytest.mark.parametrize("causal", ["a decoder", ""])
@pytest.mark.parametrize("dt", [0.0, 6.0, -20.0])
def test_equals_a_loop(causal: str, dt: float) -> None:
    """With 6 more in dt, exp(dt A) is below 0.01; with 20 less, it is 1 but for 1e-10."""
    torch.manual_seed(0)
    block = Mamba(site_of(6, causal=causal), state=3)
    for reader in block.directions.readers:
        reader.dt.bias.data += dt
    expect_equations(block, mamba)


def test_a_memory_gives_the_outer_product_of_two_projections() -> None:
    torch.manual_seed(0)
    block = Mamba(
        site_of(4, causal="a decoder", memories={"encoder": Named(Stream(3))}),
        state=2,
        initial_state="encoder",
    )
    states, x = torch.randn(2, 5, 3), torch.randn(2, 1, 4)
    mean = torch.stack((states[0].mean(0), states[1, :2].mean(0)))
    p, q = torch.tanh(block.directions.initial.project(mean)).split((8, 2), -1)
    _, ((_, h),) = run(
        block, x, torch.zeros(2, 1, dtype=torch.bool), encoder=Output(states, mask_of(5, 2))
    )
    torch.testing.assert_close(h, p[:, None] * q[:, :, None])


def test_initial_decays_are_the_papers() -> None:
    (reader,) = Mamba(site_of(64, causal="a decoder")).directions.readers
    torch.testing.assert_close(-reader.log_rate.exp()[5], -torch.arange(1.0, 17.0))
    dt = F.softplus(reader.dt.bias)
    assert 0.999e-3 <= dt.min() <= dt.max() <= 0.1001
    assert reader.dt.in_features == 4


def test_a_grid_is_refused() -> None:
    with pytest.raises(BlockError, match="a grid arrives"):
        Mamba(grid_site(4, 2))
