"""Differential attention against the equations of its paper."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError, NoEffect, Path
from blocks.differential_attention import DifferentialAttention
from blocks.repeat import Repeat
from blocks.self_attention import SelfAttention
from tests.blocks.single_block import close, context_of, in_pieces, leaves, mask_of, run, site_of
from tests.blocks.test_self_attention import PLACES, seen_from, turned

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "differential_attention": (
        {"heads": 2},
        {"heads": 3, "positions": "rotary", "lambda_init": 0.2},
        {"heads": 1, "dropout": 0.3},
        {"heads": 2, "lambda": "by_depth"},
    ),
}
"""Settings with which the laws are checked, by block."""

LENGTHS = (6, 4)
HEADS, WIDTH = 2, 4
"""Heads, and the width of queries and keys; values are twice as wide."""


def built(causal: str, **settings: Any) -> DifferentialAttention:
    block = DifferentialAttention(
        site_of(2 * HEADS * WIDTH, causal=causal), heads=HEADS, **settings
    )
    for parameter in block.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return block


def expected(
    block: DifferentialAttention, x: Tensor, causal: str, lambda_init: float | None = None
) -> Tensor:
    """y of one row by loops over positions and heads (equations 1 to 3). x: (T, D) -> (T, D)"""
    lambda_init = block.lambda_init if lambda_init is None else lambda_init
    query, keys, values = block.project(x).chunk(3, -1)
    query, keys = query.unflatten(-1, (HEADS, 2, WIDTH)), keys.unflatten(-1, (HEADS, 2, WIDTH))
    values, (u_1, w_1, u_2, w_2) = values.unflatten(-1, (HEADS, 2 * WIDTH)), block.lambdas
    factor = (u_1 @ w_1).exp() - (u_2 @ w_2).exp() + lambda_init
    rows = []
    for at in range(len(x)):
        seen, heads = seen_from(at, len(x), causal, None), []
        for head in range(HEADS):
            softmaxes = []
            for part in (0, 1):
                q, ks = query[at, head, part], [keys[other, head, part] for other in seen]
                if block.rotary:
                    q, ks = (
                        turned(q, at),
                        [turned(k, other) for k, other in zip(ks, seen, strict=True)],
                    )
                softmaxes.append(torch.stack([q @ k / math.sqrt(WIDTH) for k in ks]).softmax(0))
            read = (softmaxes[0] - factor * softmaxes[1]) @ values[seen, head]
            read = block.norm.gain * read / (read.square().mean() + 1e-5).sqrt()
            heads.append((1 - lambda_init) * read)
        rows.append(block.merge(torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("settings", [{}, {"positions": "rotary"}, {"lambda_init": 0.2}], ids=str)
def test_outputs_and_gradients_equal_the_papers_equations(
    causal: str, settings: dict[str, Any]
) -> None:
    block, x, mask = (
        built(causal, **settings),
        torch.randn(2, 6, 2 * HEADS * WIDTH),
        mask_of(*LENGTHS),
    )
    mine = run(block, x, mask)[0][mask]
    loops = torch.cat([expected(block, x[row, :n], causal) for row, n in enumerate(LENGTHS)])
    torch.testing.assert_close(mine, loops, rtol=1e-10, atol=1e-10)
    factors = torch.randn_like(mine)
    gradients = [
        torch.autograd.grad((y * factors).sum(), [*block.parameters()]) for y in (mine, loops)
    ]
    for (name, _), one, other in zip(block.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=name)
        assert one.abs().max() > 1e-4, name


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("share", [False, True])
def test_by_depth_each_iteration_has_the_papers_number(causal: str, share: bool) -> None:
    stack = [{"block": DifferentialAttention, "heads": HEADS, "lambda_": "by_depth"}]
    repeat = Repeat(site_of(2 * HEADS * WIDTH, causal=causal), times=3, stack=stack, share=share)
    for parameter in repeat.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(1, 5, 2 * HEADS * WIDTH)
    y = x[0]
    for iteration, number in enumerate(
        (0.2, 0.8 - 0.6 * math.exp(-0.3), 0.8 - 0.6 * math.exp(-0.6))
    ):
        y = expected(repeat.stacks[0 if share else iteration].blocks[0], y, causal, number)
    torch.testing.assert_close(run(repeat, x)[0][0], y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("path", "settings", "setting"),
    [
        (("model", "decoder", 0, "differential_attention"), {}, "lambda"),
        (("model", "decoder", 0, "repeat", "stack", 0), {"lambda_init": 0.3}, "lambda_init"),
    ],
)
def test_a_depth_that_nothing_counts_or_that_is_not_read_is_refused(
    path: Path, settings: dict[str, Any], setting: str
) -> None:
    site = replace(site_of(2 * HEADS * WIDTH), path=path)
    with pytest.raises(NoEffect) as refused:
        DifferentialAttention(site, heads=HEADS, lambda_="by_depth", **settings)
    assert refused.value.setting == setting


@pytest.mark.parametrize("causal", PLACES)
def test_without_the_second_softmax_it_is_attention_with_normalised_heads(causal: str) -> None:
    block = built(causal, lambda_init=0.0)
    with torch.no_grad():
        block.lambdas.zero_()  # exp(0) - exp(0) + 0
    plain = SelfAttention(site_of(2 * HEADS * WIDTH, causal=causal), heads=2 * HEADS, bias=False)
    x, mask = torch.randn(2, 6, 2 * HEADS * WIDTH), mask_of(*LENGTHS)
    query, keys, values = block.project.weight.chunk(3)
    firsts = torch.cat(
        [part.unflatten(0, (HEADS, 2, WIDTH))[:, [0, 0]].flatten(0, 2) for part in (query, keys)]
    )
    plain.load_state_dict(
        {"project.weight": torch.cat((firsts, values)), "merge.weight": torch.eye(len(values))}
    )
    read = run(plain, x, mask)[0].unflatten(-1, (HEADS, 2 * WIDTH))
    normed = block.norm.gain * read / (read.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(run(block, x, mask)[0][mask], block.merge(normed.flatten(-2))[mask])


def test_weights_are_recorded_once_as_their_difference() -> None:
    block, x = built("a decoder"), torch.randn(1, 4, 2 * HEADS * WIDTH)
    context = context_of(mask_of(4))._replace(records={})
    block(x, block.start(x[:, :1], context), context)
    (((weights,), record),) = [(values, record) for record, values in context.records.items()]
    assert (record.name, tuple(weights.shape)) == ("weights", (1, 4, HEADS, 4))
    close(weights.sum(-1), (1 - block.factor(context)).expand(1, 4, HEADS))


@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_ragged_chunks_equal_each_row_alone(positions: str) -> None:
    block, x, lengths = (
        built("a decoder", positions=positions),
        torch.randn(3, 9, 2 * HEADS * WIDTH),
        (9, 4, 0),
    )
    for row, length in enumerate(lengths[:2]):  # the state has holes, so its shape differs
        close(in_pieces(block, x, lengths, row), run(block, x[row : row + 1, :length])[0][0])


def test_the_state_is_as_large_as_that_of_self_attention() -> None:
    x = torch.randn(3, 7, 2 * HEADS * WIDTH)
    plain = SelfAttention(site_of(2 * HEADS * WIDTH, causal="a decoder"), heads=HEADS)
    sizes = [
        sum(leaf.numel() for leaf in leaves(run(block, x)[1]))
        for block in (built("a decoder"), plain)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("heads", "settings", "setting", "fix"),
    [
        (3, {}, "heads", "write `heads: 2`, or choose a width that 6 divides"),
        (8, {"positions": "rotary"}, "positions", "write `heads: 4`"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    heads: int, settings: dict[str, Any], setting: str, fix: str
) -> None:
    with pytest.raises(BlockError) as refused:
        DifferentialAttention(site_of(16), heads=heads, **settings)
    assert (refused.value.setting, refused.value.fix.text) == (setting, fix)
