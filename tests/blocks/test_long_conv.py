"""`long_conv` against a loop over its recurrence, and as the convolution that it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError
from blocks.long_conv import LongConv
from tests.blocks.single_block import context_of, grid_site, mask_of, run, site_of
from tests.blocks.step_loops import expect_equations, loop_both_ways

VARIANTS = {
    "long_conv": (
        {},
        {"state": 4, "initial_state": "encoder"},
        {"state": 2, "initial_state": {"copy": "encoder.same"}},
        {"initial_state": "learned"},
    )
}
"""Settings with which the laws are checked, by block."""


def complex_parts(reader: Any) -> tuple[Tensor, Tensor]:
    """exp(dt A) and C (exp(dt A) - 1) / A, of Gu et al. 2022, sections 3.1 and 3.3."""
    reader = {
        name: parameter.to(torch.promote_types(parameter.dtype, torch.float32))
        for name, parameter in reader.named_parameters()
    }
    pole = torch.complex(-reader["log_rate"].exp(), reader["frequency"])
    decay = torch.exp(reader["log_dt"].exp()[:, None] * pole)
    return decay, torch.view_as_complex(reader["weight"]) * (decay - 1.0) / pole


def recurrence(reader: Any, x: Tensor) -> Tensor:
    decay, weight = complex_parts(reader)
    s, y = torch.zeros(len(x), *decay.shape, dtype=decay.dtype), []
    for one in x.unbind(1):
        s = decay * s + one[..., None]
        y.append(2.0 * (weight * s).real.sum(-1))
    return torch.stack(y, 1).to(x.dtype)


def long_conv(block: Any, x: Tensor) -> Tensor:
    return loop_both_ways(block.directions.readers, x, recurrence) + block.skip * x


@pytest.mark.parametrize("causal", ["a decoder", ""])
@pytest.mark.parametrize("dt", [0.0, 6.0, -4.0])
def test_equals_a_loop(causal: str, dt: float) -> None:
    torch.manual_seed(0)
    block = LongConv(site_of(6, causal=causal), state=8)
    for reader in block.directions.readers:
        reader.log_dt.data += dt
    expect_equations(block, long_conv, length=150)


@pytest.mark.usefixtures("float64")
def test_is_the_convolution_with_its_own_filter() -> None:
    torch.manual_seed(0)
    block = LongConv(site_of(3, causal="a decoder")).double()
    decay, weight = complex_parts(block.directions.readers[0])
    taps = 2.0 * (weight[..., None] * decay[..., None] ** torch.arange(300)).real.sum(1)  # (D, T)
    x = torch.randn(2, 300, 3)
    length = 2 * 300
    spectrum = torch.fft.rfft(x, length, dim=1) * torch.fft.rfft(taps, length).T
    expected = torch.fft.irfft(spectrum, length, dim=1)[:, :300] + block.skip * x
    torch.testing.assert_close(run(block, x)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_single_steps_go_on_from_the_state_of_padded_rows() -> None:
    torch.manual_seed(0)
    block = LongConv(site_of(3, causal="a decoder"), state=6).double()
    x, lengths = torch.randn(4, 202, 3), (200, 128, 77, 0)
    _, state = run(block, x[:, :200], mask_of(*lengths))
    following = torch.stack([x[row, length : length + 2] for row, length in enumerate(lengths)])
    for t in range(2):
        y, state = block(
            following[:, t : t + 1], state, context_of(torch.ones(4, 1, dtype=torch.bool))
        )
        for row, length in enumerate(lengths):
            alone, _ = run(block, x[row : row + 1, : length + 2])
            torch.testing.assert_close(y[row, 0], alone[0, length + t], rtol=1e-10, atol=1e-10)


def test_an_odd_state_and_grids_are_refused() -> None:
    with pytest.raises(BlockError, match="5 is odd"):
        LongConv(site_of(4), state=5)
    with pytest.raises(BlockError, match="a grid arrives"):
        LongConv(grid_site(4, 2))
