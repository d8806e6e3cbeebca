"""`gated_linear_attention` against a loop over the paper's equations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import State
from blocks.core.mixer import HeadNormKind
from blocks.gated_linear_attention import GatedLinearAttention
from tests.blocks.outer_product_loops import (
    EXACT,
    decayed_sum,
    expect_equations,
    loop,
    normalised_heads,
    relative_error,
)
from tests.blocks.single_block import mask_of, run, site_of

VARIANTS = {
    "gated_linear_attention": (
        {"heads": 2},
        {"heads": 3, "state": 2, "head_width": 5, "rank": 2, "short_conv": 3},
        {"heads": 2, "initial_state": "learned"},
        {"heads": 2, "initial_state": "encoder"},
        {"heads": 2, "short_conv": 4, "initial_state": {"copy": "encoder.same"}},
        {"heads": 2, "head_norm": "rms"},
    )
}
"""Settings with which the laws are checked, by block."""


def read(block: GatedLinearAttention, x: Tensor, memory: Tensor, direction: int = 0) -> Tensor:
    """S_t^T q_t of each head, normalised, times r_t: (B, T, H V)"""
    low_rank = block.low_rank(x).chunk(block.directions, -1)[direction]
    alpha = torch.sigmoid(block.decay[direction](low_rank)) ** (1 / 16)
    parts = (*block.project(x).split(block.sizes, -1), alpha.log())
    q, k, v, log_alpha = (part.unflatten(-1, (block.heads, -1)) for part in parts)  # (B, T, H, .)
    y, _ = loop(decayed_sum, memory, q, k, v, log_alpha)
    normalised = normalised_heads(block, y)
    return F.silu(block.gate(x).chunk(block.directions, -1)[direction]) * normalised


def equations(block: GatedLinearAttention, x: Tensor, state: State) -> Tensor:
    return block.merge(read(block, x, state[0]))


@pytest.mark.parametrize(
    "bias", [-150.0, 0.0, 12.0], ids=["decays near 0", "decays", "decays near 1"]
)
@pytest.mark.parametrize("head_norm", ["group", "rms"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_decoder_computes_the_equations(
    dtype: torch.dtype, bias: float, head_norm: HeadNormKind
) -> None:
    build = partial(
        GatedLinearAttention,
        heads=3,
        state=6,
        chunk=8,
        initial_state="learned",
        head_norm=head_norm,
    )
    expect_equations(build, equations, dtype, lambda block: block.decay[0].bias.add_(bias))


def test_an_encoder_adds_the_same_from_the_end_of_each_row() -> None:
    torch.manual_seed(1)
    block, x = GatedLinearAttention(site_of(12), heads=2).double(), torch.randn(2, 9, 12).double()
    y, zeros = (
        run(block, x, mask_of(9, 4))[0],
        torch.zeros(1, *block.memory_shape, dtype=torch.float64),
    )
    for row, length in enumerate((9, 4)):
        one = x[row : row + 1, :length]
        expected = block.merge(
            read(block, one, zeros) + read(block, one.flip(1), zeros, direction=1).flip(1)
        )
        assert relative_error(y[row : row + 1, :length], expected) < 1e-12
