"""Grouped heads, normalised queries and keys, capped scores, sinks and ALiBi, against loops over
their equations.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.attention import Softmax, attention, attention_weights, causal_mask, grouped_matmul
from blocks.core.contract import BlockError, NoEffect
from blocks.self_attention import SelfAttention
from tests.blocks.single_block import close, context_of, in_pieces, mask_of, run, site_of
from tests.blocks.test_self_attention import PLACES, seen_from, sinusoids, turned, vector

pytestmark = pytest.mark.usefixtures("float64")

LENGTHS = (6, 4)
HEADS, WIDTH = 4, 2
"""Heads, and how wide one is."""
SETTINGS: list[dict[str, Any]] = [
    {"kv_heads": 2},
    {"kv_heads": 1},
    {"qk_norm": True},
    {"qk_norm": True, "positions": "rotary", "kv_heads": 2},
    {"soft_cap": 0.3},
    {"sinks": True},
    {"positions": "alibi"},
    {"positions": "alibi", "soft_cap": 0.3, "sinks": True, "kv_heads": 2, "qk_norm": True},
    {"positions": "relative", "max_distance": 2, "soft_cap": 0.3, "sinks": True, "kv_heads": 2},
    {"positions": "transformer_xl", "soft_cap": 0.3, "sinks": True, "kv_heads": 2},
    {"positions": "t5", "kv_heads": 2},
    {"positions": "t5", "soft_cap": 0.3, "sinks": True},
]


def built(causal: str, noise: float = 0.5, **settings: Any) -> SelfAttention:
    block = SelfAttention(site_of(HEADS * WIDTH, causal=causal), heads=HEADS, **settings)
    for parameter in block.parameters():
        parameter.data += noise * torch.randn_like(parameter)
    return block


def heads_of(block: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one row, the last two once for each head of queries. x: (T, D) -> (T, H, d)
    each
    """
    sizes = [HEADS * WIDTH, block.kv_heads * WIDTH, block.kv_heads * WIDTH]
    query, keys, values = (
        part.unflatten(-1, (-1, WIDTH)) for part in block.project(x).split(sizes, -1)
    )
    shared = [head * block.kv_heads // HEADS for head in range(HEADS)]
    if block.norms is not None:
        query, keys = (
            norm.gain * part / (part.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            for norm, part in zip(block.norms, (query, keys), strict=True)
        )
    return query, keys[:, shared], values[:, shared]


def score(
    block: SelfAttention, positions: str, query: Tensor, key: Tensor, head: int, at: int, other: int
) -> Tensor:
    """e_ij of one head before it is capped. query, key: (d,)"""
    if positions == "rotary":
        return turned(query, at) @ turned(key, other)
    if positions == "relative":
        return query @ (key + vector(block, "keys", at, other))
    if positions == "transformer_xl":
        relative = block.relative
        r = relative.project.weight.unflatten(0, (HEADS, WIDTH))[head] @ sinusoids(at - other)
        return (query + relative.content[head, 0]) @ key + (query + relative.position[head, 0]) @ r
    return query @ key


def expected(
    block: SelfAttention, x: Tensor, causal: str, window: int | None, settings: dict[str, Any]
) -> Tensor:
    """y of one row by loops over positions and heads. x: (T, D) -> (T, D)"""
    (query, keys, values), positions, rows = heads_of(block, x), settings.get("positions", ""), []
    for at in range(len(x)):
        seen, heads = seen_from(at, len(x), causal, window), []
        for head in range(HEADS):
            factors = []
            for other in seen:
                e = score(
                    block, positions, query[at, head], keys[other, head], head, at, other
                ) / math.sqrt(WIDTH)
                e = (
                    settings["soft_cap"] * torch.tanh(e / settings["soft_cap"])
                    if "soft_cap" in settings
                    else e
                )
                e = (
                    e - 2 ** (-8 * (head + 1) / HEADS) * abs(at - other)
                    if positions == "alibi"
                    else e
                )
                if positions == "t5":  # up to 7 positions a bucket is one distance
                    later = 16 if at < other and not causal else 0
                    e = e + block.relative.bias[later + abs(at - other), head]
                factors.append(e.exp())
            total = sum(factors) + (block.softmax.sinks[head].exp() if "sinks" in settings else 0)
            read = [
                values[other, head]
                + (vector(block, "values", at, other) if positions == "relative" else 0)
                for other in seen
            ]
            heads.append(
                sum(factor / total * value for factor, value in zip(factors, read, strict=True))
            )
        rows.append(block.merge(torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_outputs_and_gradients_equal_loops(
    causal: str, window: int | None, settings: dict[str, Any]
) -> None:
    block, mask, x = (
        built(causal, window=window, **settings),
        mask_of(*LENGTHS),
        torch.randn(2, 6, HEADS * WIDTH),
    )
    mine = run(block, x, mask)[0][mask]
    loops = torch.cat(
        [expected(block, x[row, :n], causal, window, settings) for row, n in enumerate(LENGTHS)]
    )
    torch.testing.assert_close(mine, loops, rtol=1e-10, atol=1e-10)
    factors = torch.randn_like(mine)
    gradients = [
        torch.autograd.grad((y * factors).sum(), [*block.parameters()]) for y in (mine, loops)
    ]
    for (name, _), one, other in zip(block.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=name)
        assert one.abs().max() > 1e-4, name


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_ragged_chunks_equal_each_row_alone(settings: dict[str, Any], window: int | None) -> None:
    block, x, lengths = (
        built("a decoder", window=window, **settings),
        torch.randn(3, 9, HEADS * WIDTH),
        (9, 4, 0),
    )
    for row, length in enumerate(lengths[:2]):
        alone, _ = run(block, x[row : row + 1, :length])
        close(in_pieces(block, x, lengths, row), alone[0])


@pytest.mark.parametrize("causal", PLACES)
def test_shared_heads_equal_copies_of_them(causal: str) -> None:
    few, many = built(causal, kv_heads=2), built(causal)
    copies = [
        *range(8),
        *(8 + WIDTH * group + i for group in (0, 0, 1, 1) for i in range(WIDTH)),
        *(12 + WIDTH * group + i for group in (0, 0, 1, 1) for i in range(WIDTH)),
    ]
    state = few.state_dict()
    many.load_state_dict(
        state
        | {
            "project.weight": state["project.weight"][copies],
            "project.bias": state["project.bias"][copies],
        }
    )
    x, mask = torch.randn(2, 6, 8), mask_of(*LENGTHS)
    close(run(few, x, mask)[0][mask], run(many, x, mask)[0][mask])
    sizes = [sum(leaf.numel() for leaf in run(block, x, mask)[1][:2]) for block in (few, many)]
    assert sizes == ([0, 0] if not causal else [2 * 2 * 2 * 6 * WIDTH, 2 * 2 * 4 * 6 * WIDTH])


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"kv_heads": HEADS}, {}),
        ({"soft_cap": 1e8}, {}),
        ({"sinks": True}, {"softmax.sinks": -math.inf}),
    ],
    ids=["kv_heads", "soft_cap", "sinks"],
)
def test_limits_are_plain_attention(
    causal: str, settings: dict[str, Any], changes: dict[str, float]
) -> None:
    block, plain = built(causal, **settings), built(causal)
    for name, value in changes.items():
        block.get_parameter(name).data.fill_(value)
    plain.load_state_dict(
        {name: value for name, value in block.state_dict().items() if name not in changes}
    )
    x, mask = torch.randn(2, 6, 8), mask_of(*LENGTHS)
    close(run(block, x, mask)[0][mask], run(plain, x, mask)[0][mask])


def test_weights_of_a_head_with_a_sink_sum_to_less_than_one() -> None:
    query, keys = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 3, 4)
    weights = attention_weights(query, keys, None, softmax=Softmax(1, sinks=True))
    factors = (query @ keys.transpose(-2, -1) / 2).exp()
    close(weights, factors / (1 + factors.sum()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_kernel_computes_groups_as_the_plain_products_do(
    causal: bool, masked: bool
) -> None:
    query, keys, values = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 7)
    mask = mask_of(5, 3)[:, None, None] if masked else None
    if causal and masked:
        mask, causal = mask & causal_mask(query), False
    fused = attention(query, keys, values, mask, context_of(mask_of(5, 3)), causal=causal)
    weights = attention_weights(query, keys.repeat_interleave(2, 1), mask, causal=causal)
    close(fused, weights @ values.repeat_interleave(2, 1))
    close(grouped_matmul(weights, values), fused)


def test_a_score_far_above_its_cap_is_the_cap() -> None:
    scores = torch.tensor([[[[-1e9, 0.0, 1e9]]]])
    close(Softmax(1, soft_cap=3.0)(scores, None), torch.tensor([[[[-3.0, 0.0, 3.0]]]]).softmax(-1))


def test_alibi_prefers_what_is_near_and_in_an_encoder_both_sides_alike() -> None:
    block = built("", noise=0.0, positions="alibi", bias=False)
    with torch.no_grad():
        # all queries are zero: the distance alone counts
        block.project.weight[: HEADS * WIDTH].zero_()
    context = context_of(mask_of(5))._replace(records={})
    block(torch.randn(1, 5, 8), (), context)
    ((weights,),) = context.records.values()  # (1, T, H, N)
    middle = weights[0, 2, 0]
    close(middle, middle.flip(0))
    assert middle[2] > middle[1] > middle[0]
    close(middle[1] / middle[2], torch.tensor(math.exp(-(2.0**-2))))


@pytest.mark.parametrize(("kv_heads", "nearest"), [(3, 2), (8, 4)])
def test_groups_that_do_not_divide_the_heads_are_refused(kv_heads: int, nearest: int) -> None:
    with pytest.raises(BlockError, match=f"{kv_heads} does not divide the 4 heads") as refused:
        built("", kv_heads=kv_heads)
    assert (refused.value.setting, refused.value.fix.text) == (
        "kv_heads",
        f"write `kv_heads: {nearest}`",
    )


def test_a_norm_of_one_feature_is_refused() -> None:
    with pytest.raises(BlockError, match="one feature") as refused:
        SelfAttention(site_of(4), heads=4, qk_norm=True)
    assert refused.value.setting == "qk_norm"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("positions", "alibi"), ("positions", "rotary"), ("qk_norm", True), ("soft_cap", 30.0)],
)
def test_what_chooses_among_positions_needs_more_than_one(setting: str, value: Any) -> None:
    with pytest.raises(NoEffect) as refused:
        built("", window=1, **{setting: value})
    assert refused.value.setting == setting


def test_with_a_sink_the_score_of_the_only_position_matters() -> None:
    plain = built("", window=1, sinks=True)
    x = torch.randn(2, 6, 8)
    for settings in ({"qk_norm": True}, {"soft_cap": 0.3}, {"positions": "transformer_xl"}):
        block = built("", window=1, sinks=True, **settings)
        block.load_state_dict({**block.state_dict(), **plain.state_dict()})
        assert (run(block, x)[0] - run(plain, x)[0]).abs().max() > 1e-3


def test_one_head_has_no_groups() -> None:
    with pytest.raises(NoEffect) as refused:
        SelfAttention(site_of(4), heads=1, kv_heads=1)
    assert refused.value.setting == "kv_heads"
