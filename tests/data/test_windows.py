"""Windows of a text: what each reads and writes, and that an epoch has every token once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from composer.data.collate import BatchLoader
from composer.data.ids import Encoded, Ids
from composer.data.windows import (
    StreamSampler,
    WholeText,
    cut_streams,
    cut_windows,
    shuffle_windows,
)
from composer.model.special_tokens import BOS, EOS, PAD


def text(tokens: int) -> Encoded:
    """Return a text whose tokens are 10, 11, ..., with ends of documents here and there."""
    values = np.arange(10, 10 + tokens)
    ends = np.array(sorted({*range(4, tokens, 7), tokens - 1}))
    values[ends] = EOS
    return Encoded(
        {},
        Ids(values, np.concatenate([[0], ends[:-1] + 1]), ends),
        [""] * len(ends),
        np.arange(len(ends)),
    )


def test_a_window_reads_the_token_before_it() -> None:
    target = cut_windows(text(11), 4).target
    rows = np.arange(3)
    assert target.outputs(rows).tolist() == [
        [10, 11, 12, 13],
        [EOS, 15, 16, 17],
        [18, 19, EOS, PAD],
    ]
    assert target.inputs(rows).tolist() == [[BOS, 10, 11, 12], [13, EOS, 15, 16], [17, 18, 19, PAD]]


def test_context_is_read_and_not_written() -> None:
    target = cut_windows(text(11), 2, context=2).target
    assert target.inputs(np.arange(2)).tolist() == [[BOS, 10, PAD, PAD], [BOS, 10, 11, 12]]
    assert target.outputs(np.arange(2)).tolist() == [[10, 11, PAD, PAD], [PAD, PAD, 12, 13]]
    assert target.inputs(np.array([3])).tolist() == [[13, EOS, 15, 16]]
    outputs = target.outputs(np.arange(len(target)))
    assert outputs[outputs != PAD].tolist() == text(11).target.values.tolist()


@pytest.mark.parametrize("tokens", [1, 10, 33])
def test_every_epoch_of_shuffled_windows_has_every_token_once(tokens: int) -> None:
    corpus = shuffle_windows(text(tokens), 5, seed=1)
    starts = set()
    for epoch in range(6):
        target = corpus.of_epoch(epoch).target
        outputs = target.outputs(np.arange(len(target)))
        assert outputs[outputs != PAD].tolist() == text(tokens).target.values.tolist()
        starts.add(int(target.ends[0]))
    assert len(starts) > 1 or tokens == 1


@pytest.mark.parametrize(
    ("tokens", "count", "size"), [(40, 4, 5), (41, 4, 5), (7, 4, 5), (3, 4, 2), (40, 1, 50)]
)
def test_streams_have_every_token_once_and_go_on_where_they_were(
    tokens: int, count: int, size: int
) -> None:
    sampler = StreamSampler(cut_streams(text(tokens), count, size), count, seed=1)
    batches = list(BatchLoader(sampler.corpus, sampler))
    assert [batch["window"] for batch in batches] == list(range(len(sampler)))
    joined = torch.cat([batch["target_out"] for batch in batches], 1)
    assert joined[joined != PAD].tolist() == text(tokens).target.values.tolist()
    assert sum(batch["tokens"] for batch in batches) == tokens
    read = torch.cat([batch["target_in"] for batch in batches], 1)
    assert read[read != PAD].tolist() == [BOS, *text(tokens).target.values[:-1].tolist()]


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_a_device_has_the_same_streams_in_every_batch(world: int, accumulate: int) -> None:
    rows = cut_streams(text(100), 7, 5)
    alone = [batch["target_out"] for batch in BatchLoader(rows, StreamSampler(rows, 7, seed=1))]
    parts: dict[int, list[torch.Tensor]] = {}
    for rank in range(world):
        sampler = StreamSampler(rows, 7, seed=1, accumulate=accumulate)
        sampler.rank, sampler.world = rank, world
        assert len(sampler) == len(alone) * accumulate
        for batch in BatchLoader(sampler.corpus, sampler):
            part = batch["turn"] * world + rank
            parts.setdefault(part, []).append(batch["target_out"])
    for part, batches in parts.items():
        for all_streams, own in zip(alone, batches, strict=True):
            assert torch.equal(all_streams[part :: world * accumulate, : own.shape[1]], own)


def test_a_sampler_goes_on_from_any_position() -> None:
    rows = cut_streams(text(100), 3, 5)
    sampler = StreamSampler(rows, 3, seed=1)
    first = [batch["window"] for batch in BatchLoader(rows, sampler)]
    sampler.set_position(0, 4)
    assert [batch["window"] for batch in BatchLoader(rows, sampler)] == first[4:]
    sampler.set_position(0, len(first) + 2)
    assert (sampler.epoch, sampler.skip) == (1, 2)


def test_a_text_is_measured_by_the_first_device_alone() -> None:
    windows = cut_windows(text(11), 4)
    first, second = (list(BatchLoader(windows, WholeText(windows, rank))) for rank in (0, 1))
    assert (
        [batch["window"] for batch in first] == [batch["window"] for batch in second] == [0, 1, 2]
    )
    assert all((batch["target_out"] == PAD).all() for batch in second)
    assert sum(int((batch["target_out"] != PAD).sum()) for batch in first) == 11
