"""`cross_attention`: its scores against their equations, and what its settings come to where that
is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core import attention as kernels
from blocks.core.attention import attention
from blocks.core.contract import BlockError, Named, Output, Record, Stream, reduce_penalties
from blocks.cross_attention import CrossAttention
from blocks.recurrent import Recurrent
from composer.testing.harness import Case, random_batch, start
from tests.blocks.single_block import close, context_of, mask_of, run, site_of

VARIANTS = {
    "cross_attention": (
        {},
        {"heads": 3, "merge": "average", "dropout": 0.3},
        {"score": "general", "heads": 2, "values": "encoder.earlier"},
        {"score": "additive", "heads": 3, "query": "narrow", "sqrt_length": True},
        {"score": "additive", "heads": 2, "merge": "average", "local": "predicted", "window": 1},
        {"score": "fine_grained", "from": ["encoder", "encoder.earlier"], "dropout": 0.3},
        {"score": "location", "max_length": 5, "heads": 2, "local": "monotonic", "window": 1},
        {
            "heads": 2,
            "keys": "encoder.earlier",
            "values": "encoder",
            "local": "monotonic",
            "window": 2,
        },
        {"heads": 4, "from": ["encoder", "encoder.summary"], "query": "encoder.summary"},
        {
            "score": "general",
            "heads": 3,
            "local": "predicted",
            "window": 3,
            "from": "encoder.earlier",
        },
        {"score": "additive", "heads": 2, "gate": True, "doubly_stochastic": 0.5},
        {
            "score": "location",
            "max_length": 5,
            "gate": True,
            "query": "narrow",
            "doubly_stochastic": 1.0,
            "dropout": 0.3,
        },
    ),
}
"""Settings with which the laws are checked, by block."""

pytestmark = pytest.mark.usefixtures("float64", "no_gradients")

X = torch.randn(2, 5, 4, dtype=torch.float64)
LENGTHS = (3, 2)
REAL = mask_of(*LENGTHS)
SEEN = {
    "encoder": Named(Stream(6)),
    "encoder.low": Named(Stream(6)),
    "encoder.same": Named(Stream(4)),
    "encoder.short": Named(Stream(6, length_ratio=Fraction(1, 2))),
    "encoder.summary": Named(Stream(4, length_ratio=Fraction(0))),
    "encoder.image": Named(Stream(6, grid=True)),
    "other.low": Named(Stream(6)),
}
READ = {
    name: Output(torch.randn(2, 3, entry.stream.width, dtype=torch.float64), REAL)
    for name, entry in SEEN.items()
}
READ["encoder.summary"] = Output(torch.randn(2, 1, 4, dtype=torch.float64), mask_of(1, 1))
SCORES: tuple[dict[str, Any], ...] = (
    {"score": "scaled_dot"},
    {"score": "dot", "from_": "encoder.same"},
    {"score": "general"},
    {"score": "additive"},
    {"score": "location", "max_length": 3},
    {"score": "fine_grained"},
)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Only outputs are compared here."""
    with torch.no_grad():
        yield


def build_block(**settings: Any) -> CrossAttention:
    """A block where X arrives and READ can be read."""
    return CrossAttention(site_of(4, memories=SEEN), **settings)


def read_outputs(block: CrossAttention, x: Tensor = X, **changed: Output) -> Tensor:
    """What the block makes of X."""
    return run(block, x, None, **{**READ, **changed})[0]


def tied(block: CrossAttention, other: CrossAttention) -> CrossAttention:
    """`block` with the parameters of `other`, one after another, repeated over heads where it has
    more of them.
    """
    for mine, theirs in zip(block.parameters(), other.parameters(), strict=True):
        assert mine.numel() % theirs.numel() == 0
        mine.data = theirs.data.repeat(
            mine.shape[0] // theirs.shape[0], *[1] * (mine.ndim - 1)
        ).view_as(mine)
    return block


def by_hand(score: Callable[[Tensor, Tensor, int], Any], states: Tensor, values: Tensor) -> Tensor:
    """sum_s softmax_s(score(q, k_s, s)) v_s, position by position, over the real positions of each
    row.
    """
    y = torch.empty(2, 5, values.shape[-1])
    for row, length in enumerate(LENGTHS):
        for at in range(5):
            scores = [math.exp(float(score(X[row, at], states[row, s], s))) for s in range(length)]
            y[row, at] = sum(e * v for e, v in zip(scores, values[row], strict=False)) / sum(scores)
    return y


# ------------------------------------------------------------------------------------------- the
# scores


def test_scaled_dot_product_attention_equals_its_equation() -> None:
    block = build_block()
    keys, values = block.project(READ["encoder"].states).chunk(2, -1)
    y = by_hand(lambda q, k, s: block.query(q) @ k / 2, keys, values)
    close(read_outputs(block), block.merge(y))


def test_dot_attention_equals_its_equation() -> None:
    block, states = build_block(score="dot", from_="encoder.same"), READ["encoder.same"].states
    assert list(block.parameters()) == []
    close(read_outputs(block), by_hand(lambda q, k, s: q @ k, states, states))


def test_general_attention_equals_its_equation() -> None:
    block, states = build_block(score="general"), READ["encoder"].states
    (w,) = block.parameters()
    y = by_hand(lambda q, k, s: torch.nn.functional.bilinear(q, k, w[None]), states, states)
    close(read_outputs(block), y)


def test_additive_attention_equals_its_equation() -> None:
    block, states = build_block(score="additive"), READ["encoder"].states
    (v,), w, u, b = block.score.vectors, block.query.weight, block.project.weight, block.query.bias
    b.data += torch.randn(4)

    def score(q: Tensor, k: Tensor, s: int) -> float:
        total = 0.0
        for i in range(4):
            inner = sum(float(w[i, j] * q[j]) for j in range(4)) + sum(
                float(u[i, j] * k[j]) for j in range(6)
            )
            total += float(v[i]) * math.tanh(inner + float(b[i]))
        return total

    close(read_outputs(block), by_hand(score, states, states))


def test_location_attention_equals_its_equation() -> None:
    block, states = build_block(score="location", max_length=2), READ["encoder"].states
    (w,) = block.parameters()
    for row in range(2):
        for at in range(5):
            close(read_outputs(block)[row, at], (w @ X[row, at]).softmax(0) @ states[row, :2])
    close(
        read_outputs(block, encoder=READ["encoder"]._replace(mask=mask_of(3, 3))),
        read_outputs(block),
    )
    short = Output(states[:, :1], mask_of(1, 1))
    close(read_outputs(block, encoder=short), states[:, :1].expand(-1, 5, -1))


def test_fine_grained_attention_equals_its_equation() -> None:
    block, states = build_block(score="fine_grained"), READ["encoder"].states
    y = read_outputs(block)
    for f in range(6):
        v = block.score.vectors[f]
        one = by_hand(
            lambda q, k, s, v=v: v @ torch.tanh(block.query(q) + block.project(k)),
            states,
            states[..., f : f + 1],
        )
        close(y[..., f : f + 1], one)


def test_fine_grained_with_one_vector_for_all_features_is_additive() -> None:
    additive = build_block(score="additive")
    close(read_outputs(tied(build_block(score="fine_grained"), additive)), read_outputs(additive))


@pytest.mark.parametrize("settings", SCORES)
def test_a_row_without_a_memory_reads_zeros(settings: dict[str, Any]) -> None:
    block = build_block(**settings)
    name = block.sources[0].memory
    y = read_outputs(block, **{name: READ[name]._replace(mask=mask_of(3, 0))})
    assert y[0].abs().sum() > 0
    close(
        y[1],
        torch.zeros_like(y[1]) + (block.merge.bias if settings["score"] == "scaled_dot" else 0.0),
    )


# ------------------------------------------------------------------------------------------- heads


@pytest.mark.parametrize("merge", ["average", "concat"])
@pytest.mark.parametrize("settings", [{"score": "general"}, {"score": "location", "max_length": 3}])
def test_equal_heads_are_one_head(settings: dict[str, Any], merge: str) -> None:
    one = build_block(**settings)
    close(read_outputs(tied(build_block(**settings, heads=3, merge=merge), one)), read_outputs(one))


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_averaged_weights_read_undivided_values(score: str) -> None:
    apart, block = (
        build_block(score=score, heads=2),
        build_block(score=score, heads=2, merge="average"),
    )
    block.load_state_dict(apart.state_dict())
    weights = recorded(apart).mean(2)  # (B, T, S), of the heads that read apart
    states = READ["encoder"].states
    values = states if score == "additive" else block.project(states)[..., 4:]
    close(read_outputs(block), block.merge(weights @ values))
    close(recorded(block), weights[:, :, None])


def test_heads_of_a_dot_product_compare_and_read_their_shares() -> None:
    block, states = (
        build_block(score="dot", heads=2, from_="encoder.same"),
        READ["encoder.same"].states,
    )
    for share in (slice(0, 2), slice(2, 4)):
        one = by_hand(lambda q, k, s: q[share] @ k[share], states, states[..., share])  # noqa: B023
        close(read_outputs(block)[..., share], one)


def test_heads_of_the_other_scores_read_their_shares() -> None:
    block, states = build_block(score="additive", heads=2), READ["encoder"].states
    weights = recorded(block)  # (B, T, H, S)
    close(
        read_outputs(block),
        torch.cat([weights[:, :, h] @ states[..., 3 * h : 3 * h + 3] for h in range(2)], -1),
    )


# ------------------------------------------------------------------------------------------- what
# is read


def test_keys_and_values_come_from_two_outputs() -> None:
    block = build_block(score="additive", keys="encoder.low", values="encoder")
    weights = recorded(copy_block(block, score="additive", from_="encoder.low"))
    close(read_outputs(block), weights[:, :, 0] @ READ["encoder"].states)
    close(
        read_outputs(copy_block(block, score="additive", keys="encoder.low")), read_outputs(block)
    )
    projected = build_block(keys="encoder.low", values="encoder")
    keys, values = (
        projected.project(READ["encoder.low"].states),
        projected.more[0](READ["encoder"].states),
    )
    y = by_hand(lambda q, k, s: projected.query(q) @ k / 2, keys, values)
    close(read_outputs(projected), projected.merge(y))


def copy_block(block: CrossAttention, **settings: Any) -> CrossAttention:
    """Another block with the same parameters."""
    other = build_block(**settings)
    other.load_state_dict(block.state_dict())
    return other


def test_a_named_query_is_read_in_place_of_the_stream() -> None:
    block = build_block(score="additive", query="encoder.summary")
    query = READ["encoder.summary"].states.expand(-1, 5, -1)
    close(read_outputs(block), read_outputs(copy_block(block, score="additive"), query))


@pytest.mark.parametrize("settings", [{}, {"score": "general"}, {"score": "fine_grained"}])
def test_a_list_of_one_memory_is_that_memory(settings: dict[str, Any]) -> None:
    block = build_block(**settings, from_="encoder.low")
    close(read_outputs(copy_block(block, **settings, from_=["encoder.low"])), read_outputs(block))


@pytest.mark.parametrize("score", ["scaled_dot", "general", "additive", "fine_grained"])
def test_several_memories_with_equal_maps_equal_one_memory(score: str) -> None:
    block = build_block(score=score, from_=["encoder", "encoder.low"])
    block.more[0].load_state_dict(block.project.state_dict())
    one = Output(
        torch.cat([READ["encoder"].states, READ["encoder.low"].states], 1),
        torch.cat((REAL, REAL), 1),
    )
    nothing = READ["encoder.low"]._replace(mask=torch.zeros_like(REAL))
    close(read_outputs(block), read_outputs(block, **{"encoder": one, "encoder.low": nothing}))


def test_several_memories_have_maps_of_their_own_and_one_softmax() -> None:
    block = build_block(score="additive", from_=["encoder", "encoder.same"])
    maps = block.project(READ["encoder"].states), block.more[0](READ["encoder.same"].states)
    query, (v,) = block.query(X), block.score.vectors
    for row, length in enumerate(LENGTHS):
        keys, values = torch.cat([item[row, :length] for item in maps]).chunk(2, -1)
        weights = (torch.tanh(query[row][:, None] + keys) @ v).softmax(-1)  # (T, S + S)
        close(read_outputs(block)[row], weights @ values)


def test_sqrt_length_scales_the_output_by_the_square_root_of_the_length() -> None:
    block = build_block(score="general")
    factor = torch.tensor(LENGTHS).sqrt()[:, None, None]
    close(
        read_outputs(copy_block(block, score="general", sqrt_length=True)),
        read_outputs(block) * factor,
    )


# -------------------------------------------------------------------------------------------
# windows


@pytest.mark.parametrize("settings", SCORES)
def test_a_window_as_wide_as_the_sentence_masks_nothing(settings: dict[str, Any]) -> None:
    block = build_block(**settings)
    close(
        read_outputs(copy_block(block, **settings, local="monotonic", window=3)),
        read_outputs(block),
    )


def test_a_window_follows_the_positions() -> None:
    block = build_block(score="additive", local="monotonic", window=1)
    weights = recorded(block)[:, :, 0]
    seen = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]], dtype=torch.bool)
    assert torch.equal(weights[0] > 0, seen)  # waits at the last of three
    assert torch.equal(weights[1] > 0, torch.tensor([True, True, False]).expand(5, 3))  # of two
    close(weights.sum(-1), torch.ones(2, 5))


def test_a_predicted_window_fades() -> None:
    block, plain = (
        build_block(score="general", local="predicted", window=1),
        build_block(score="general"),
    )
    plain.load_state_dict({"project.weight": block.project.weight})
    v, w = block.local.vectors[0], block.local.query.weight
    scores = X @ (READ["encoder"].states @ plain.project.weight.T).transpose(1, 2)  # (B, T, S)
    for row, length in enumerate(LENGTHS):
        for at in range(5):
            centre = length / (1 + math.exp(-float(v @ torch.tanh(w @ X[row, at]))))
            near = [s for s in range(length) if abs(s - centre) <= 1]
            total = sum(math.exp(float(scores[row, at, s])) for s in near)
            expected = torch.zeros(3)
            for s in near:
                share = math.exp(float(scores[row, at, s])) / total
                expected[s] = share * math.exp(-((s - centre) ** 2) / (2 * 0.5**2))
            close(recorded(block)[row, at, 0], expected)


def test_a_very_wide_predicted_window_masks_nothing() -> None:
    block, plain = (
        build_block(score="additive", local="predicted", window=1_000_000),
        build_block(score="additive"),
    )
    plain.load_state_dict(
        {key: value for key, value in block.state_dict().items() if not key.startswith("local")}
    )
    torch.testing.assert_close(read_outputs(block), read_outputs(plain), rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------- gate
# and penalty


def test_a_gate_scales_what_is_read() -> None:
    block = build_block(score="general")
    gated = build_block(score="general", gate=True)
    torch.nn.init.constant_(gated.gate.bias, 0.3)
    gated.load_state_dict({**gated.state_dict(), **block.state_dict()})
    w, b = gated.gate.weight[0], gated.gate.bias[0]
    expected = torch.stack(
        [
            1 / (1 + (-(X[:, at] @ w + b)).exp())[:, None] * read_outputs(block)[:, at]
            for at in range(5)
        ],
        1,
    )
    close(read_outputs(gated), expected)


@pytest.mark.parametrize("cut", [(5,), (2, 3), (1, 1, 1, 1, 1)])
def test_the_penalty_of_any_chunks_is_that_of_all_positions(cut: tuple[int, ...]) -> None:
    with torch.enable_grad():
        block, mask, penalties = (
            build_block(score="general", doubly_stochastic=0.7),
            mask_of(5, 3),
            {},
        )
        state = block.start(X[:, :1], context_of(mask[:, :1], READ))
        for x, real in zip(X.split(cut, 1), mask.split(cut, 1), strict=True):
            _, state = block(x, state, context_of(real, READ)._replace(penalties=penalties))
        expected = torch.zeros(())
        for row, positions in enumerate((5, 3)):
            total = [torch.zeros(()) for _ in range(LENGTHS[row])]
            for at in range(positions):
                keys = READ["encoder"].states[row, : LENGTHS[row]] @ block.project.weight.T
                total = [
                    sum(pair) for pair in zip(total, (keys @ X[row, at]).softmax(0), strict=True)
                ]
            expected = expected + 0.7 * sum((1 - one) ** 2 for one in total) / 2
        (penalty,) = reduce_penalties(penalties).values()
        close(penalty, expected)
        close(*(torch.autograd.grad(cost, block.project.weight)[0] for cost in (penalty, expected)))


def test_the_penalty_of_a_loop_is_that_of_all_its_positions() -> None:
    attends = {
        "query": "prev.top",
        "score": "additive",
        "heads": 2,
        "doubly_stochastic": 0.5,
        "as": "top",
    }
    case = Case(Recurrent, {"stack": [{"cross_attention": attends}]})
    block, batch = case.exact(), random_batch(case, (5, 3))
    context = context_of(batch.mask, batch.memories)._replace(records={}, penalties={})
    block(batch.x, start(block, batch), context)
    weights = torch.cat(next(iter(context.records.values())), 1).mean(2)  # (B, T, S)
    read, there = (weights * batch.mask[..., None]).sum(1), batch.memories["encoder"].mask  # (B, S)
    close(
        tuple(reduce_penalties(context.penalties).values()),
        (0.5 * ((1 - read)[there] ** 2).sum() / 2,),
    )


def test_an_empty_memory_is_not_penalised() -> None:
    block, penalties = build_block(doubly_stochastic=1.0), {}
    nothing = {**READ, "encoder": READ["encoder"]._replace(mask=mask_of(3, 0))}
    context = context_of(mask_of(5, 5), nothing)._replace(penalties=penalties)
    _, state = block(X, block.start(X[:, :1], context), context)
    assert state[-1].penalty[1] == 0


# -------------------------------------------------------------------------------------------
# weights on request


def recorded(block: CrossAttention) -> Tensor:
    """The weights that a block hands out, (B, T, H, S)."""
    context = context_of(torch.ones(2, 5, dtype=torch.bool), READ)._replace(
        records={}, path=("here",)
    )
    block(X, block.start(X[:, :1], context), context)
    assert context.records is not None
    (key, (weights,)) = next(iter(context.records.items()))
    assert key == Record(("here",), (), "weights")
    return weights


@pytest.mark.parametrize("settings", SCORES)
def test_weights_are_recorded_on_request(settings: dict[str, Any]) -> None:
    weights = recorded(build_block(**settings))
    assert weights.shape == (2, 5, 1, 3)
    close(weights.sum(-1), torch.ones(2, 5, 1))
    assert weights[1, ..., 2].abs().sum() == 0
    if settings["score"] != "fine_grained":
        assert recorded(build_block(**settings, heads=2)).shape == (2, 5, 2, 3)


@pytest.mark.parametrize("settings", SCORES)
def test_dot_products_use_the_fused_kernel(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    kernel = kernels.F.scaled_dot_product_attention
    monkeypatch.setattr(
        kernels.F,
        "scaled_dot_product_attention",
        lambda *a, **k: counted.append("fused") or kernel(*a, **k),
    )
    monkeypatch.setattr(kernels, "attention_weights", lambda *a, **k: counted.append("weights"))
    monkeypatch.setattr(CrossAttention, "_record", lambda *a: counted.append("record"))
    read_outputs(build_block(**settings))
    assert counted == (["fused"] if settings["score"] in ("scaled_dot", "dot", "general") else [])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("recording", [False, True])
def test_attention_takes_a_bias_and_a_scale(causal: bool, recording: bool) -> None:
    query, keys, values = torch.randn(3, 2, 1, 4, 3).unbind(0)
    bias, mask = torch.randn(2, 1, 4, 4), None if causal else mask_of(4, 2)[:, None, None]
    context = context_of(mask_of(4, 4))._replace(records={} if recording else None)
    y = attention(query, keys, values, mask, context, causal=causal, bias=bias, scale=0.3)
    scores = 0.3 * query @ keys.transpose(2, 3) + bias
    seen = torch.ones(4, 4, dtype=torch.bool).tril() if mask is None else mask
    expected = scores.masked_fill(~seen, -math.inf).softmax(-1)
    close(y, expected @ values)
    if context.records is not None:
        close(next(iter(context.records.values()))[0], expected.transpose(1, 2))


# -------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("setting", "message", "settings"),
    [
        ("score", "for how many", {"score": "location"}),
        ("max_length", "no maximal length", {"score": "general", "max_length": 4}),
        ("score", "the query is 4 wide, `encoder` 6", {"score": "dot"}),
        (
            "score",
            "of one memory",
            {"score": "location", "max_length": 3, "from_": ["encoder", "encoder.low"]},
        ),
        ("score", "positions alone", {"score": "location", "max_length": 3, "keys": "encoder.low"}),
        ("heads", "no heads", {"score": "fine_grained", "heads": 2}),
        ("heads", "4 does not divide the width 6", {"score": "additive", "heads": 4}),
        ("heads", "3 does not divide the width 4", {"score": "additive", "heads": 3}),
        (
            "heads",
            "3 does not divide the width 4",
            {"score": "general", "heads": 3, "local": "predicted"},
        ),
        (
            "heads",
            "3 does not divide the width 4",
            {"score": "dot", "heads": 3, "from_": "encoder.same"},
        ),
        ("local", "a query for each position", {"local": "monotonic", "query": "encoder.summary"}),
        ("local", "a query for each position", {"local": "predicted", "query": "encoder.summary"}),
        ("local", "reads one memory", {"local": "monotonic", "from_": ["encoder", "encoder.low"]}),
        ("window", "needs `local`", {"window": 3}),
        ("keys", "no memory is called", {"keys": "nothing"}),
        ("keys", "grid", {"keys": "encoder.image", "values": "encoder"}),
        ("from", "grid", {"from_": ["encoder", "encoder.image"]}),
        ("from", "no memory is named", {"from_": []}),
        ("from", "say all", {"keys": "encoder", "values": "encoder.low", "from_": "encoder"}),
        ("values", "two encoders", {"keys": "encoder", "values": "other.low"}),
        ("values", "1/2", {"values": "encoder.short"}),
        ("keys", "1/2", {"keys": "encoder.short"}),
        (
            "keys",
            "each gives its own",
            {"from_": ["encoder", "encoder.low"], "keys": "encoder.low"},
        ),
        ("query", "nobody", {"query": "nobody"}),
        ("query", "positions of an encoder", {"query": "encoder.same"}),
    ],
)
def test_conflicting_settings_are_refused(
    setting: str, message: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(BlockError) as refused:
        build_block(**settings)
    assert refused.value.setting == setting
    assert message in refused.value.message
    assert refused.value.fix.text


def test_a_window_needs_a_query_per_position() -> None:
    site = site_of(4, memories=SEEN)
    still = site.__class__(Stream(4, length_ratio=Fraction(0)), 4, site.names, SEEN, ["encoder"])
    with pytest.raises(BlockError, match="a query for each position"):
        CrossAttention(still, local="monotonic")
