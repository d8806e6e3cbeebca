"""`window_memory` equals its equations, position by position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError
from blocks.window_memory import WindowMemory
from tests.blocks.single_block import close, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "window_memory": (
        {"hops": 2, "window": 3},
        {"hops": 3, "window": 9, "width": 5, "relu": 1},
        {"hops": 1, "relu": 0},
    )
}
"""Settings with which the laws are checked, by block."""


@pytest.mark.parametrize(("window", "relu", "linear"), [(2, 0.5, 3), (4, 0.0, 6), (9, 1.0, 0)])
def test_it_equals_its_equations(window: int, relu: float, linear: int) -> None:
    block = WindowMemory(site_of(4, causal="a decoder"), hops=3, window=window, width=6, relu=relu)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, lengths = torch.randn(2, 7, 4), (7, 4)
    mask, expected = mask_of(*lengths), []
    for row, length in enumerate(lengths):
        expected += [
            by_hand(block, x[row, max(0, at - window + 1) : at + 1], linear) for at in range(length)
        ]
    mine, theirs = run(block, x, mask)[0][mask], torch.stack(expected)
    close(mine, theirs)
    factors, parameters = torch.randn_like(mine), [*block.parameters()]
    for one, other in zip(
        *(torch.autograd.grad((y * factors).sum(), parameters) for y in (mine, theirs)), strict=True
    ):
        close(one, other)


def by_hand(block: WindowMemory, words: Tensor, linear: int) -> Tensor:
    """The last u of a position that remembers these words, the last its own. (N, D) -> (d,)"""
    a, c = block.maps.weight.chunk(2)
    back = torch.arange(len(words)).flip(0)
    m = words @ a.T + block.times.keys[back]
    o = words @ c.T + block.times.values[back]
    u = torch.full((6,), 0.1)
    for _ in range(3):
        u = block.between.weight @ u + (m @ u).softmax(0) @ o
        u = torch.cat((u[:linear], u[linear:].clamp(min=0)))
    return u


def test_a_window_of_one_position_is_refused() -> None:
    with pytest.raises(BlockError, match="nothing to choose from"):
        WindowMemory(site_of(4), window=1)
