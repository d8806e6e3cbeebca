"""The blocks of a Transformer against their equations, position by position and head by head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.cross_attention import CrossAttention
from blocks.dropout import Dropout
from blocks.feed_forward import FeedForward
from blocks.linear import Linear
from blocks.norm import Norm
from blocks.positions import Positions
from blocks.self_attention import SelfAttention
from tests.blocks.single_block import cells_of, close, context_of, grid_site, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "dropout": ({}, {"rate": 0.3}, {"rate": 0.3, "locked": True}),
    "feed_forward": (
        {},
        {"hidden": 5, "activation": "swiglu"},
        {"hidden": 5, "dropout": 0.3},
        {"bias": False},
    ),
    "linear": ({}, {"width": 5, "activation": "glu"}, {"bias": False, "weight_norm": True}),
    "norm": ({}, {"kind": "rms"}, {"kind": "rms", "eps": 0.25}),
    "positions": (
        {},
        {"kind": "learned"},
        {"kind": "learned", "max_length": 3, "per_iteration": True},
    ),
}
"""Settings with which the laws are checked, by block."""

X = torch.randn(2, 5, 4, dtype=torch.float64)
LENGTHS = (5, 3)
MASK = mask_of(*LENGTHS)
MEMORY = {"encoder": Named(Stream(6))}
STATES = torch.randn(2, 3, 6, dtype=torch.float64)


def mixed(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """What one query reads: (D,), keys and values (N, D) -> (D,), with the softmax written out."""
    parts = []
    for q, k, v in zip(
        query.chunk(heads), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True
    ):
        scores = [math.exp(float((q @ item).detach()) / math.sqrt(len(q))) for item in k]
        parts.append(sum(score * item for score, item in zip(scores, v, strict=True)) / sum(scores))
    return torch.cat(parts)


@pytest.mark.parametrize("causal", ["", "a decoder"])
@pytest.mark.parametrize("window", [None, 1, 2])
def test_self_attention_equals_its_equation(causal: str, window: int | None) -> None:
    block = SelfAttention(site_of(4, causal=causal), heads=2, window=window)
    query, keys, values = block.project(X).chunk(3, -1)
    y, _ = run(block, X, MASK)
    for row, length in enumerate(LENGTHS):
        for at in range(length):
            seen = [
                item
                for item in range(length)
                if (item <= at or not causal) and (window is None or abs(at - item) < window)
            ]
            close(
                y[row, at],
                block.merge(mixed(query[row, at], keys[row, seen], values[row, seen], 2)),
            )


def test_cross_attention_equals_its_equation() -> None:
    block = CrossAttention(site_of(4, memories=MEMORY), heads=2)
    real = mask_of(3, 2)
    y, _ = run(block, X, MASK, encoder=Output(STATES, real))
    keys, values = block.project(STATES).chunk(2, -1)
    for row, length in enumerate((3, 2)):
        for at in range(LENGTHS[row]):
            query = block.query(X[row, at])
            close(
                y[row, at], block.merge(mixed(query, keys[row, :length], values[row, :length], 2))
            )


def test_an_empty_memory_gives_zeros() -> None:
    block = CrossAttention(site_of(4, memories=MEMORY))
    y, _ = run(block, X, MASK, encoder=Output(STATES, mask_of(3, 0)))
    close(y[1], block.merge.bias.expand(5, 4))


def test_attention_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(BlockError, match="3 does not divide the width 4") as refused:
        SelfAttention(site_of(4), heads=3)
    assert "`heads: 2`" in refused.value.fix.text
    with pytest.raises(BlockError, match="nothing to read"):
        CrossAttention(site_of(4))


def test_linear_equals_its_equation() -> None:
    block = Linear(site_of(4, model=3), activation="tanh")
    close(run(block, X)[0], torch.tanh(X @ block.map.weight.T + block.map.bias))
    assert Linear(site_of(4), width=2, bias=False).map.bias is None


def test_feed_forward_equals_its_equation() -> None:
    block = FeedForward(site_of(4), hidden=6)
    inner = (X @ block.expand.weight.T + block.expand.bias).clamp(min=0)
    close(run(block, X)[0], inner @ block.contract.weight.T + block.contract.bias)
    gated = FeedForward(site_of(4), hidden=6, activation="glu")
    a, b = (X @ gated.expand.weight.T + gated.expand.bias).chunk(2, -1)
    close(run(gated, X)[0], gated.contract(a * torch.sigmoid(b)))


def test_norm_equals_its_equation() -> None:
    centred = X - X.mean(-1, keepdim=True)
    close(
        run(Norm(site_of(4)), X)[0],
        centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
    )
    close(
        run(Norm(site_of(4), kind="rms"), X)[0],
        X / (X.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
    )


def test_positions_equal_their_equation() -> None:
    y, count = run(Positions(site_of(4)), X, MASK)
    for at in range(5):
        angles = [at / 10_000 ** (2 * i / 4) for i in range(2)]
        added = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        torch.testing.assert_close(y[0, at], X[0, at] + added, atol=1e-6, rtol=0)
    assert count.tolist() == list(LENGTHS)
    learned = Positions(site_of(4), kind="learned", max_length=3)
    table = learned.table.weight
    close(run(learned, X)[0], X + table[[0, 1, 2, 2, 2]])


def test_positions_of_a_grid_are_those_of_its_rows_and_columns() -> None:
    x, context = torch.randn(2, 4, 3, 5), context_of(cells_of(3, 4, 2))
    block = Positions(grid_site(5, 3))
    y, count = block(x, block.start(x, context), context)
    down, across = (
        run(Positions(site_of(width)), torch.zeros(1, 4, width))[0][0] for width in (3, 2)
    )
    for t in range(4):
        for w in range(3):
            close(y[:, t, w], x[:, t, w] + torch.cat((down[t], across[w])))
    assert count.tolist() == [4, 2]
    learned = Positions(grid_site(5, 3), kind="learned", max_length=2)
    rows, columns = learned.table.weight[[0, 1, 1, 1]], learned.column_table.weight
    close(learned(x, count * 0, context)[0], x + rows[:, None] + columns)
    with pytest.raises(BlockError, match="one feature") as refused:
        Positions(grid_site(1, 3))
    assert (refused.value.setting, refused.value.code) == ("kind", "width")


def test_dropout_zeroes_the_given_rate() -> None:
    block = Dropout(site_of(4), rate=0.25)
    y, _ = run(block, torch.ones(4, 500, 4))
    assert set(y.unique().tolist()) == {0.0, 1 / 0.75}
    assert 0.2 < float((y == 0).double().mean()) < 0.3
    assert run(block.eval(), X)[0] is X
