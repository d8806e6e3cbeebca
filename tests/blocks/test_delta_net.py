"""`delta_net` and `gated_delta_net` against loops over the papers' equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.delta_net import DeltaNet
from blocks.gated_delta_net import GatedDeltaNet
from tests.blocks.outer_product_loops import loop, outputs_and_gradients, relative_error
from tests.blocks.single_block import context_of, mask_of, run, site_of
from tests.blocks.test_outer_product_state import EXACT

BLOCKS = {
    "delta": (DeltaNet, {}),
    "negative": (DeltaNet, {"negative_eigenvalues": True, "short_conv": 0}),
    "scalar": (GatedDeltaNet, {}),
    "vector": (GatedDeltaNet, {"decay": "vector", "short_conv": 2}),
    "delta, scaled queries": (DeltaNet, {"scale_queries": True}),
    "scalar, scaled queries": (GatedDeltaNet, {"scale_queries": True}),
}

PLACES: tuple[dict[str, Any], ...] = (
    {"heads": 2},
    {"heads": 3, "state": 2, "head_width": 5, "short_conv": 3, "negative_eigenvalues": True},
    {"heads": 2, "short_conv": 0, "initial_state": "learned"},
    {"heads": 2, "initial_state": "encoder"},
    {"heads": 2, "initial_state": {"copy": "encoder.same"}},
    {"heads": 2, "scale_queries": True},
)
VARIANTS = {"delta_net": PLACES, "gated_delta_net": (*PLACES, {"heads": 2, "decay": "vector"})}
"""Settings with which the laws are checked, by block."""


def convolved(block: DeltaNet | GatedDeltaNet, x: Tensor) -> Tensor:
    """silu(conv(W x)), a position at a time."""
    if block.short_conv is None:
        return F.silu(block.project(x))
    reach, weight = block.short_conv.reach, block.short_conv.weight.mT  # (D, kernel)
    padded = F.pad(block.project(x), (0, 0, reach, 0))
    windows = [
        padded[:, place : place + reach + 1] for place in range(x.shape[1])
    ]  # (B, kernel, D)
    return F.silu(
        torch.stack([(window * weight.mT).sum(1) for window in windows], 1) + block.short_conv.bias
    )


def corrected(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """S' = (I - beta k k^T) diag(alpha) S + beta k v^T, y = S'^T q"""
    outer = torch.einsum("bhk,bhl->bhkl", k, k)
    state = (torch.eye(k.shape[-1], dtype=k.dtype) - beta[..., None, None] * outer) @ (
        alpha[..., None] * state
    )
    state = state + beta[..., None, None] * torch.einsum("bhk,bhv->bhkv", k, v)
    return torch.einsum("bhk,bhkv->bhv", q, state), state


def equations(block: DeltaNet | GatedDeltaNet, x: Tensor, state: Tensor) -> Tensor:
    """What the block computes of x from S: (B, T, D) -> (B, T, D)"""
    q, k, v = (
        part.unflatten(-1, (block.heads, -1)) for part in convolved(block, x).split(block.sizes, -1)
    )
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q = q * (k.shape[-1] ** -0.5 if block.query_scale != 1.0 else 1.0)
    beta = block.strongest * torch.sigmoid(block.strengths(x))  # (B, T, H)
    gate, alpha = torch.ones_like(v), torch.ones_like(beta[..., None])
    if isinstance(block, GatedDeltaNet):
        (decay,) = block.decays
        f = decay.maps(x).unflatten(-1, decay.bias.shape) + decay.bias  # (B, T, H, 1 or K)
        alpha, gate = (
            torch.exp(-decay.log_rate.exp() * F.softplus(f)),
            F.silu(block.gate(x)).unflatten(-1, v.shape[2:]),
        )
    y, _ = loop(corrected, state, q, k, v, beta, alpha)
    y = block.norm.gain * y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return block.merge((y * gate).flatten(2))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_decoder_computes_the_equations(name: str, dtype: torch.dtype) -> None:
    kind, settings = BLOCKS[name]
    given: dict[str, Any] = {"heads": 2, "state": 5, "initial_state": "learned", **settings}
    torch.manual_seed(1)
    block = kind(site_of(12, causal="a decoder"), chunk=8, **given)
    x = torch.randn(3, 37, 12).to(dtype)
    exact = kind(site_of(12, causal="a decoder"), **given)
    exact.load_state_dict(block.state_dict())
    block, exact = block.to(dtype), exact.double()
    memory = exact.start(x.double(), context_of(mask_of(37)))[0]
    expected = outputs_and_gradients(
        [equations(exact, x.double(), memory)], list(exact.parameters())
    )
    made = outputs_and_gradients([run(block, x)[0]], list(block.parameters()))
    assert all(
        relative_error(one, other) < EXACT[dtype] for one, other in zip(made, expected, strict=True)
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_an_encoder_reads_a_row_from_its_end_too(name: str) -> None:
    kind, settings = BLOCKS[name]
    torch.manual_seed(1)
    block = kind(site_of(12), heads=2, **{**settings, "short_conv": 0}).double()
    x, mask = torch.randn(2, 9, 12).double(), mask_of(9, 4)
    y, _ = run(block, x, mask)
    mirrored = kind(site_of(12), heads=2, **{**settings, "short_conv": 0}).double()
    mirrored.load_state_dict(block.state_dict())
    for parameter in (
        mirrored.strengths.weight,
        *([mirrored.gate.weight] if hasattr(mirrored, "gate") else []),
    ):
        parameter.data = parameter.data.roll(len(parameter) // 2, 0)
    if hasattr(mirrored, "decays"):
        mirrored.decays = mirrored.decays[::-1]
    for row, length in enumerate((9, 4)):
        z, _ = run(mirrored, x[row : row + 1, :length].flip(1), mask_of(length))
        assert relative_error(z.flip(1), y[row : row + 1, :length]) < 1e-12


def test_only_a_negative_eigenvalue_can_flip_a_state() -> None:
    """With beta = 2 a key reflects the state, as parity needs (Grazzi et al. 2024, section 4)."""
    state, key = torch.tensor([[[[3.0], [1.0]]]]), torch.tensor([[[1.0, 0.0]]])
    nothing, kept = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    _, flipped = corrected(state, key, key, nothing, torch.full((1, 1), 2.0), kept)
    assert flipped.flatten().tolist() == [-3.0, 1.0]
    _, erased = corrected(state, key, key, nothing, torch.full((1, 1), 1.0), kept)
    assert erased.flatten().tolist() == [0.0, 1.0]


def test_a_reflected_state_stays_as_large_under_autocast() -> None:
    """A key that is longer than 1 by its rounding to bfloat16 would multiply the state at each of
    its reflections.
    """
    torch.manual_seed(1)
    block = DeltaNet(site_of(12, causal="a decoder"), heads=2, negative_eigenvalues=True)
    block.strengths.weight.data.fill_(100.0)  # beta = 2
    x = torch.ones(1, 2000, 12)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        _, (state, _) = run(block, x)
    assert state.abs().max() < 100
