"""Batch sampler: every row exactly once, the same batches for any number of devices, and little
padding.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.padding import fill_ratio
from composer.data.collate import BatchLoader
from composer.data.ids import Encoded, Ids
from composer.data.sampler import (
    EvalBatchSampler,
    TrainBatchSampler,
    global_batches,
    pair_lengths,
    plan_buckets,
)
from composer.model.special_tokens import BOS, EOS


def some(
    count: int, seed: int = 0, longest: int = 30, sides: tuple[str, ...] = ("source",)
) -> Encoded:
    draw = np.random.default_rng(seed)

    def ids() -> Ids:
        return Ids.of(
            [[draw.integers(4, 99, draw.integers(0, longest + 1)).tolist() for _ in range(count)]],
            99,
        )

    return Encoded(
        {side: ids() for side in sides}, ids(), [str(row) for row in range(count)], np.arange(count)
    )


def order(encoded: Encoded, rank: int = 0, world: int = 1, **changes) -> TrainBatchSampler:
    sampler = TrainBatchSampler(encoded, **{"tokens_per_batch": 90, "seed": 1, **changes})
    sampler.rank, sampler.world = rank, world
    return sampler


def rows(shares) -> list[list[int]]:
    return [sorted(share.rows.tolist()) for share in shares]


@given(
    pairs=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 900)), min_size=1, max_size=150),
    budget=st.integers(1, 600),
    epoch=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_batches_partition_the_rows_within_the_budget(pairs, budget, epoch):
    target, source = np.array(pairs).T
    blocks = plan_buckets(target, source, budget)
    batches = global_batches(blocks, target, source, 1, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
    assert all(len(rows) == 1 or len(rows) * target[rows].max() <= budget for rows in batches)
    assert all(len(rows) for rows in batches)
    assert len(batches) == blocks.batches.sum()


def test_the_order_is_a_function_of_seed_and_epoch():
    encoded = some(300)
    one, same, other = order(encoded), order(encoded), order(encoded, seed=2)
    assert rows(one) == rows(one) == rows(same) != rows(other)
    first = rows(one)
    one.set_epoch(1)
    assert len(rows(one)) == len(first)
    assert rows(one) != first
    one.set_epoch(0)
    assert rows(one) == first


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 4)])
def test_devices_and_accumulation_share_the_same_global_batches(world, accumulate):
    encoded = some(200)
    target, _ = pair_lengths(encoded)
    alone = list(order(encoded))
    parts = [
        list(order(encoded, world=world, accumulate=accumulate, rank=rank)) for rank in range(world)
    ]
    assert {len(part) for part in parts} == {len(alone) * accumulate}
    for at, batch in enumerate(alone):
        mine = [share for part in parts for share in part[at * accumulate : (at + 1) * accumulate]]
        busy = [share for share in mine if share.part]
        assert sorted(np.concatenate([share.rows for share in busy]).tolist()) == sorted(
            batch.rows.tolist()
        )
        assert {share.tokens for share in mine} == {int(target[batch.rows].sum())}
        assert max(len(share.rows) for share in busy) - min(len(share.rows) for share in busy) <= 1


def test_a_resumed_order_continues_where_it_stopped():
    encoded = some(200)
    expected = rows(order(encoded, accumulate=2))
    for skip in (0, 1, 2, 7, len(expected) - 1):
        again = order(encoded, accumulate=2)
        again.set_position(0, skip)
        again.set_epoch(0)
        assert rows(again) == rows(again) == expected[skip:]
        assert len(again) == len(expected)
    after = order(encoded, accumulate=2)
    after.set_position(0, len(expected))
    later = order(encoded, accumulate=2)
    later.set_epoch(1)
    assert rows(after) == rows(later)
    assert after.epoch == 1
    assert later.sampler is later


def test_the_fill_ratio_is_that_of_the_tensors():
    encoded = some(80, sides=("left", "right"))
    batches = list(BatchLoader(encoded, order(encoded)))
    sides = {side: [batch["sources"][side] for batch in batches] for side in ("left", "right")}
    sides["target"] = [batch["target_out"] for batch in batches]
    sides["all"] = [tensor for side in list(sides) for tensor in sides[side]]
    shares = fill_ratio(encoded, order(encoded).batches())
    for side, tensors in sides.items():
        real, positions = (
            sum(int((tensor != 0).sum()) for tensor in tensors),
            sum(tensor.numel() for tensor in tensors),
        )
        assert shares[side] == pytest.approx(real / positions)


def test_fewer_rows_than_devices_gives_rows_without_weight():
    encoded = some(1, longest=5)
    batches = [
        next(iter(BatchLoader(encoded, order(encoded, world=3, rank=rank)))) for rank in range(3)
    ]
    assert [batch["rows"].tolist() for batch in batches] == [[0], [-1], [-1]]
    assert [int((batch["target_out"] != 0).sum()) for batch in batches] == [
        batches[0]["tokens"],
        0,
        0,
    ]
    for key in ("target_in", "target_out"):
        assert [bool((batch[key] != 0).any()) for batch in batches] == [True, False, False]
    assert [bool((batch["sources"]["source"] != 0).any()) for batch in batches] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("count", [1, 3, 7, 40])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_any_number_of_devices_trains_on_the_same_batches_in_the_same_order(world, count):
    encoded = some(count)
    alone = [batch["rows"].tolist() for batch in BatchLoader(encoded, order(encoded))]
    parts = [
        list(BatchLoader(encoded, order(encoded, world=world, rank=rank))) for rank in range(world)
    ]
    assert [len(part) for part in parts] == [len(alone)] * world
    for expected, together in zip(alone, zip(*parts, strict=True), strict=True):
        assert sorted(
            row for batch in together for row in batch["rows"].tolist() if row >= 0
        ) == sorted(expected)
        real = [int((batch["target_out"] != 0).sum()) for batch in together]
        assert {batch["tokens"] for batch in together} == {sum(real)}
        idle = [
            batch["rows"].tolist()
            for batch, tokens in zip(together, real, strict=True)
            if not tokens
        ]
        assert idle == [[-1]] * max(0, world - len(expected))


@pytest.mark.parametrize("world", [3, 8])
@pytest.mark.parametrize("budget", [90, 1024])
def test_tokens_are_split_evenly(world, budget):
    encoded = some(500)
    target, _ = pair_lengths(encoded)
    parts = [
        list(order(encoded, tokens_per_batch=budget, world=world, rank=rank))
        for rank in range(world)
    ]
    for together in zip(*parts, strict=True):
        rows = [share.rows[: len(share.rows) if share.part else 0] for share in together]
        longest = max(int(target[part].max(initial=0)) for part in rows)
        real = [int(target[part].sum()) for part in rows]
        assert max(real) - min(real) <= longest
        padded = [len(part) * int(target[part].max(initial=0)) for part in rows]
        assert max(padded) <= longest * -(-sum(map(len, rows)) // world)


@pytest.mark.parametrize("world", [2, 8])
def test_evaluation_with_fewer_rows_than_devices_pads_the_ranks(world):
    encoded = some(3)
    orders = [
        EvalBatchSampler(encoded, tokens_per_batch=10**6, rank=rank, world=world)
        for rank in range(world)
    ]
    parts = [list(BatchLoader(encoded, order_)) for order_ in orders]
    assert {len(part) for part in parts} == {1}
    assert sorted(row for part in parts for row in part[0]["rows"].tolist() if row >= 0) == [
        0,
        1,
        2,
    ]
    assert sum(float((part[0]["target_out"] != 0).sum()) for part in parts) == parts[0][0]["tokens"]


def test_a_batch_has_shifted_targets_and_padding_on_the_right():
    encoded = some(40, sides=("left", "right"))
    (batch,) = BatchLoader(encoded, EvalBatchSampler(encoded, tokens_per_batch=10**9))
    for at, row in enumerate(batch["rows"].tolist()):
        target = encoded.target[row]
        assert _real(batch["target_in"][at]) == [BOS, *target]
        assert _real(batch["target_out"][at]) == [*target, EOS]
        for side in ("left", "right"):
            assert _real(batch["sources"][side][at]) == [*encoded.sources[side][row], EOS]
    assert batch["target_in"].shape == batch["target_out"].shape
    assert batch["target_in"].dtype == torch.int64
    assert batch["tokens"] == (batch["target_out"] != 0).sum()


def _real(row: torch.Tensor) -> list[int]:
    ids = row[row != 0].tolist()
    assert row.tolist() == ids + [0] * (len(row) - len(ids))
    return ids


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_reads_every_row_once_in_equally_many_batches_per_device(world):
    encoded = some(100)
    parts = [
        list(
            BatchLoader(
                encoded, EvalBatchSampler(encoded, tokens_per_batch=90, rank=rank, world=world)
            )
        )
        for rank in range(world)
    ]
    assert len({len(part) for part in parts}) == 1
    numbers = [
        row for part in parts for batch in part for row in batch["rows"].tolist() if row >= 0
    ]
    assert sorted(numbers) == list(range(100))


def test_loaders_do_not_draw_from_the_global_generator():
    encoded = some(50)
    for workers in (0, 1):
        torch.manual_seed(3)
        list(BatchLoader(encoded, order(encoded), workers))
        expected = torch.rand(3)
        torch.manual_seed(3)
        assert torch.equal(expected, torch.rand(3))


def test_workers_give_the_same_batches():
    encoded = some(60)
    alone, helped = (list(BatchLoader(encoded, order(encoded), workers)) for workers in (0, 2))
    assert all(
        torch.equal(one["target_in"], two["target_in"])
        for one, two in zip(alone, helped, strict=True)
    )


def test_rows_are_padded_on_the_right_with_marks():
    ids = Ids.of([[[], [7, 8], [9]]], 10)
    assert ids.outputs(np.array([0, 1, 2])).tolist() == [[2, 0, 0], [7, 8, 2], [9, 2, 0]]
    assert ids.inputs(np.array([0])).tolist() == [[1]]
    assert ids.inputs(np.array([2, 1])).tolist() == [[1, 9, 0], [1, 7, 8]]
    assert ids.keep(np.array([True, False, True]))[1] == [9]
    assert ids.values.dtype == np.uint16
    assert Ids.of([[[70_000]]], 80_000)[0] == [70_000]


def test_captions_like_those_of_multi30k_have_little_padding():
    draw = np.random.default_rng(5)
    source = np.clip(draw.normal(15, 4.5, 29_000), 4, 45).astype(int)
    target = np.clip(source * draw.normal(1.03, 0.17, 29_000), 3, 50).astype(int)
    for budget in (1200, 4096):
        batches = global_batches(plan_buckets(target, source, budget), target, source, 1, 0)
        positions = sum(len(rows) * (target[rows].max() + source[rows].max()) for rows in batches)
        assert (target.sum() + source.sum()) / positions >= 0.97
        assert len(batches) < 1.25 * target.sum() / budget
