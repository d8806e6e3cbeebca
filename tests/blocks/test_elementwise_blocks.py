"""`maxout`, `identity`, `reverse` and `highway` against their equations."""

from __future__ import annotations

import pytest
import torch

from blocks.conv import Conv
from blocks.core.contract import BlockError
from blocks.highway import Highway
from blocks.identity import Identity
from blocks.maxout import Maxout
from blocks.reverse import Reverse
from blocks.rnn import Rnn
from tests.blocks.inner_stacks import ATTENTION, RNN, TANH
from tests.blocks.single_block import close, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "highway": ({"stack": RNN}, {"stack": ATTENTION}, {"stack": TANH}),
    "identity": ({},),
    "maxout": ({}, {"pieces": 3, "width": 5}),
    "reverse": ({},),
}
"""Settings with which the laws are checked, by block."""

X = torch.randn(2, 4, 3, dtype=torch.float64)


def test_maxout_takes_the_largest_piece() -> None:
    block = Maxout(site_of(3, model=2), pieces=4)
    pieces = [
        X @ w.T + b for w, b in zip(block.map.weight.split(2), block.map.bias.split(2), strict=True)
    ]
    close(run(block, X)[0], torch.stack(pieces).amax(0))


def test_identity_returns_its_input() -> None:
    assert run(Identity(site_of(3)), X)[0] is X


def test_reverse_reverses_each_row_within_its_length() -> None:
    mask = mask_of(4, 2)
    y, _ = run(Reverse(site_of(3)), X, mask)
    close(y[0], X[0].flip(0))
    close(y[1, :2], X[1, :2].flip(0))
    with pytest.raises(BlockError, match="may not read the future"):
        Reverse(site_of(3, causal="a decoder"))


def test_highway_is_gated() -> None:
    block = Highway(site_of(3, causal="a decoder"), stack=[{"block": Rnn}])
    f, g = run(block.stack, X)[0], torch.sigmoid(block.gate(X))
    y, state = run(block, X)
    close(y, g * f + (1 - g) * X)
    close(state, run(block.stack, X)[1])
    assert (g < 0.5).double().mean() > 0.5


def test_highway_refuses_a_stack_that_changes_the_stream() -> None:
    with pytest.raises(BlockError, match="turns the width 3 into 5"):
        Highway(site_of(3), stack=[{"block": Maxout, "width": 5}])
    with pytest.raises(BlockError, match="changes the number of positions"):
        Highway(site_of(3), stack=[{"block": Conv, "stride": 2}])
