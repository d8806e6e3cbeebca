"""`retention` against a loop over the paper's equations."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError, State
from blocks.core.mixer import HeadNormKind
from blocks.retention import Retention
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
    "retention": (
        {"heads": 2},
        {"heads": 3, "state": 2, "head_width": 5, "short_conv": 3},
        {"heads": 2, "initial_state": "learned"},
        {"heads": 2, "initial_state": "encoder"},
        {"heads": 2, "short_conv": 4, "initial_state": {"copy": "encoder.same"}},
        {"heads": 2, "head_norm": "rms"},
    )
}
"""Settings with which the laws are checked, by block."""


def rotate(x: Tensor, backwards: bool) -> Tensor:
    """x_n e^(i n theta), its pairs of features being complex numbers: (B, T, H, K), n falling if
    `backwards`
    """
    theta = 10_000.0 ** -torch.linspace(0.0, 1.0, x.shape[-1] // 2, dtype=torch.float64)
    n = torch.arange(x.shape[1], dtype=torch.float64) * (-1 if backwards else 1)
    angle = (n[:, None] * theta).to(x.dtype)  # (T, K/2)
    turned = (
        torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        * torch.exp(1j * angle)[:, None]
    )
    return torch.view_as_real(turned).flatten(-2)


def retained(block: Retention, x: Tensor, memory: Tensor, backwards: bool = False) -> Tensor:
    """Equation 6 of each head, normalised: (B, T, H V)"""
    q, k, v = (
        part.unflatten(-1, (block.heads, -1)) for part in block.project(x).split(block.sizes, -1)
    )
    gamma = 1 - 2.0 ** (-5 - torch.arange(block.heads, dtype=torch.float64))
    log_decay = gamma.log().to(x.dtype)[:, None].expand(*v.shape[:-1], 1)  # (B, T, H, 1)
    y, _ = loop(
        decayed_sum,
        memory,
        rotate(q, backwards),
        rotate(k, backwards) * q.shape[-1] ** -0.5,
        v,
        log_decay,
    )
    return normalised_heads(block, y)


def equations(block: Retention, x: Tensor, state: State) -> Tensor:
    """Equation 8: (B, T, D) -> (B, T, D)"""
    return block.merge(F.silu(block.gate(x)) * retained(block, x, state[0]))


@pytest.mark.parametrize("head_norm", ["group", "rms"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_decoder_computes_the_equations(dtype: torch.dtype, head_norm: HeadNormKind) -> None:
    build = partial(
        Retention, heads=3, state=6, chunk=8, initial_state="learned", head_norm=head_norm
    )
    expect_equations(build, equations, dtype)


def test_an_encoder_adds_the_same_from_the_end_of_each_row() -> None:
    torch.manual_seed(1)
    block, x, mask = (
        Retention(site_of(12), heads=2).double(),
        torch.randn(2, 9, 12).double(),
        mask_of(9, 4),
    )
    y, zeros = run(block, x, mask)[0], torch.zeros(1, *block.memory_shape, dtype=torch.float64)
    for row, length in enumerate((9, 4)):
        one = x[row : row + 1, :length]
        gates = F.silu(block.gate(one)).chunk(2, -1)
        back = retained(block, one.flip(1), zeros, backwards=True).flip(1)
        expected = block.merge(gates[0] * retained(block, one, zeros) + gates[1] * back)
        assert relative_error(y[row : row + 1, :length], expected) < 1e-12


def test_a_single_feature_cannot_be_turned() -> None:
    with pytest.raises(BlockError) as refused:
        Retention(site_of(12), heads=4)
    assert (refused.value.setting, refused.value.fix.text) == ("state", "write `state: 4`")
