"""Fresh blocks feel what is 60 positions back, unless a table says why not; and bfloat16 keeps
their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.recipe.registry import blocks
from composer.testing import Case
from composer.testing.block_laws import FAINTEST, REACH, felt_positions
from composer.testing.harness import cast_batch, random_batch, run
from tests.laws.test_blocks import VARIANTS

FAR = REACH - 1 - 60
"""60 positions before the last."""
POINTWISE = "it works at each position alone"
ASKS = "it reads a memory, and of the stream a position alone, its question"
STACK = "it is made of what stands in it, which may be a convolution or work at each position alone"
SHORT: Mapping[str, str] = {
    **dict.fromkeys(
        ("activation", "dropout", "feed_forward", "identity", "linear", "maxout"), POINTWISE
    ),
    **dict.fromkeys(("mixture_of_experts", "norm", "positions", "rnn_cell", "scale"), POINTWISE),
    **dict.fromkeys(("add", "concat", "multiply", "no_input", "read", "source_state"), POINTWISE),
    **dict.fromkeys(
        ("cross_attention", "episodic_memory", "memory_network", "supporting_facts"), ASKS
    ),
    **dict.fromkeys(("highway", "parallel", "recurrent", "repeat", "residual", "use"), STACK),
    "conv": "its kernel ends",
    "discrete_stacks": "a stack of one cell read in turn holds the last few alone",
    "self_attention": "its `window` ends; without one it sees everything",
    "window_memory": "its `window` ends",
}
"""Blocks of which some settings do not reach 60 positions back, each with its reason."""

MIXERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("delta_net", {}),
    ("delta_net", {"negative_eigenvalues": True}),
    ("differential_attention", {}),
    ("gated_delta_net", {}),
    ("gated_delta_net", {"decay": "vector"}),
    ("gated_linear_attention", {}),
    ("latent_attention", {}),
    ("linear_attention", {}),
    ("long_conv", {}),
    ("mamba", {}),
    ("mamba2", {}),
    ("mlstm", {}),
    ("mlstm", {"forget_gate": "exp"}),
    ("retention", {}),
    ("rg_lru", {}),
    ("rnn", {}),
    ("rwkv7", {}),
    ("self_attention", {}),
    ("slstm", {}),
)
ROUNDING = 0.25
"""How far all gradients together may be off in bfloat16, of their length."""


def test_what_does_not_reach_far_is_in_the_table() -> None:
    short = set()
    for name, variants in VARIANTS.items():
        cases = [Case(blocks()[name], settings) for settings in variants]
        felt = [felt_positions(case) for case in cases if case.refusal() is None]
        if any(part is not None and part[FAR] <= FAINTEST * part.max() for part in felt):
            short.add(name)
    assert short == set(SHORT)


@pytest.mark.parametrize(("name", "settings"), MIXERS, ids=str)
def test_bfloat16_keeps_the_gradients_of_a_fresh_mixer(name: str, settings: dict[str, Any]) -> None:
    exact, rounded = (gradients(name, settings, automatic) for automatic in (False, True))
    assert (exact - rounded).norm() < ROUNDING * exact.norm()


def gradients(name: str, settings: dict[str, Any], automatic: bool) -> Tensor:
    """Return all gradients of a fresh block, 64 wide, over 64 positions; `automatic`: under
    autocast.
    """
    case = Case(blocks()[name], settings, arriving=64)
    block, batch = (
        case.build(noise=0.0),
        cast_batch(random_batch(case, (REACH,) * 2), torch.float32),
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=automatic):
        y = run(block, batch).y
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    (y.float() * weight).sum().backward()
    return torch.cat([part.grad.flatten() for part in block.parameters() if part.grad is not None])
