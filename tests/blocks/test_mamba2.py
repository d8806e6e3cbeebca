"""`mamba2` against a loop over the paper's equations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError, State
from blocks.mamba2 import Mamba2
from tests.blocks.outer_product_loops import (
    EXACT,
    decayed_sum,
    expect_equations,
    loop,
    relative_error,
)
from tests.blocks.single_block import mask_of, run, site_of

VARIANTS = {
    "mamba2": (
        {"head_width": 6, "state": 5},
        {"heads": 4, "head_width": 3, "state": 2, "groups": 2, "short_conv": 0},
        {"head_width": 6, "state": 5, "short_conv": 2, "initial_state": "learned"},
        {"head_width": 6, "state": 5, "initial_state": "encoder"},
        {"head_width": 6, "state": 5, "initial_state": {"copy": "encoder.same"}},
    )
}
"""Settings with which the laws are checked, by block."""


def convolve(block: Mamba2, x: Tensor) -> Tensor:
    """silu(b + sum_j w_j x_(t-j)) of each feature, zeros before the first position: (B, T, .)"""
    if block.short_conv is None:
        return x
    weight, length = block.short_conv.weight.mT, x.shape[1]
    shifted = [
        F.pad(x, (0, 0, j, 0))[:, :length] * weight[:, -1 - j] for j in range(weight.shape[1])
    ]
    return F.silu(sum(shifted) + block.short_conv.bias)


def read(block: Mamba2, u: Tensor, features: Tensor, memory: Tensor, direction: int = 0) -> Tensor:
    """The gated norm of S_t^T C_t + D x_t: (B, T, H P)"""
    B, C, x = (part for part in features.split(block.sizes, -1))
    per_group = block.heads // block.groups
    B, C = (p.unflatten(-1, (block.groups, -1)).repeat_interleave(per_group, 2) for p in (B, C))
    x = x.unflatten(-1, (block.heads, -1))  # (B, T, H, P)
    dt = F.softplus(block.step(u).chunk(block.directions, -1)[direction])[..., None]  # (B, T, H, 1)
    y, _ = loop(decayed_sum, memory, C, B, dt * x, -dt * block.rate[direction].exp()[:, None])
    y = (y + block.skip[direction][:, None] * x).flatten(2)
    y = y * F.silu(block.gate(u).chunk(block.directions, -1)[direction])
    groups = y.unflatten(-1, (block.groups, -1))
    return block.norm * (groups / (groups.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2)


def equations(block: Mamba2, u: Tensor, state: State) -> Tensor:
    return block.merge(read(block, u, convolve(block, block.project(u)), state[0]))


@pytest.mark.parametrize(
    "rate", [6.0, 0.0, -12.0], ids=["decays near 0", "decays", "decays near 1"]
)
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_decoder_computes_the_equations(dtype: torch.dtype, rate: float) -> None:
    build = partial(
        Mamba2, heads=4, head_width=5, state=3, groups=2, chunk=8, initial_state="learned"
    )
    expect_equations(build, equations, dtype, lambda block: block.rate.add_(rate))


def test_an_encoder_adds_the_same_from_the_end_of_each_row() -> None:
    torch.manual_seed(1)
    block, u = (
        Mamba2(site_of(12), head_width=6, state=3, short_conv=0).double(),
        torch.randn(2, 9, 12).double(),
    )
    y, zeros = (
        run(block, u, mask_of(9, 4))[0],
        torch.zeros(1, *block.memory_shape, dtype=torch.float64),
    )
    for row, length in enumerate((9, 4)):
        one = u[row : row + 1, :length]
        features = block.project(one)
        back = read(block, one.flip(1), features.flip(1), zeros, direction=1).flip(1)
        expected = block.merge(read(block, one, features, zeros) + back)
        assert relative_error(y[row : row + 1, :length], expected) < 1e-12


def test_an_encoder_convolves_around_each_position() -> None:
    torch.manual_seed(1)
    block, x = Mamba2(site_of(12), head_width=6, state=3).double(), torch.randn(1, 7, 30).double()
    weight = block.short_conv.weight.mT
    padded = F.pad(x, (0, 0, 2, 1))
    expected = sum(padded[:, j : j + 7] * weight[:, j] for j in range(4)) + block.short_conv.bias
    y, _ = block.short_conv(x, block.short_conv.start(x), mask_of(7))
    assert relative_error(y, expected) < 1e-12


def test_widths_that_do_not_divide_are_refused() -> None:
    for settings, setting in (({}, "head_width"), ({"heads": 3, "groups": 2}, "groups")):
        with pytest.raises(BlockError) as refused:
            Mamba2(site_of(12), **settings)
        assert (refused.value.setting, bool(refused.value.fix.text)) == (setting, True)
