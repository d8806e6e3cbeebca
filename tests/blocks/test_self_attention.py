"""Self-attention with relative positions and with a window, against the equations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError
from blocks.core.rotary import apply_rotary, rotary_angles
from blocks.self_attention import SelfAttention
from tests.blocks.single_block import close, in_pieces, keeps_chunks, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

LLAMA3 = {
    "base": 100.0,
    "share": 0.75,
    "scaling": {
        "llama3": {"factor": 8.0, "original_length": 12, "low_factor": 0.5, "high_factor": 1.5}
    },
}
YARN = {
    "scaling": {
        "yarn": {
            "factor": 8.0,
            "original_length": 300,
            "fast": 8.0,
            "slow": 0.25,
            "truncate": False,
        }
    }
}
VARIANTS = {
    "self_attention": (
        {"heads": 2, "dropout": 0.3},
        {"heads": 3, "window": 3},
        {"heads": 1, "window": 1},
        {"heads": 2, "positions": "relative", "max_distance": 3},
        {"heads": 2, "positions": "rotary"},
        {"heads": 3, "positions": "relative", "window": 3, "dropout": 0.3},
        {"heads": 3, "positions": "rotary", "window": 3},
        {"heads": 2, "positions": "transformer_xl"},
        {"heads": 2, "bias": False},
        {"heads": 3, "positions": "transformer_xl", "window": 3, "dropout": 0.3},
        {"heads": 4, "kv_heads": 2, "positions": "relative"},
        {"heads": 3, "kv_heads": 1, "window": 3, "qk_norm": True, "positions": "transformer_xl"},
        {"heads": 2, "kv_heads": 1, "positions": "rotary", "qk_norm": True, "soft_cap": 2.0},
        {"heads": 2, "positions": "alibi"},
        {"heads": 4, "kv_heads": 2, "positions": "alibi", "window": 3, "sinks": True},
        {"heads": 1, "window": 1, "sinks": True},
        {"heads": 2, "head_width": 4, "bias": "qkv", "kv_heads": 1, "positions": "transformer_xl"},
        {"heads": 5, "head_width": 3, "positions": "relative", "bias": "none"},
        {"heads": 2, "positions": "rotary", "rotary": {"scaling": {"linear": {"factor": 4.0}}}},
        {"heads": 2, "head_width": 8, "positions": "rotary", "rotary": LLAMA3},
        {"heads": 1, "positions": "rotary", "rotary": YARN, "window": 4},
        {"heads": 2, "positions": "t5"},
        {"heads": 2, "kv_heads": 1, "positions": "t5", "window": 3},
    ),
}
"""Settings with which the laws are checked, by block."""

LENGTHS = (6, 4)
X = torch.randn(2, 6, 8, dtype=torch.float64)
PLACES = ["", "a decoder"]
RELATIVE: list[dict[str, Any]] = [
    {"positions": "relative", "max_distance": 3},
    {"positions": "transformer_xl"},
]
KINDS: list[dict[str, Any]] = [{}, {"positions": "rotary"}, *RELATIVE]


def built(causal: str, **settings: Any) -> SelfAttention:
    return SelfAttention(site_of(8, causal=causal), heads=2, **settings)


def seen_from(at: int, length: int, causal: str, window: int | None) -> list[int]:
    return [
        item
        for item in range(length)
        if (item <= at or not causal) and (window is None or abs(at - item) < window)
    ]


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("furthest", [1, 2, 9])
def test_relative_positions_equal_their_equations(
    causal: str, window: int | None, furthest: int
) -> None:
    if window and furthest >= window:
        pytest.skip("refused: no distance in the window is so large")
    block = built(causal, positions="relative", max_distance=furthest, window=window)
    y, _ = run(block, X, mask_of(*LENGTHS))
    for row, length in enumerate(LENGTHS):
        query, keys, values = (
            item.unflatten(-1, (2, 4)) for item in block.project(X[row]).chunk(3, -1)
        )  # (T, H, d)
        for at in range(length):
            seen, heads = seen_from(at, length, causal, window), []
            for head in range(2):
                scores = torch.stack(
                    [query[at, head] @ (keys[j, head] + vector(block, "keys", at, j)) for j in seen]
                )
                read = torch.stack([values[j, head] + vector(block, "values", at, j) for j in seen])
                heads.append((scores / math.sqrt(4)).softmax(0) @ read)
            close(y[row, at], block.merge(torch.cat(heads)))


def vector(block: SelfAttention, which: str, at: int, other: int) -> Tensor:
    """a_ij of the clipped distance; the tables begin with the furthest position after `at`, if any
    is read.
    """
    table = getattr(block.relative, which)
    furthest = len(table) - 1 if block.causal else len(table) // 2
    return table[max(-furthest, min(furthest, at - other)) + (0 if block.causal else furthest)]


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("window", [None, 2])
def test_rotary_positions_equal_their_equations(causal: str, window: int | None) -> None:
    block = built(causal, positions="rotary", window=window)
    y, _ = run(block, X, mask_of(*LENGTHS))
    for row, length in enumerate(LENGTHS):
        query, keys, values = (
            item.unflatten(-1, (2, 4)) for item in block.project(X[row]).chunk(3, -1)
        )  # (T, H, d)
        for at in range(length):
            seen, heads = seen_from(at, length, causal, window), []
            for head in range(2):
                scores = torch.stack(
                    [turned(query[at, head], at) @ turned(keys[j, head], j) for j in seen]
                )
                heads.append((scores / math.sqrt(4)).softmax(0) @ values[seen, head])
            close(y[row, at], block.merge(torch.cat(heads)))


def turned(x: Tensor, at: int) -> Tensor:
    """Pairs of features as complex numbers, each multiplied by e^(i t w). x: (d,)"""
    rates = torch.tensor([10_000 ** (-2 * i / len(x)) for i in range(len(x) // 2)])
    factors = torch.polar(torch.ones(len(x) // 2), at * rates)
    return torch.view_as_real(torch.view_as_complex(x.clone().view(-1, 2)) * factors).flatten()


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("window", [None, 3])
def test_positions_of_transformer_xl_equal_their_equation_and_its_gradients(
    causal: str, window: int | None
) -> None:
    block = built(causal, positions="transformer_xl", window=window)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    (u, v), w = (
        (block.relative.content, block.relative.position),
        block.relative.project.weight.unflatten(0, (2, 4)),
    )
    mask, expected = mask_of(*LENGTHS), []
    for row, length in enumerate(LENGTHS):
        query, keys, values = (
            item.unflatten(-1, (2, 4)) for item in block.project(X[row]).chunk(3, -1)
        )  # (T, H, d)
        for at in range(length):
            seen, heads = seen_from(at, length, causal, window), []
            for head in range(2):
                q, scores = query[at, head], []
                for j in seen:
                    r = w[head] @ sinusoids(at - j)
                    scores.append(
                        q @ keys[j, head] + q @ r + u[head, 0] @ keys[j, head] + v[head, 0] @ r
                    )
                heads.append((torch.stack(scores) / math.sqrt(4)).softmax(0) @ values[seen, head])
            expected.append(block.merge(torch.cat(heads)))
    y = run(block, X, mask)[0][mask]
    close(y, torch.stack(expected))
    factors = torch.randn_like(y)
    mine, theirs = (
        torch.autograd.grad((one * factors).sum(), [*block.parameters()])
        for one in (y, torch.stack(expected))
    )
    for one, other in zip(mine, theirs, strict=True):
        close(one, other)
    assert all(gradient.abs().max() > 1e-3 for gradient in mine)


def sinusoids(distance: int) -> Tensor:
    """R of a distance: sines of the four rates of a width of 8, then cosines."""
    angles = [distance / 10_000 ** (i / 4) for i in range(4)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    query, key, one = (
        torch.randn(1, 1, 1, 1, 6),
        torch.randn(1, 1, 1, 1, 6),
        torch.ones(1, 1, dtype=torch.bool),
    )

    def turn(x: Tensor, at: int) -> Tensor:
        return apply_rotary(x, *rotary_angles(one, torch.tensor([at]), 6))

    def score(at: int, other: int) -> Tensor:
        return (turn(query, at) * turn(key, other)).sum()

    close(score(5, 2), score(105, 102))
    close(score(7, 7), (query * key).sum())
    assert abs(float(score(5, 2) - score(5, 3))) > 1e-3
    assert abs(float(score(5, 2) - score(2, 5))) > 1e-3


@pytest.mark.parametrize("causal", PLACES)
def test_zero_relative_positions_change_nothing(causal: str) -> None:
    block, plain = built(causal, positions="relative"), built(causal)
    with torch.no_grad():
        block.relative.keys.zero_()
        block.relative.values.zero_()
    plain.load_state_dict(block.state_dict(), strict=False)
    mask = mask_of(*LENGTHS)
    close(run(block, X, mask)[0][mask], run(plain, X, mask)[0][mask])


@pytest.mark.parametrize("causal", PLACES)
@pytest.mark.parametrize("settings", KINDS)
def test_a_window_as_wide_as_the_sentence_masks_nothing(
    causal: str, settings: dict[str, Any]
) -> None:
    near, far = built(causal, window=6, **settings), built(causal, **settings)
    far.load_state_dict(near.state_dict())
    mask = mask_of(*LENGTHS)
    close(run(near, X, mask)[0][mask], run(far, X, mask)[0][mask])
    narrow = built(causal, window=5, **settings)
    narrow.load_state_dict(near.state_dict())
    assert not torch.allclose(run(narrow, X, mask)[0][mask], run(far, X, mask)[0][mask])


@pytest.mark.parametrize("settings", KINDS[1:])
def test_positions_make_attention_depend_on_the_order(settings: dict[str, Any]) -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    plain, block = built(""), built("", **settings)
    close(run(plain, X[:, order])[0], run(plain, X)[0][:, order])
    assert not torch.allclose(run(block, X[:, order])[0], run(block, X)[0][:, order])


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("window", [None, 4])
def test_ragged_chunks_equal_each_row_alone(settings: dict[str, Any], window: int | None) -> None:
    block = built("a decoder", window=window, **settings)
    x, lengths = torch.randn(3, 9, 8), (9, 4, 0)
    if window is not None:
        keeps_chunks(block, x, lengths)
        return
    for row, length in enumerate(lengths[:2]):  # the caches have holes, so their shapes differ
        alone, _ = run(block, x[row : row + 1, :length])
        close(in_pieces(block, x, lengths, row), alone[0])


def test_rotary_positions_need_pairs_of_features() -> None:
    with pytest.raises(BlockError, match="a head is 3 wide") as refused:
        SelfAttention(site_of(6), heads=2, positions="rotary")
    assert (refused.value.setting, refused.value.fix.text) == ("positions", "write `heads: 1`")
    with pytest.raises(BlockError, match="a head is 5 wide") as refused:
        SelfAttention(site_of(5), heads=1, positions="rotary")
    assert "relative" in refused.value.fix.text


def test_the_kernel_whose_gradients_were_nan_is_off() -> None:
    assert not torch.backends.cuda.cudnn_sdp_enabled()
