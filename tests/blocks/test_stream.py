"""The length of a stream, known before there is data: what is rounded up on the way is not
forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.conv import Conv
from blocks.core.contract import BlockError, Stream
from blocks.flatten import Flatten
from blocks.linear import Linear
from blocks.parallel import Parallel
from blocks.split_columns import SplitColumns
from tests.blocks.single_block import mask_of, run, site_of, stack_of

Steps = Sequence[tuple[str, int]]
STEPS = st.lists(st.tuples(st.sampled_from(["shorten", "flatten"]), st.integers(1, 6)), max_size=5)


def stream_after(steps: Steps) -> Stream:
    stream = Stream(1)
    for word, factor in steps:
        longer = stream._replace(length_ratio=stream.length_ratio * factor)
        stream = stream.shortened(factor) if word == "shorten" else longer
    return stream


def length_after(steps: Steps, tokens: int) -> int:
    for word, factor in steps:
        tokens = -(-tokens // factor) if word == "shorten" else tokens * factor
    return tokens


@given(STEPS, STEPS)
def test_the_length_is_what_the_steps_make_of_it(one: Steps, other: Steps) -> None:
    lengths = [[length_after(steps, tokens) for tokens in range(40)] for steps in (one, other)]
    streams = [stream_after(one), stream_after(other)]
    for stream, expected in zip(streams, lengths, strict=True):
        assert [stream.length(tokens) for tokens in range(40)] == expected
    if streams[0].same_length(streams[1]):
        assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("steps", "ratio", "rounded"),
    [
        ([("shorten", 2), ("shorten", 2)], Fraction(1, 4), [Fraction(1, 4)]),
        ([("shorten", 2), ("flatten", 4), ("shorten", 2)], Fraction(1), [Fraction(1, 2)]),
        (
            [("shorten", 2), ("flatten", 3), ("shorten", 2)],
            Fraction(3, 4),
            [Fraction(1, 2), Fraction(3, 4)],
        ),
        ([("flatten", 3), ("shorten", 3)], Fraction(1), []),
    ],
)
def test_roundings_that_change_nothing_are_not_counted(
    steps: Steps, ratio: Fraction, rounded: list[Fraction]
) -> None:
    assert stream_after(steps) == Stream(1, length_ratio=ratio, rounded=tuple(rounded))


def test_a_stream_of_as_many_positions_per_token_is_another_one_where_it_was_rounded() -> None:
    flat = [
        {"block": Conv, "stride": 2},
        {"block": SplitColumns, "columns": 2},
        {"block": Flatten},
        {"block": Linear, "width": 4},
    ]
    block, x, mask = stack_of(site_of(4), flat), torch.randn(2, 7, 4), mask_of(7, 3)
    assert block.out.length_ratio == 1
    y, real = run(block, x, mask)[0], block.mask(mask)
    assert y.shape[1] == block.out.length(7) == 8
    assert real.sum(1).tolist() == [8, 4]
    with pytest.raises(BlockError, match="with different positions") as refused:
        Parallel(site_of(4), branches=[flat, [{"block": Linear}]])
    assert refused.value.code == "length"
    assert block.out.described_length == "1 (rounded up at 1/2)"
