"""Multi-head latent attention against the equations of its paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError
from blocks.latent_attention import LatentAttention
from tests.blocks.single_block import close, context_of, in_pieces, leaves, mask_of, run, site_of
from tests.blocks.test_self_attention import PLACES, seen_from, turned

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "latent_attention": (
        {"heads": 2},
        {"heads": 3, "latent": 5, "query_latent": 4, "rotary_width": 6},
        {"heads": 5, "head_width": 3, "latent": 2, "rotary_width": 0, "dropout": 0.3},
    ),
}
"""Settings with which the laws are checked, by block."""

LENGTHS = (6, 4)


def built(causal: str, **settings: int) -> LatentAttention:
    block = LatentAttention(site_of(8, causal=causal), heads=2, **settings)
    for parameter in block.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return block


def normed(norm: torch.nn.Module, x: Tensor) -> Tensor:
    gain: Tensor = norm.gain  # type: ignore[assignment]
    return gain * x / (x.square().mean() + 1e-5).sqrt()


def expected(block: LatentAttention, x: Tensor, causal: str) -> Tensor:
    """y of one row by loops over positions and heads (equations 9 to 19). x: (T, D) -> (T, D)"""
    rows, width, rotary = [], block.width, block.rotary_width
    both = [block.compress.weight @ row for row in x]
    latents = [normed(block.norm, row[: block.latent]) for row in both]
    decoupled = [turned(row[block.latent :], at) for at, row in enumerate(both)]
    for at, row in enumerate(x):
        z = (
            row
            if not hasattr(block.compress_query, "weight")
            else block.compress_query.weight @ row
        )
        z = z if not hasattr(block.compress_query, "weight") else normed(block.query_norm, z)
        heads = []
        for head, query in enumerate((block.query.weight @ z).split(width + rotary)):
            seen, scores, values = seen_from(at, len(x), causal, None), [], []
            for other in seen:
                key = latents[other] @ block.keys[head]
                scores.append(query[:width] @ key + turned(query[width:], at) @ decoupled[other])
                values.append(latents[other] @ block.values[head])
            heads.append(
                (torch.stack(scores) / math.sqrt(width + rotary)).softmax(0) @ torch.stack(values)
            )
        rows.append(block.merge.weight @ torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"query_latent": 3, "latent": 5},
        {"head_width": 3, "rotary_width": 4},
        {"rotary_width": 0},
    ],
    ids=str,
)
def test_outputs_and_gradients_equal_the_papers_equations(
    causal: str, settings: dict[str, int]
) -> None:
    block, x, mask = built(causal, **settings), torch.randn(2, 6, 8), mask_of(*LENGTHS)
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


def test_single_queries_over_latents_have_the_gradients_of_expanded_keys() -> None:
    block, x, one = built("a decoder", query_latent=3), torch.randn(2, 5, 8), mask_of(1, 1)
    at_once, last = run(block, x)
    steps, state = [], block.start(x[:, :1], context_of(one))
    for at in range(5):
        y, state = block(x[:, at : at + 1], state, context_of(one))
        steps.append(y)
    stepped = torch.cat(steps, 1)
    torch.testing.assert_close(stepped, at_once, rtol=1e-10, atol=1e-10)
    close(state, last)
    factors = torch.randn_like(at_once)
    gradients = [
        torch.autograd.grad((y * factors).sum(), [*block.parameters()]) for y in (at_once, stepped)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_the_state_is_the_latent_and_the_decoupled_key() -> None:
    block = built("a decoder", latent=5, rotary_width=2)
    state = run(block, torch.randn(3, 7, 8))[1]
    assert [tuple(leaf.shape) for leaf in leaves(state)] == [(3, 7, 5 + 2), (3, 7), (3,)]


@pytest.mark.parametrize("rotary_width", [0, 4])
def test_ragged_chunks_equal_each_row_alone(rotary_width: int) -> None:
    block, x, lengths = (
        built("a decoder", rotary_width=rotary_width),
        torch.randn(3, 9, 8),
        (9, 4, 0),
    )
    for row, length in enumerate(lengths[:2]):  # the state has holes, so its shape differs
        close(in_pieces(block, x, lengths, row), run(block, x[row : row + 1, :length])[0][0])


@pytest.mark.parametrize(
    ("settings", "setting", "fix"),
    [
        ({"rotary_width": 3}, "rotary_width", "write `rotary_width: 4`"),
        ({"latent": 1}, "latent", "write `latent: 2` or more"),
        ({"query_latent": 1}, "query_latent", "write `query_latent: 2` or more, or remove it"),
    ],
)
def test_widths_that_cannot_be_are_refused(
    settings: dict[str, int], setting: str, fix: str
) -> None:
    with pytest.raises(BlockError) as refused:
        built("", **settings)
    assert (refused.value.setting, refused.value.fix.text) == (setting, fix)


def test_heads_divide_the_width_unless_they_have_their_own() -> None:
    with pytest.raises(BlockError, match="3 does not divide the width 8"):
        LatentAttention(site_of(8), heads=3)
    assert LatentAttention(site_of(8), heads=3, head_width=5).out.width == 8
