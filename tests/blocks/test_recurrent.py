"""`recurrent`: its feedback by hand, where its loop begins and ends, its first position and its
widths.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError
from blocks.recurrent import Recurrent
from blocks.repeat import Repeat
from composer.testing.harness import Batch, Case, random_batch, run
from tests.blocks.inner_stacks import TANH
from tests.blocks.single_block import close

pytestmark = pytest.mark.usefixtures("float64")

VALUES = {"rwkv7": {"heads": 2, "rank": 2, "value_residual": True}}
VARIANTS = {
    "recurrent": (
        {
            "stack": [
                {"concat": {"of": ["prev.top"]}},
                {"rnn": {"cell": "gru", "initial_state": "encoder", "as": "top"}},
            ]
        },
        {
            "stack": [
                {"linear": {"as": "lifted"}},
                {"cross_attention": {"query": "prev.state", "as": "read"}},
                {"concat": {"of": ["input", "lifted", "earlier"]}},
                {"rnn": {"cell": "lstm", "initial_state": "learned", "as": "state"}},
                {"concat": {"of": ["read", "encoder.summary"]}},
            ]
        },
        {"stack": [{"conv": {}}, {"self_attention": {"heads": 2}}]},
        {
            "stack": [
                VALUES,
                {"concat": {"of": ["prev.top"]}},
                {"linear": {"width": 12}},
                VALUES,
                {"linear": {"as": "top"}},
            ]
        },
        {
            "stack": [
                {
                    "residual": {
                        "stack": [
                            {"add": {"of": ["prev.up"]}},
                            {"linear": {"activation": "tanh", "as": "up"}},
                        ]
                    }
                },
                {"conv": {}},
            ]
        },
        {
            "stack": [
                {
                    "recurrent": {
                        "stack": [
                            {"concat": {"of": ["prev.deep"]}},
                            {"linear": {"as": "deep", "width": 3}},
                        ]
                    }
                },
                {"concat": {"of": ["prev.out", "deep"]}},
                {"linear": {"activation": "tanh", "as": "out"}},
            ]
        },
        {
            "stack": [
                {
                    "recurrent": {
                        "stack": [
                            {"linear": {"as": "low", "width": 3}},
                            {"concat": {"of": ["prev.low"]}},
                        ]
                    }
                },
                {"linear": {"as": "flat"}},
            ]
        },
        {
            "stack": [
                {"concat": {"of": ["prev.state", "prev.deep"]}},
                {
                    "recurrent": {
                        "stack": [
                            {"linear": {"as": "deep", "width": 3}},
                            {"concat": {"of": ["prev.deep", "prev.state"]}},
                            {"rnn": {"cell": "gru", "initial_state": "encoder", "as": "state"}},
                        ]
                    }
                },
            ]
        },
        {
            "stack": [
                {
                    "parallel": {
                        "branches": {
                            "left": [{"concat": {"of": ["prev.left"]}}, *TANH],
                            "right": TANH,
                        },
                        "merge": "concat",
                    }
                }
            ]
        },
    ),
}
"""Settings with which the laws are checked, by block."""

FEEDBACK = [{"add": {"of": ["prev.total"]}}, {"identity": {"as": "total"}}]
BAHDANAU = [
    {"linear": {"as": "lifted"}},
    {"cross_attention": {"score": "additive", "query": "prev.state", "as": "context"}},
    {"concat": {"of": ["input"]}},
    {"rnn": {"cell": "gru", "reset": "before", "initial_state": "encoder", "as": "state"}},
    {"concat": {"of": ["input", "context"]}},
    {"maxout": {}},
]


def built(stack: list[Any], arriving: int = 12) -> tuple[Any, Batch]:
    case = Case(Recurrent, {"stack": stack}, arriving=arriving)
    return case.exact(), random_batch(case)


def test_feedback_is_a_running_sum() -> None:
    block, inputs = built(FEEDBACK)
    real = inputs.mask[..., None]
    close(run(block, inputs).y * real, inputs.x.masked_fill(~real, 0.0).cumsum(1) * real)


def test_only_blocks_that_depend_on_prev_run_position_by_position() -> None:
    block, _ = built(BAHDANAU)
    assert [inner.loops for inner in block.stack.inner()] == [
        "",
        "reads prev.state",
        "lies between two such blocks",
        "makes prev.state",
        "",
        "",
    ]


def test_without_prev_nothing_loops() -> None:
    block, _ = built([{"conv": {}}, {"self_attention": {"heads": 2}}])
    assert (block.first, block.stop) == (0, 0)


def test_looking_ahead_is_refused_in_an_encoder_too() -> None:
    with pytest.raises(BlockError) as raised:
        Case(Recurrent, {"stack": [{"rnn": {"bidirectional": True}}]}, "encoder").build()
    assert raised.value.code == "causality"
    assert "`recurrent` may not read the future" in raised.value.message


def test_prev_starts_with_the_initial_state_of_its_block() -> None:
    stack = [
        {"concat": {"of": ["prev.state"]}},
        {"rnn": {"initial_state": "encoder", "as": "state"}},
    ]
    block, inputs = built(stack)
    result = run(block, inputs)
    rnn = block.stack.inner()[1]
    (h, c), x = rnn.start(inputs.x, context(inputs))[0], inputs.x
    weights = rnn.layers[0].weights()
    for t in range(3):
        h, c = torch.lstm_cell(torch.cat((x[:, t], h), -1), (h, c), *weights)
        close(result.y[inputs.mask[:, t], t], h[inputs.mask[:, t]])


def test_bahdanaus_decoder_equals_its_equations() -> None:
    block, inputs = built(BAHDANAU)
    _, attention, _, rnn, _, maxout = block.stack.inner()
    result = run(block, inputs)
    memory = inputs.memories["encoder"]
    s = rnn.start(inputs.x, context(inputs))[0][0]
    for t in range(2):
        x = inputs.x[:, t]
        c, _ = attention(
            s[:, None], attention.start(s[:, None], context(inputs)), context(inputs, s)
        )
        s = gru_by_hand(rnn.layers[0], torch.cat((c[:, 0], x), -1), s)
        y = maxout.map(torch.cat((s, x, c[:, 0]), -1)).unflatten(-1, (2, -1)).amax(-2)
        close(result.y[inputs.mask[:, t], t], y[inputs.mask[:, t]])
    assert memory.states.shape[-1] == c.shape[-1]


def gru_by_hand(layer: Any, x: Tensor, h: Tensor) -> Tensor:
    """Cho et al. 2014, with reset before the matrix product."""
    width = h.shape[-1]
    r_x, z_x, n_x = (F.linear(x, layer.arriving.weight, layer.arriving.bias)).split(width, -1)
    r_h, z_h = F.linear(h, layer.gates.weight).split(width, -1)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + F.linear(r * h, layer.candidate.weight)) + z * h


def context(inputs: Batch, query: Tensor | None = None) -> Any:
    """A context of one position; `prev.state` is the query."""
    from blocks.core.contract import Context, Output

    mask = inputs.mask.new_ones(len(inputs.x), 1)
    board = {} if query is None else {"prev.state": Output(query[:, None], mask)}
    return Context(mask, board, inputs.memories)


def test_the_width_of_prev_is_inferred() -> None:
    stack = [
        {"concat": {"of": ["prev.deep"]}},
        {"linear": {"width": 7}},
        {"concat": {"of": ["input"], "as": "deep"}},
    ]
    block, _ = built(stack)
    assert block.out.width == 7 + 12
    assert block.stack.inner()[0].out.width == 12 + 19


def test_a_width_that_grows_at_each_step_is_refused() -> None:
    with pytest.raises(BlockError, match="wider at each step") as raised:
        built([{"concat": {"of": ["prev.all"], "as": "all"}}])
    assert "linear" in raised.value.fix.text


def test_the_loop_inside_a_loop_has_its_own_prev() -> None:
    inner = {
        "recurrent": {"stack": [{"add": {"of": ["prev.inside"]}}, {"identity": {"as": "inside"}}]}
    }
    block, inputs = built(
        [inner, {"add": {"of": ["prev.outside"]}}, {"identity": {"as": "outside"}}]
    )
    real = inputs.mask[..., None]
    twice = inputs.x.masked_fill(~real, 0.0).cumsum(1).masked_fill(~real, 0.0).cumsum(1)
    close(run(block, inputs).y * real, twice * real)


PASSED_BY = [
    {"linear": {"width": 5, "as": "a"}},
    {"concat": {"of": ["prev.a"]}},
    {"linear": {"width": 8}},
]
"""What is read as one step before is made of nothing that is, and stands before the loop."""


def test_prev_of_a_block_before_the_loop_is_the_previous_position() -> None:
    block, inputs = built(PASSED_BY)
    assert (block.first, block.stop, block.previous) == (1, 2, ("a",))
    close(run(block, inputs).y[inputs.mask], shifted(block.stack.inner(), inputs)[inputs.mask])


def test_a_loop_around_a_single_loop_changes_nothing() -> None:
    block, inputs = built([{"recurrent": {"stack": PASSED_BY}}])
    (inner,) = block.stack.inner()
    assert (block.first, block.stop, block.previous, inner.previous) == (0, 0, (), ("a",))
    close(run(block, inputs).y[inputs.mask], shifted(inner.stack.inner(), inputs)[inputs.mask])


def shifted(blocks: Any, inputs: Batch) -> Tensor:
    """`PASSED_BY` over all positions at once."""
    a = through(blocks[0], inputs.x, inputs)
    return through(blocks[2], torch.cat((a, F.pad(a, (0, 0, 1, -1))), -1), inputs)


def through(block: Any, x: Tensor, inputs: Batch) -> Tensor:
    """What a block without a state makes of x."""
    return block(x, (), context(inputs))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("reads", [[], ["prev.a"]], ids=["the outer", "both"])
def test_the_outer_loop_reads_outputs_of_the_inner(reads: list[str]) -> None:
    inside = [
        {"concat": {"of": ["earlier", *reads]}},
        {"linear": {"width": 5, "activation": "tanh", "as": "a"}},
    ]
    block, inputs = built(
        [{"concat": {"of": ["prev.a"]}}, {"recurrent": {"stack": [*inside, {"linear": {}}]}}]
    )
    inner = block.stack.inner()[1]
    assert (block.previous, inner.previous) == (("a",), ("a",) * len(reads))
    _, lifted, last = inner.stack.inner()
    result, earlier = run(block, inputs), inputs.board["earlier"].states
    a = inputs.x.new_zeros(len(inputs.x), 1, 5)
    for t in range(inputs.x.shape[1]):
        a = through(
            lifted,
            torch.cat((inputs.x[:, t, None], a, earlier[:, t, None], *[a] * len(reads)), -1),
            inputs,
        )
        close(result.y[inputs.mask[:, t], t], through(last, a, inputs)[inputs.mask[:, t], 0])


def test_the_outer_loop_starts_with_the_initial_state_of_the_inners_block() -> None:
    inside = {"recurrent": {"stack": [{"rnn": {"initial_state": "encoder", "as": "state"}}]}}
    block, inputs = built([{"concat": {"of": ["prev.state"]}}, inside])
    rnn = block.stack.inner()[1].stack.inner()[0]
    result = run(block, inputs)
    h, c = rnn.start(inputs.x, context(inputs))[0]
    for t in range(3):
        h, c = torch.lstm_cell(torch.cat((inputs.x[:, t], h), -1), (h, c), *rnn.layers[0].weights())
        close(result.y[inputs.mask[:, t], t], h[inputs.mask[:, t]])


@pytest.mark.parametrize("first", [True, False])
def test_the_inner_loop_cannot_read_prev_of_the_outer(first: bool) -> None:
    inside, outside = (
        {"recurrent": {"stack": [{"concat": {"of": ["prev.b"]}}]}},
        {"linear": {"as": "b"}},
    )
    with pytest.raises(
        BlockError, match="`b` is not made in this `recurrent`, so it has no step before"
    ) as raised:
        built([outside, inside] if first else [inside, outside])
    assert raised.value.code == "name"
    assert raised.value.fix.text.endswith("move the block that makes `b` into this `recurrent`")


def test_a_repeated_loop_does_not_read_the_previous_repetition() -> None:
    sum_of_both = [*FEEDBACK, {"add": {"of": ["total"]}}]
    stack = [{"conv": {"stride": 2, "kernel": 1}}, {"recurrent": {"stack": sum_of_both}}]
    case = Case(Repeat, {"times": 2, "stack": stack}, "encoder")
    block, inputs = case.exact(), random_batch(case)
    x, mask = inputs.x, inputs.mask
    for item in block.stacks:
        conv = item.inner()[0]
        x, mask = conv(x, (), context(inputs)._replace(mask=mask))[0], conv.mask(mask)
        x = 2 * x.masked_fill(~mask[..., None], 0.0).cumsum(1)
    close(run(block, inputs).y[mask], x[mask])
