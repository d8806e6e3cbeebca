"""`conv` by hand, its sides, its strides and its state."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from blocks.conv import Conv
from blocks.core.contract import BlockError
from tests.blocks.single_block import close, keeps_chunks, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "conv": (
        {},
        {"kernel": 4, "dilation": 2, "activation": "glu", "width": 5},
        {"stride": 2},
        {"kernel": 1},
        {"depthwise": True, "kernel": 2, "activation": "glu"},
        {"weight_norm": True, "activation": "tanh"},
    ),
}
"""Settings with which the laws are checked, by block."""


def summing(block: Conv, *taps: float) -> Conv:
    """The block with these weights and no bias, one channel in and out."""
    with torch.no_grad():
        block.weight.copy_(torch.tensor(taps).view(1, 1, -1))
    return block


ROW = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 4, 1)


@pytest.mark.parametrize(
    ("causal", "taps", "settings", "expected"),
    [
        ("", (1.0, 10.0, 100.0), {}, [210, 321, 432, 43]),
        ("a decoder", (1.0, 10.0, 100.0), {}, [100, 210, 321, 432]),
        ("", (1.0, 10.0), {"kernel": 2}, [21, 32, 43, 4]),
        ("a decoder", (1.0, 10.0), {"kernel": 2, "dilation": 2}, [10, 20, 31, 42]),
        ("", (1.0, 10.0, 100.0), {"stride": 2}, [210, 432]),
        ("", (1.0, 10.0, 100.0), {"stride": 3}, [210, 43]),
    ],
)
def test_the_output_equals_the_equation(
    causal: str, taps: tuple[float, ...], settings: dict[str, int], expected: list[float]
) -> None:
    block = summing(Conv(site_of(1, causal=causal), **settings), *taps)
    close(run(block, ROW)[0].flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    "settings", [{}, {"kernel": 4, "dilation": 2, "activation": "glu"}, {"kernel": 1}]
)
def test_ragged_chunks_equal_each_row_alone(settings: dict[str, int]) -> None:
    keeps_chunks(
        Conv(site_of(3, causal="a decoder", model=4), **settings), torch.randn(3, 9, 3), [9, 4, 0]
    )


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_does_not_affect_a_row(stride: int) -> None:
    block = Conv(site_of(3), kernel=4, stride=stride, activation="relu")
    x, lengths = torch.randn(4, 9, 3), (9, 6, 4, 1)
    mask = mask_of(*lengths)
    y, real = run(block, x, mask)[0], block.mask(mask)
    assert real.sum(1).tolist() == [-(-length // stride) for length in lengths]
    assert block.out.length_ratio == Fraction(1, stride)
    for row, length in enumerate(lengths):
        close(y[row, real[row]], run(block, x[row : row + 1, :length])[0][0])


def test_a_stride_is_refused_on_a_causal_site() -> None:
    with pytest.raises(BlockError, match="a decoder may not read the future") as error:
        Conv(site_of(3, causal="a decoder"), stride=2)
    assert (error.value.setting, error.value.code) == ("stride", "causality")
