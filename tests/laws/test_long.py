"""Five hundred positions in half precision: memories stay finite and in their range."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import State
from composer.model.encoder_decoder import state_leaves
from composer.recipe.registry import blocks
from composer.testing import Case
from composer.testing.harness import Batch, BlockOutput, cast_batch, random_batch, run

LONG = (500, 437, 1)
"""Real positions of each row."""
HALF = torch.bfloat16


def expect_distribution(state: State) -> None:
    """Where the heads of a tape are is a distribution."""
    _, places, _ = state
    assert places.min() >= 0
    torch.testing.assert_close(
        places.float().sum(-1), torch.ones(places.shape[:2]), atol=1e-2, rtol=0
    )


def thick(state: State) -> None:
    """No strength of a cell is negative."""
    _, heights = state
    assert heights.diff().min() >= 0


def within(state: State) -> None:
    """A number on a stack: a pushed one in [0, 1], -1 of an empty cell, or between them."""
    assert state.min() >= -1 - 1e-4  # rounding
    assert state.max() <= 1 + 1e-4


MEMORIES: list[tuple[str, dict[str, Any], Callable[[State], None]]] = [
    ("ntm", {"slots": 20, "slot_width": 6}, expect_distribution),
    (
        "ntm",
        {
            "slots": 9,
            "slot_width": 4,
            "shift": 3,
            "read_heads": 2,
            "write_heads": 2,
            "memory": "random",
        },
        expect_distribution,
    ),
    ("stack_memory", {}, thick),
    ("queue_memory", {}, thick),
    ("deque_memory", {"width": 5}, thick),
    ("discrete_stacks", {"stacks": 3, "cells": 20}, within),
    ("memory_network", {"from": "encoder.grid"}, lambda state: None),
    ("linear_attention", {"heads": 2}, lambda state: None),
    ("retention", {"heads": 2}, lambda state: None),
    ("gated_linear_attention", {"heads": 2}, lambda state: None),
    ("mamba2", {"head_width": 6, "state": 5}, lambda state: None),
    ("mlstm", {"heads": 2}, lambda state: None),
    ("delta_net", {"heads": 2, "negative_eigenvalues": True}, lambda state: None),
    ("gated_delta_net", {"heads": 2, "decay": "vector"}, lambda state: None),
    ("rwkv7", {"heads": 2}, lambda state: None),
    ("mlstm", {"heads": 2, "forget_gate": "exp"}, lambda state: None),
]


@pytest.mark.parametrize("noise", [0.2, 3.0], ids=["calm", "saturated"])
@pytest.mark.parametrize("automatic", [False, True], ids=["bfloat16", "autocast"])
@pytest.mark.parametrize(
    ("word", "settings", "holds"), MEMORIES, ids=[word for word, _, _ in MEMORIES]
)
def test_a_long_row_stays_finite(
    word: str,
    settings: dict[str, Any],
    holds: Callable[[State], None],
    automatic: bool,
    noise: float,
) -> None:
    case = Case(blocks()[word], settings)
    block = case.build(noise=noise).to(torch.float32 if automatic else HALF)
    batch = cast_batch(random_batch(case, LONG), torch.float32 if automatic else HALF)
    x = batch.x.requires_grad_()
    with torch.autocast("cpu", HALF) if automatic else nullcontext():
        made = run(block, batch)
    made.y.float().square().mean().backward()
    expect_finite(made, batch, [x, *block.parameters()])
    holds(made.state)


def expect_finite(made: BlockOutput, batch: Batch, learned: list[Tensor]) -> None:
    """Outputs, what is kept, and gradients."""
    assert made.y.shape[:2] == batch.mask.shape
    assert all(tensor.isfinite().all() for tensor in (made.y, *state_leaves(made.state)))
    gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
    assert gradients
    assert all(tensor.isfinite().all() for tensor in gradients)


@pytest.mark.parametrize("automatic", [False, True], ids=["bfloat16", "autocast"])
def test_many_steps_of_a_register_machine_stay_finite(automatic: bool) -> None:
    case = Case(blocks()["nram"], {"steps": 60, "registers": 3}, "encoder")
    block = case.build(noise=2.0).to(torch.float32 if automatic else HALF)
    batch = cast_batch(random_batch(case), torch.float32 if automatic else HALF)
    with torch.autocast("cpu", HALF) if automatic else nullcontext():
        made = run(block, batch)
    made.y.float().square().mean().backward()
    expect_finite(made, batch, list(block.parameters()))
    assert made.y.max() <= 1e-2  # logarithms of probabilities
