"""`pool_hierarchical` against the sentence model written as a loop over the columns of one row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError
from blocks.pool_hierarchical import PoolHierarchical, convolution_schedule
from tests.blocks.single_block import close, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "pool_hierarchical": (
        {},
        {"max_length": 3, "activation": "none"},
        {"max_length": 6, "activation": "sigmoid"},
    ),
}
"""Settings with which the laws are checked, by block."""


def by_hand(block: PoolHierarchical, row: Tensor) -> Tensor:
    """The vector of one row (n, D), column by column; the kernels are taken from where they lie."""
    sizes = list(range(2, block.largest + 1))
    kernels = dict(zip(sizes, block.kernels.split(sizes), strict=True))
    last = dict(zip(sizes, block.last_kernels.split(sizes), strict=True))
    columns, size = list(row), 2
    while len(columns) > 1:
        if size in kernels and size <= len(columns):
            kernel = kernels[size]
        elif len(columns) in last:
            kernel = last[len(columns)]
        else:  # longer than there are kernels for
            kernel = kernels[block.largest]
        pieces = range(len(columns) - len(kernel) + 1)
        columns = [
            torch.tanh(sum(kernel[k] * columns[j + k] for k in range(len(kernel)))) for j in pieces
        ]
        size += 1
    return columns[0]


@pytest.mark.parametrize("max_length", [1, 3, 4, 6, 8, 256])
def test_the_output_equals_a_loop_over_columns(max_length: int) -> None:
    block = PoolHierarchical(site_of(3), max_length=max_length)
    lengths = range(1, 13)
    x, mask = torch.randn(len(lengths), 12, 3), mask_of(*lengths)
    y, _ = run(block, x, mask)
    assert y.shape == (12, 1, 3)
    for row, length in enumerate(lengths):
        close(y[row, 0], by_hand(block, x[row, :length]))


def test_six_words_become_five_three_and_one() -> None:
    assert list(convolution_schedule(6, 9)) == [(2, 2), (3, 3)]  # and L^3
    assert list(convolution_schedule(7, 9)) == [(2, 2), (3, 3), (4, 4)]
    # 9, 7, 5, 3 columns, and L^3
    assert list(convolution_schedule(10, 3)) == [(2, 2), (3, 3), (3, 4), (3, 4)]


@pytest.mark.parametrize(
    ("max_length", "largest"), [(1, 2), (2, 2), (3, 2), (4, 3), (6, 3), (7, 4), (256, 23)]
)
def test_kernels_suffice_for_the_longest_row(max_length: int, largest: int) -> None:
    block = PoolHierarchical(site_of(3), max_length=max_length)
    assert block.largest == largest
    assert sum(size - 1 for size in range(2, largest + 1)) <= max(max_length - 1, 1)
    assert sum(item.numel() for item in block.parameters()) == 2 * 3 * sum(range(2, largest + 1))


def test_one_word_is_unchanged_and_no_word_gives_zeros() -> None:
    block = PoolHierarchical(site_of(2))
    x, mask = torch.randn(2, 4, 2), mask_of(1, 0)
    y, _ = run(block, x, mask)
    close(y[:, 0], torch.stack((x[0, 0], torch.zeros(2))))
    assert block.mask(mask).tolist() == [[True], [False]]
    assert block.out.length_ratio == 0


def test_features_are_independent() -> None:
    block = PoolHierarchical(site_of(3))
    x = torch.randn(1, 7, 3, requires_grad=True)
    run(block, x)[0][0, 0, 1].backward()
    assert x.grad[..., 1].abs().min() > 0
    assert x.grad[..., [0, 2]].abs().max() == 0


def test_a_decoder_is_refused() -> None:
    with pytest.raises(BlockError, match="may not read the future, and `pool_hierarchical` does"):
        PoolHierarchical(site_of(2, causal="a decoder"))
