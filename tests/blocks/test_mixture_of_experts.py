"""A mixture of experts against a loop over positions, and how its loads are balanced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.conv import Conv
from blocks.conv2d import Conv2d
from blocks.core.contract import BlockError, Named, NoEffect, Stream
from blocks.cross_attention import CrossAttention
from blocks.feed_forward import FeedForward
from blocks.linear import Linear
from blocks.linear_attention import LinearAttention
from blocks.mixture_of_experts import MixtureOfExperts
from blocks.pool import Pool
from blocks.pool2d import Pool2d
from blocks.reverse import Reverse
from blocks.rnn import Rnn
from blocks.self_attention import SelfAttention
from tests.blocks.inner_stacks import TANH
from tests.blocks.single_block import context_of, grid_site, mask_of, run, site_of

VARIANTS = {
    "mixture_of_experts": (
        {"stack": TANH, "experts": 3},
        {"stack": [{"feed_forward": {"hidden": 5}}], "experts": 4, "top_k": 1, "shared": 2},
        {"stack": [{"linear": {"width": 6, "activation": "tanh"}}], "experts": 2},
        {"stack": TANH, "experts": 3, "normalise": True},
    ),
}
"""Settings with which the laws are checked, by block."""

STACK = [{"block": Linear, "activation": "tanh"}]
LENGTHS = (6, 4)


def built(**settings: Any) -> MixtureOfExperts:
    block = MixtureOfExperts(site_of(4), **{"stack": STACK, "experts": 4, **settings})
    for parameter in block.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return block


def train(block: MixtureOfExperts, x: Tensor, mask: Tensor) -> None:
    """Run a forward pass of training."""
    block.train()
    run(block, x, mask)


def choices(block: MixtureOfExperts, x: Tensor) -> Tensor:
    """Which experts each position chooses: (B, T, E)"""
    context = context_of(mask_of(*[x.shape[1]] * len(x)))._replace(records={})
    block(x, (), context)
    ((gates,),) = context.records.values()
    return gates > 0


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("top_k", "shared", "normalise"),
    [(1, 0, False), (2, 0, False), (2, 2, False), (4, 1, False), (2, 1, True), (4, 0, True)],
)
def test_outputs_and_gradients_equal_a_loop_over_positions(
    top_k: int, shared: int, normalise: bool
) -> None:
    block = built(top_k=top_k, shared=shared, balance_rate=0.001, normalise=normalise)
    x, mask = torch.randn(2, 6, 4), mask_of(*LENGTHS)
    block.moves += torch.tensor([200, -100, 0, 50])
    rows = []
    for row in x[mask]:
        scores = torch.sigmoid(block.router.weight @ row)
        order = sorted(
            range(4),
            key=lambda i: scores.tolist()[i] + 0.001 * block.moves.tolist()[i],
            reverse=True,
        )
        total = sum(scores[i] for i in order[:top_k]) if normalise else 1.0
        experts = [(scores[i] / total, block.stacks[i]) for i in order[:top_k]]
        experts += [(torch.ones(()), block.stacks[4 + j]) for j in range(shared)]
        rows.append(sum(gate * torch.tanh(stack.blocks[0].map(row)) for gate, stack in experts))
    mine, loops = run(block, x, mask)[0][mask], torch.stack(rows)
    torch.testing.assert_close(mine, loops, rtol=1e-10, atol=1e-10)
    factors = torch.randn_like(mine)
    gradients = [
        torch.autograd.grad((y * factors).sum(), [*block.parameters()], materialize_grads=True)
        for y in (mine, loops)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_all_experts_are_the_weighted_sum_of_all() -> None:
    block, x = built(top_k=4), torch.randn(2, 6, 4)
    outputs = torch.stack([run(stack, x)[0] for stack in block.stacks], -1)  # (B, T, D, E)
    expected = (outputs * torch.sigmoid(block.router(x))[..., None, :]).sum(-1)
    torch.testing.assert_close(run(block, x)[0], expected, rtol=1e-10, atol=1e-10)


def test_the_weight_of_one_expert_is_not_normalised() -> None:
    with pytest.raises(BlockError) as refused:
        built(top_k=1, normalise=True)
    assert (refused.value.setting, "top_k: 2" in refused.value.fix.text) == ("normalise", True)


def test_every_position_has_top_k_experts_however_many_want_one() -> None:
    block = built(top_k=2)
    with torch.no_grad():
        block.router.weight[0] = 10 * torch.ones(4)
    chosen = choices(block, torch.rand(3, 7, 4))
    assert chosen.sum(-1).eq(2).all()
    assert chosen[..., 0].all()


def test_a_bias_changes_who_is_chosen_and_not_the_weight() -> None:
    block, x = built(top_k=4), torch.randn(2, 6, 4)
    before = run(block, x)[0]
    block.moves += torch.tensor([1000, 0, -1000, 0])
    torch.testing.assert_close(run(block, x)[0], before)
    one = built(top_k=1)
    one.moves += torch.tensor([0, 0, 10_000, 0])
    assert choices(one, x).sum((0, 1)).tolist() == [0, 0, 12, 0]


def test_a_step_moves_each_bias_towards_the_mean_load() -> None:
    block = built(experts=3, top_k=1)
    block.counts += torch.tensor([4, 0, 2])
    block.finish_step(lambda counts: counts)
    assert block.moves.tolist() == [-1, 1, 0]
    assert block.counts.tolist() == [0, 0, 0]
    block.finish_step(lambda counts: counts)
    assert block.moves.tolist() == [-1, 1, 0]


def test_what_is_counted_is_real_and_of_training() -> None:
    block, x = built(top_k=2), torch.randn(2, 6, 4)
    block.eval()
    run(block, x)
    assert block.counts.sum() == 0
    with torch.no_grad():
        train(block, x, mask_of(*LENGTHS))
    assert block.counts.sum() == 0
    train(block, x, mask_of(*LENGTHS))
    assert block.counts.sum() == 2 * sum(LENGTHS)
    assert block.counts.tolist() == choices(block.eval(), x)[mask_of(*LENGTHS)].sum(0).tolist()


def test_devices_and_parts_of_a_step_change_as_one_batch_does() -> None:
    block, x, mask = built(top_k=2), torch.randn(4, 6, 4), mask_of(6, 4, 5, 0)
    devices = [built(top_k=2) for _ in range(2)]
    for device in devices:
        device.load_state_dict(block.state_dict())
    train(block, x, mask)
    # two parts of a step on the first, the second has the other rows
    for rows in (slice(0, 1), slice(1, 2)):
        train(devices[0], x[rows], mask[rows])
    train(devices[1], x[2:], mask[2:])
    total = sum(device.counts for device in devices)
    block.finish_step(lambda counts: counts)
    for device in devices:
        device.finish_step(lambda counts: total)
    assert block.moves.abs().sum() > 0
    assert [device.moves.tolist() for device in devices] == [block.moves.tolist()] * 2


def test_steps_balance_the_loads() -> None:
    torch.manual_seed(3)
    block, x, mask = built(top_k=1, balance_rate=0.01), torch.rand(8, 16, 4), mask_of(*[16] * 8)
    first = choices(block, x).sum((0, 1)).max()
    for _ in range(200):
        train(block, x, mask)
        block.finish_step(lambda counts: counts)
    last = choices(block, x).sum((0, 1)).max()
    assert first > 64
    assert last < 48  # of 128 positions, 32 for each


def test_biases_are_saved_and_rounded_by_no_precision() -> None:
    block, other = built(), built()
    block.moves += torch.tensor([1001, 0, -7, 3])
    other.load_state_dict(block.bfloat16().state_dict())
    assert other.moves.tolist() == [1001, 0, -7, 3]


@pytest.mark.parametrize(
    ("inner", "causal"),
    [
        (block, causal)
        for block in (Rnn, SelfAttention, Conv, Reverse, LinearAttention)
        for causal in ("", "a decoder")
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_block_that_reads_other_positions_is_refused(inner: type, causal: str) -> None:
    heads = {"heads": 2} if inner in (SelfAttention, LinearAttention) else {}
    stack = [{"block": FeedForward}, {"block": inner, **heads}]
    expected = (
        "may not read the future"
        if inner is Reverse and causal
        else f"and `{inner.__name__}` reads more"
    )
    with pytest.raises(BlockError, match=expected) as refused:
        MixtureOfExperts(site_of(4, causal=causal), stack=stack, experts=2)
    if not (inner is Reverse and causal):
        assert refused.value.setting == "stack"
        assert "feed_forward" in refused.value.fix.text


def test_a_block_of_a_grid_that_reads_other_cells_is_refused() -> None:
    for inner in ({"block": Conv2d}, {"block": Pool2d, "size": (3, 3), "stride": (1, 1)}):
        with pytest.raises(BlockError, match="reads more"):
            MixtureOfExperts(grid_site(4, 3), stack=[inner], experts=2)
    MixtureOfExperts(grid_site(4, 3), stack=[{"block": FeedForward}], experts=2)


def test_an_expert_that_reads_a_memory_is_refused() -> None:
    place = site_of(4, causal="a decoder", memories={"encoder": Named(Stream(4))})
    with pytest.raises(BlockError, match="`CrossAttention` reads more"):
        MixtureOfExperts(place, stack=[{"block": CrossAttention}], experts=2)


def test_an_expert_keeps_the_length() -> None:
    with pytest.raises(BlockError, match="changes the number of positions"):
        MixtureOfExperts(site_of(4), stack=[{"block": Pool}], experts=2)


def test_more_experts_than_there_are_cannot_be_used() -> None:
    with pytest.raises(BlockError, match="cannot use 3 of 2 experts") as refused:
        built(experts=2, top_k=3)
    assert (refused.value.setting, refused.value.fix.text) == (
        "top_k",
        "write `top_k: 2` or less, or more `experts`",
    )


def test_a_rate_of_balance_needs_a_choice() -> None:
    with pytest.raises(NoEffect) as refused:
        built(experts=2, top_k=2, balance_rate=0.1)
    assert refused.value.setting == "balance_rate"
