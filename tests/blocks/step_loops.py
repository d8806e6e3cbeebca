"""Blocks against loops over the equations of their papers: outputs and gradients, in three
precisions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block
from tests.blocks.single_block import run

Loop = Callable[[Any, Tensor], Tensor]
"""From a block and x the output, position by position, by arithmetic of the block's weights."""


def loop_both_ways(readers: Any, x: Tensor, loop: Loop) -> Tensor:
    """The sum of what each reader makes of x, the second one from the end."""
    y = loop(readers[0], x)
    return y if len(readers) == 1 else y + loop(readers[1], x.flip(1)).flip(1)


def short_convolution(conv: Any, x: Tensor) -> Tensor:
    """x after a convolution over the last positions, one position at a time."""
    if conv.weight is None:
        return x
    kernel = len(conv.weight)
    padded = torch.cat((x.new_zeros(len(x), kernel - 1, x.shape[2]), x), 1)
    y = [(padded[:, t : t + kernel] * conv.weight).sum(1) + conv.bias for t in range(x.shape[1])]
    return torch.stack(y, 1)


def expect_equations(block: Block, loop: Loop, length: int = 70) -> None:
    """Outputs and gradients equal the loop's: 1e-10 in double, 1e-5 in single precision, each of
    its largest value; a
    gradient that all but vanishes, of a ten thousandth of the largest of all. In bfloat16 the
    output is at most twice as far from the exact one as the loop's in bfloat16.
    """
    torch.manual_seed(1)
    x = torch.randn(2, length, block.out.width, dtype=torch.float64)
    expected = with_gradients(block, loop, x, torch.float64)
    expect_close(with_gradients(block, run_alone, x, torch.float64), expected, 1e-10)
    expect_close(with_gradients(block, run_alone, x, torch.float32), expected, 1e-5)
    mine, theirs = (with_gradients(block, call, x, torch.bfloat16)[0] for call in (run_alone, loop))
    error, allowed = ((y.double() - expected[0]).abs().max() for y in (mine, theirs))
    assert error <= 2 * allowed, f"bfloat16: {error:.3g}, and the loop {allowed:.3g}"


def run_alone(block: Block, x: Tensor) -> Tensor:
    return run(block, x)[0]


def with_gradients(block: Block, call: Loop, x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The output, and the gradients of x and of every parameter."""
    block, x = copy.deepcopy(block).to(dtype), x.to(dtype).requires_grad_()
    y = call(block, x)
    weight = torch.randn(
        y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).to(dtype)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), [x, *block.parameters()])]


def expect_close(mine: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    least = 1e-4 * max(gradient.abs().max() for gradient in theirs[1:])
    for one, other in zip(mine, theirs, strict=True):
        gap, largest = (one.double() - other).abs().max(), max(other.abs().max(), least)
        assert gap <= tolerance * largest, f"differs by {gap:.3g}, and the largest is {largest:.3g}"
