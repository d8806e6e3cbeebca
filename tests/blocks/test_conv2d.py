"""`conv2d` by hand, written out cell by cell, and with activations that need twice the width."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.conv2d import Conv2d
from blocks.core.contract import BlockError, NoEffect, Stream
from tests.blocks.single_block import cells_of, close, context_of, grid_site, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "conv2d": (
        {},
        {"kernel": [1, 3], "activation": "tanh"},
        {"kernel": [4, 2], "activation": "glu", "width": 5},
        {"stride": [2, 2]},
        {"stride": [3, 1], "kernel": [2, 2]},
        {"align": "start"},
        {"align": "start", "stride": [2, 2], "kernel": [4, 3]},
    ),
}
"""Settings with which the laws are checked, by block."""


def by_the_sum(block: Conv2d, s: Tensor) -> Tensor:
    """y[t, w] = sum_ij W_ij s[t + i - l, w + j - m] + b, one cell after another. s: (T, W, D)"""
    length, columns, _ = s.shape
    down, across = block.kernel
    y = block.bias.expand(length, columns, -1).clone()
    for t in range(length):
        for w in range(columns):
            for i in range(down):
                for j in range(across):
                    place, column = t + i - (down - 1) // 2, w + j - (across - 1) // 2
                    if 0 <= place < length and 0 <= column < columns:
                        y[t, w] += block.weight[:, :, i, j] @ s[place, column]
    return y


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3), (3, 2), (4, 5), (5, 2)])
def test_the_output_is_the_sum_over_the_kernel(kernel: tuple[int, int]) -> None:
    block = Conv2d(grid_site(3, 4), kernel=kernel, width=2)
    torch.nn.init.normal_(block.bias)
    s = torch.randn(1, 5, 4, 3)
    close(block(s, (), context_of(cells_of(4, 5)))[0][0], by_the_sum(block, s[0]))
    assert block.out == Stream(2, True, columns=4)


def test_a_padded_cell_counts_as_zero() -> None:
    block, s = Conv2d(grid_site(2, 3)), torch.randn(2, 4, 3, 2)
    mask = cells_of(3, 4, 2).clone()
    mask[0, 1, 2] = False
    y, _ = block(s, (), context_of(mask))
    close(y, block(s * mask[..., None], (), context_of(torch.ones_like(mask)))[0])
    close(y[1, :2], by_the_sum(block, s[1, :2]))


def test_aligned_at_its_start_a_kernel_reads_what_a_centred_one_reads_further_on() -> None:
    centred, block = (
        Conv2d(grid_site(3, 6), kernel=(3, 5)),
        Conv2d(grid_site(3, 6), kernel=(3, 5), align="start"),
    )
    block.load_state_dict(centred.state_dict())
    s, context = torch.randn(2, 7, 6, 3), context_of(cells_of(6, 7, 2))
    close(block(s, (), context)[0][:, :-1, :-2], centred(s, (), context)[0][:, 1:, 2:])
    with pytest.raises(NoEffect, match="begins at its place anyway"):
        Conv2d(grid_site(3, 6), kernel=(2, 1), align="start")


def test_a_stack_aligned_at_its_start_sees_no_further_than_a_patch() -> None:
    # they see 4, then 4 + 2 x 2 = 8, in strides of 8
    kernels = [((4, 4), (2, 2)), ((3, 3), (2, 2)), ((1, 1), (2, 2))]
    s, columns = torch.randn(1, 16, 16, 1, requires_grad=True), 16
    y, mask = s, cells_of(16, 16)
    for (kernel, stride), width in zip(kernels, (1, 2, 2), strict=True):
        align = "start" if max(kernel) > 2 else "center"
        block = Conv2d(
            grid_site(width, columns, model=2), kernel=kernel, stride=stride, align=align
        )
        y, mask, columns = block(y, (), context_of(mask))[0], block.mask(mask), block.out.columns
    assert y.shape == (1, 2, 2, 2)
    y[0, 1, 0].sum().backward()
    assert s.grad is not None
    seen = s.grad[0, :, :, 0] != 0
    assert seen[8:, :8].all()
    assert seen.sum() == 64


@pytest.mark.parametrize("stride", [(1, 2), (2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("kernel", [(3, 3), (4, 2)])
def test_a_stride_leaves_every_so_many_th_cell(
    stride: tuple[int, int], kernel: tuple[int, int]
) -> None:
    dense, block = (
        Conv2d(grid_site(3, 5), kernel=kernel),
        Conv2d(grid_site(3, 5), kernel=kernel, stride=stride),
    )
    block.load_state_dict(dense.state_dict())
    s, context = torch.randn(2, 7, 5, 3), context_of(cells_of(5, 7, 4))
    down, across = stride
    close(block(s, (), context)[0], dense(s, (), context)[0][:, ::down, ::across])
    assert torch.equal(block.mask(context.mask), context.mask[:, ::down, ::across])
    assert block.out == Stream(3, True, columns=-(-5 // across)).shortened(down)


def test_images_of_several_sizes_are_in_a_batch_what_they_are_alone() -> None:
    block, s, sizes = (
        Conv2d(grid_site(2, 6), stride=(2, 2)),
        torch.randn(3, 5, 6, 2),
        ((5, 6), (3, 3), (2, 5)),
    )
    rows, columns = (torch.tensor(size) for size in zip(*sizes, strict=True))
    mask = (torch.arange(5) < rows[:, None])[..., None] & (torch.arange(6) < columns[:, None])[
        :, None
    ]
    y, real = block(s, (), context_of(mask))[0], block.mask(mask)
    for image, (height, width) in enumerate(sizes):
        high, wide = -(-height // 2), -(-width // 2)
        single = Conv2d(grid_site(2, width), stride=(2, 2))
        single.load_state_dict(block.state_dict())
        own = s[image : image + 1, :height, :width]
        close(y[image, :high, :wide], single(own, (), context_of(cells_of(width, height)))[0][0])
        assert real[image].sum() == real[image, :high, :wide].sum() == high * wide


@pytest.mark.parametrize("activation", ["glu", "swiglu", "geglu"])
def test_a_gated_convolution_has_the_declared_width(activation: Any) -> None:
    block = Conv2d(grid_site(3, 2, model=5), activation=activation)
    y, _ = block(torch.randn(1, 2, 2, 3), (), context_of(cells_of(2, 2)))
    assert y.shape == (1, 2, 2, 5)
    assert block.out.width == 5


def test_the_variance_is_preserved() -> None:
    """Far from the edges, where every product is there."""
    torch.manual_seed(3)
    block = Conv2d(grid_site(64, 32))
    y = block(torch.randn(1, 32, 32, 64), (), context_of(cells_of(32, 32)))[0][0, 1:-1, 1:-1]
    assert 0.9 < y.var().item() < 1.1


def test_a_stride_wider_than_the_grid_is_refused() -> None:
    with pytest.raises(BlockError, match="has 4 columns, and the grid 3") as refused:
        Conv2d(grid_site(2, 3), stride=(2, 4))
    assert (refused.value.setting, refused.value.fix.text) == ("stride", "write `stride: [2, 3]`")


def test_a_sequence_and_a_decoder_are_refused() -> None:
    for site, code in ((site_of(4), "kind"), (grid_site(4, 2, causal="a decoder"), "causality")):
        with pytest.raises(BlockError) as refused:
            Conv2d(site)
        assert refused.value.code == code
        assert refused.value.fix.text
