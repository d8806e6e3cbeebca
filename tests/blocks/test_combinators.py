"""`residual`, `repeat` and `use`: blocks that hold stacks, against the stacks that they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blocks.conv import Conv
from blocks.core.contract import BlockError, Site
from blocks.core.stack import Stack
from blocks.linear import Linear
from blocks.repeat import Repeat
from blocks.residual import Residual
from blocks.rnn import Rnn
from blocks.use import Use
from tests.blocks.inner_stacks import ATTENTION, CGRU
from tests.blocks.single_block import close, run, site_of, stack_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "residual": (
        {"stack": ATTENTION, "norm": "pre"},
        {"stack": [{"rnn": {"cell": "gru"}}], "norm": "post", "dropout": 0.3},
        {"stack": [{"residual": {"stack": [{"conv": {}}]}}, {"cross_attention": {}}], "scale": 0.5},
        {"stack": CGRU, "norm": "post"},
    ),
    "use": ({"stack": "shelf"}, {"stack": "other_shelf", "copy": True}),
}
"""Settings with which the laws are checked, by block."""

X = torch.randn(2, 4, 3, dtype=torch.float64)


def test_residual_adds_the_output_of_the_stack() -> None:
    block = Residual(site_of(3, causal="a decoder"), stack=[{"block": Rnn}], scale=0.5)
    added, last = run(block.stack, X)
    y, state = run(block, X)
    close(y, 0.5 * (X + added))
    close(state, last)


def test_residual_normalises_before_or_after_the_stack() -> None:
    pre = Residual(site_of(3), stack=[{"block": Linear}], norm="pre")
    close(run(pre, X)[0], X + run(pre.stack, pre.norm(X))[0])
    post = Residual(site_of(3), stack=[{"block": Linear}], norm="post")
    close(run(post, X)[0], post.norm(X + run(post.stack, X)[0]))


def test_residual_dropout_applies_to_the_stack_only() -> None:
    block = Residual(site_of(3), stack=[{"block": Linear}], dropout=0.5)
    added = run(block, X)[0] - X
    full = 2 * run(block.stack, X)[0]
    assert ((added.abs() < 1e-12) | ((added - full).abs() < 1e-12)).all()
    assert 0 < int((added.abs() < 1e-12).sum()) < added.numel()


def test_residual_refuses_a_stack_that_changes_the_stream() -> None:
    with pytest.raises(BlockError, match="turns the width 3 into 5"):
        Residual(site_of(3), stack=[{"block": Linear, "width": 5}])
    with pytest.raises(BlockError, match="changes the number of positions"):
        Residual(site_of(3), stack=[{"block": Conv, "stride": 2}])


def test_repeat_is_its_stacks_one_after_another() -> None:
    block = Repeat(site_of(3, causal="a decoder"), times=3, stack=[{"block": Rnn}])
    y, states = X, []
    for stack in block.stacks:
        y, state = run(stack, y)
        states.append(state)
    repeated, after = run(block, X)
    close(repeated, y)
    close(after, tuple(states))


def test_a_shared_repeat_has_one_stack_and_as_many_states() -> None:
    block = Repeat(site_of(3, causal="a decoder"), times=2, stack=[{"block": Rnn}], share=True)
    once = run(block.stacks[0], X)[0]
    y, states = run(block, X)
    close(y, run(block.stacks[0], once)[0])
    assert (len(block.stacks), len(states)) == (1, 2)
    with pytest.raises(BlockError, match="turns the width 3 into 5"):
        Repeat(site_of(3), times=2, stack=[{"block": Linear, "width": 5}], share=True)


def test_use_builds_the_named_stack() -> None:
    calls: list[tuple[str, bool]] = []

    def shared_stack(site: Site, name: str, copy: bool) -> Stack:
        calls.append((name, copy))
        return stack_of(site, [{"block": Linear, "width": 5}])

    block = Use(replace(site_of(3), shared_stacks=shared_stack), stack="x", copy=True)
    assert calls == [("x", True)]
    assert block.out.width == 5
    close(run(block, X)[0], run(block.stack, X)[0])
