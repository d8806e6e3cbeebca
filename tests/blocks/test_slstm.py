"""`slstm` against a loop over its equations without the stabiliser."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.slstm import Slstm
from tests.blocks.single_block import grid_site, mask_of, run, site_of
from tests.blocks.step_loops import expect_equations, loop_both_ways, short_convolution

VARIANTS = {
    "slstm": (
        {},
        {"heads": 2, "short_conv": 0, "initial_state": "encoder"},
        {"heads": 1, "initial_state": {"copy": "encoder.same"}},
        {"initial_state": "learned"},
    )
}
"""Settings with which the laws are checked, by block."""


def cell(reader: Any, x: Tensor) -> Tensor:
    """Equations 8 to 14 of Beck et al. 2024, as they are written: exp of the input gate itself."""
    smooth = F.silu(short_convolution(reader.conv, x)) if reader.smooths else x
    h = c = n = torch.zeros_like(x[:, 0])
    mixing, y = (
        [torch.block_diag(*(head.T for head in gate)) for gate in reader.recurrent.chunk(4, -1)],
        [],
    )
    for one, before in zip(x.unbind(1), smooth.unbind(1), strict=True):
        i, f, z, o = (
            read @ torch.block_diag(*gate.weight).T + h @ mixed.T + bias
            for read, gate, mixed, bias in zip(
                (before, before, one, one), reader.arriving, mixing, reader.bias, strict=True
            )
        )
        i, f = i.exp(), torch.sigmoid(f)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        y.append(h)
    return torch.stack(y, 1)


def slstm(block: Any, x: Tensor) -> Tensor:
    h = loop_both_ways(block.directions.readers, x, cell)
    shares = h.unflatten(-1, (block.heads, -1))
    centred = shares - shares.mean(-1, keepdim=True)
    return (centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(
        -2
    ) * block.gain


@pytest.mark.parametrize("causal", ["a decoder", ""])
@pytest.mark.parametrize(("forget", "kernel"), [(0.0, 4), (9.0, 0), (-9.0, 4)])
def test_equals_a_loop(causal: str, forget: float, kernel: int) -> None:
    torch.manual_seed(0)
    block = Slstm(site_of(6, causal=causal), heads=2, short_conv=kernel)
    for reader in block.directions.readers:
        torch.nn.init.normal_(reader.recurrent, std=0.3)
        reader.bias.data[1] += forget
    expect_equations(block, slstm)


def test_gates_whose_exponentials_overflow_are_stabilised() -> None:
    """The input gates are exp(200 x): in the end h is that of the position where x was largest."""
    block = Slstm(site_of(2, causal="a decoder"), heads=1, short_conv=0)
    (reader,) = block.directions.readers
    with torch.no_grad():
        reader.arriving[0].weight.copy_(200.0 * torch.eye(2))
        reader.bias[1] = 30.0
    x = torch.tensor([[[0.5, -1.0], [2.0, 3.0], [-3.0, 1.0], [1.0, -2.0]]]).requires_grad_()
    y, ((_, _, c, n, m),) = run(block, x)
    y.sum().backward()
    assert all(tensor.isfinite().all() for tensor in (y, x.grad))
    assert (n >= 1).all()
    torch.testing.assert_close(m, torch.tensor([[400.0, 600.0]]))
    z = torch.tanh(reader.arriving[2](x)[0, 1])
    torch.testing.assert_close((c / n)[0], z)


def test_a_memory_gives_h_and_c_as_if_one_position_had_been_read() -> None:
    torch.manual_seed(0)
    memories = {"encoder": Named(Stream(3))}
    block = Slstm(
        site_of(4, causal="a decoder", memories=memories), heads=2, initial_state="encoder"
    )
    states, x = torch.randn(1, 5, 3), torch.randn(1, 1, 4)
    h, c = torch.tanh(block.directions.initial.project(states.mean(1))).split(4, -1)
    _, (state,) = run(
        block, x, torch.zeros(1, 1, dtype=torch.bool), encoder=Output(states, mask_of(5))
    )
    torch.testing.assert_close(
        torch.cat(state[1:]), torch.cat((h, c, torch.ones(1, 4), torch.zeros(1, 4)))
    )


def test_heads_of_one_feature_and_grids_are_refused() -> None:
    with pytest.raises(BlockError, match="one feature"):
        Slstm(site_of(4), heads=4)
    with pytest.raises(BlockError, match="does not divide"):
        Slstm(site_of(6), heads=4)
    with pytest.raises(BlockError, match="a grid arrives"):
        Slstm(grid_site(4, 2))
