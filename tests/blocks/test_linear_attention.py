"""`linear_attention` against a loop over the paper's equations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from blocks.core.contract import Context, State
from blocks.linear_attention import LinearAttention
from tests.blocks.outer_product_loops import (
    EXACT,
    decayed_sum,
    expect_equations,
    loop,
    relative_error,
)
from tests.blocks.single_block import context_of, mask_of, run, site_of

VARIANTS = {
    "linear_attention": (
        {"heads": 2},
        {"heads": 3, "state": 2, "head_width": 5, "short_conv": 3},
        {"heads": 2, "initial_state": "learned"},
        {"heads": 2, "initial_state": "encoder"},
        {"heads": 2, "short_conv": 4, "initial_state": {"copy": "encoder.same"}},
    )
}
"""Settings with which the laws are checked, by block."""


def feature_map(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


def equations(block: LinearAttention, x: Tensor, state: State) -> Tensor:
    """Equations 16 to 20, a position at a time, from (S, z): (B, T, D) -> (B, T, D)"""
    (memory,) = state
    heads = (
        part.unflatten(-1, (block.heads, -1)) for part in block.project(x).split(block.sizes, -1)
    )  # (B, T, H, .)
    q, k, v = heads
    ones, never = torch.ones_like(v[..., :1]), torch.zeros_like(v[..., :1])
    sums, _ = loop(decayed_sum, memory[..., :-1], feature_map(q), feature_map(k), v, never)
    normaliser, _ = loop(decayed_sum, memory[..., -1:], feature_map(q), feature_map(k), ones, never)
    return block.merge((sums / (normaliser + 1e-6)).flatten(2))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_decoder_computes_the_equations(dtype: torch.dtype) -> None:
    expect_equations(
        partial(LinearAttention, heads=2, state=5, chunk=8, initial_state="learned"),
        equations,
        dtype,
    )


def test_an_encoder_reads_the_whole_row() -> None:
    """Equation 4: the mean of all values, weighted by products of phi(q) and phi(k)."""
    torch.manual_seed(1)
    block, x, mask = (
        LinearAttention(site_of(12), heads=2).double(),
        torch.randn(2, 9, 12).double(),
        mask_of(9, 4),
    )
    parts = block.project(x).split(block.sizes, -1)
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)  # (B, H, T, .)
    weights = (feature_map(q) @ feature_map(k).mT).masked_fill(
        ~mask[:, None, None], 0.0
    )  # (B, H, T, T)
    expected = block.merge(
        (weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)).transpose(1, 2).flatten(2)
    )
    assert relative_error(run(block, x, mask)[0][mask], expected[mask]) < 1e-12


def test_a_state_is_in_single_precision_at_least() -> None:
    block = LinearAttention(site_of(12, causal="a decoder"), heads=2, short_conv=2).bfloat16()
    x = torch.randn(1, 4, 12).bfloat16()
    context: Context = context_of(mask_of(4))
    memory, conv = block(x, block.start(x, context), context)[1]
    assert (memory.dtype, conv.dtype) == (torch.float32, torch.bfloat16)
