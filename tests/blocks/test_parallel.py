"""`parallel`: its merges, its names and its refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.concat import Concat
from blocks.conv import Conv
from blocks.core.contract import BlockError, Record
from blocks.identity import Identity
from blocks.maxout import Maxout
from blocks.parallel import Parallel
from blocks.rnn import Rnn
from tests.blocks.inner_stacks import ATTENTION, CGRU, NARROWER, RNN, TANH, WIDER
from tests.blocks.single_block import close, context_of, keeps_chunks, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "parallel": (
        {"branches": {"one": RNN, "two": ATTENTION}},
        {"branches": [RNN, TANH, [{"identity": {}}]], "merge": "max"},
        {"branches": {"one": WIDER, "two": TANH}, "merge": "concat"},
        {"branches": [TANH, ATTENTION], "merge": "gate"},
        {"branches": [[{"conv": {}}], [{"cross_attention": {}}]], "merge": "mean"},
        {
            "branches": {"one": RNN, "two": [{"cross_attention": {"heads": 2}}], "three": TANH},
            "merge": "attention",
        },
        {"branches": [CGRU, [{"conv2d": {}}], TANH], "merge": "gate"},
        {"branches": {"one": [{"grid": {}}], "two": [*TANH, {"grid": {}}]}, "merge": "mean"},
        {"branches": [CGRU, TANH], "merge": "attention"},
        {"branches": [[{"select_column": {}}], [{"sum_columns": {}}]], "merge": "max"},
        {"branches": [NARROWER, [*NARROWER, {"cross_attention": {"score": "dot", "heads": 2}}]]},
    ),
}
"""Settings with which the laws are checked, by block."""

X = torch.randn(2, 5, 3, dtype=torch.float64)
TWO = {"read": [{"block": Rnn, "as": "top"}], "near": [{"block": Conv}]}


@pytest.mark.parametrize("merge", ["sum", "mean", "max", "concat", "gate"])
def test_the_outputs_of_branches_are_merged(merge: str) -> None:
    block = Parallel(site_of(3), branches=TWO, merge=merge)
    a, b = (run(branch, X)[0] for branch in block.branches)
    y = run(block, X)[0]
    if merge == "gate":
        g = block.gate(torch.cat((a, b), -1)).view(2, 5, 2, 3).softmax(2)
        expected = g[:, :, 0] * a + g[:, :, 1] * b
    else:
        expected = {
            "sum": a + b,
            "mean": (a + b) / 2,
            "max": torch.maximum(a, b),
            "concat": torch.cat((a, b), -1),
        }[merge]
    close(y, expected)
    assert block.out.width == y.shape[-1]


def test_attention_weights_depend_on_branches_and_input() -> None:
    block = Parallel(site_of(3), branches=TWO, merge="attention")
    outputs = [run(branch, X)[0] for branch in block.branches]
    context = context_of(mask_of(5, 5))._replace(records={})
    y, *_ = block(X, block.start(X, context), context)
    (shares,) = context.records[Record((), (), "branches")]
    query, score = block.gate.query, block.gate.score.weight[0]
    maps = [project.weight.chunk(2) for project in block.gate.project]  # U, V
    for row in range(2):
        for at in range(5):
            x, parts = X[row, at], [item[row, at] for item in outputs]
            hidden = [
                query.weight @ x + query.bias + u @ part
                for (u, _), part in zip(maps, parts, strict=True)
            ]
            weights = torch.stack([score @ torch.tanh(item) for item in hidden]).softmax(0)
            close(
                y[row, at],
                sum(w * (v @ part) for w, (_, v), part in zip(weights, maps, parts, strict=True)),
            )
            close(shares[row, at], weights.detach())


def test_attention_with_equal_scores_is_the_mean() -> None:
    block, mean = (
        Parallel(site_of(3), branches=TWO, merge=merge) for merge in ("attention", "mean")
    )
    mean.branches.load_state_dict(block.branches.state_dict())
    block.gate.score.weight.data.zero_()
    for project in block.gate.project:
        project.weight.data[3:] = torch.eye(3)
    close(run(block, X)[0], run(mean, X)[0])


def test_attention_needs_the_positions_that_arrive() -> None:
    halves = [[{"block": Conv, "stride": 2}], [{"block": Conv, "stride": 2}]]
    with pytest.raises(BlockError, match="the branches end with others") as refused:
        Parallel(site_of(3), branches=halves, merge="attention")
    assert refused.value.setting == "merge"


def test_the_state_has_every_branch() -> None:
    keeps_chunks(
        Parallel(site_of(3, causal="a decoder"), branches=TWO), torch.randn(3, 8, 3), [8, 3, 0]
    )


def test_names_of_branches_can_be_read_after_the_merge() -> None:
    site = site_of(3)
    block = Parallel(
        site, branches={"narrow": [{"block": Maxout, "width": 2}], "same": []}, merge="concat"
    )
    after = Concat(site, of=["narrow", "same"])
    context = context_of(mask_of(5, 2), input=X)
    y, _, named = block(X, block.start(X, context), context)
    close(after(y, (), context.with_outputs(named))[0], torch.cat((y, y), -1))
    assert site.read("narrow", "of").width == 2


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        ({"a": [{"block": Identity, "as": "x"}], "b": [{"block": Concat, "of": "x"}]}, "`x`"),
        (
            {"a": [{"block": Maxout, "width": 2}], "b": []},
            "the branches `a` and `b` end 2 and 3 wide",
        ),
        (
            [[], [{"block": Conv, "stride": 2}]],
            "the branches number 1 and number 2 end with different positions",
        ),
        ([], "there is no branch"),
        ({"input": []}, "`input` is a reserved word"),
        ({"a": [{"block": Identity, "as": "b"}], "b": []}, "the name `b` is given twice"),
    ],
)
def test_invalid_branches_are_refused(branches: Any, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        Parallel(site_of(3), branches=branches)


def test_the_mask_is_that_of_its_branches() -> None:
    block = Parallel(
        site_of(3),
        branches=[[{"block": Conv, "stride": 2}], [{"block": Conv, "stride": 2, "kernel": 5}]],
    )
    assert block.mask(mask_of(5, 2)).tolist() == mask_of(3, 1).tolist()
    assert run(block, X)[0].shape[1] == 3
