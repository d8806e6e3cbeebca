"""Batches by token budget: which pairs are trained on together, in which order, on which device.

Everything is a pure function of the pairs, the seed and the epoch. A *global* batch is what one update of the
weights sees; it is the same for every number of devices and every accumulation, and is dealt out to them row by row.
So a run on two devices trains on what a run on one would, and one that was stopped goes on with what would have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from composer.data.buckets import Buckets, global_batches, plan_buckets
from composer.data.encoding import CACHED_EPOCHS, Corpus, Encoded, Ids
from composer.model.vocabulary import BOS, EOS, PAD


class Batch(TypedDict):
    """What one device sees at once. Padding is 0, on the right. B rows, T target and S source positions.

    `tokens` counts the real target tokens, eos included, of the whole global batch: a loss summed over this batch, then
    divided by it, adds up to the mean over the global batch. `part` is the share of its rows that are here, so that
    means over rows add up too. `rows` are the numbers of the pairs; -1 is a row that only keeps a device busy: all its
    `target_out` is padding.
    """

    sources: dict[str, Tensor]  # (B, S) each, ending in eos; of a story (B, N, W), sentences by words
    target_in: Tensor  # (B, T) bos and the target
    target_out: Tensor  # (B, T) the target and eos
    tokens: float
    part: float
    rows: Tensor  # (B,)
    graded: Tensor  # (B,) bool, whether a curriculum counts the row's mistakes
    facts: Tensor  # (B, F) the places in the story of what bears the answer, -1 for none; F = 0 without stories


class BatchSlice(NamedTuple):
    """The rows of one device at once; `part` is their share of the global batch's, 0 if they only keep it busy.

    `tokens`: of the whole global batch.

    The rows are numbers among the pairs of `epoch`; `graded` is None without a curriculum.
    """

    rows: np.ndarray
    tokens: int
    part: float = 1.0
    epoch: int = 0
    graded: np.ndarray | None = None


class EpochRows(NamedTuple):
    """The rows that an epoch trains on, and of all rows whether a curriculum counts their mistakes."""

    rows: np.ndarray
    graded: np.ndarray | None


Choose = Callable[[Encoded, int], EpochRows]
"""From the pairs of an epoch and its number to those that it trains on."""


def all_pairs(encoded: Encoded, epoch: int) -> EpochRows:
    """All pairs, in every epoch."""
    return EpochRows(np.arange(len(encoded)), None)


class EpochPlan(NamedTuple):
    """What an epoch trains on: some of these pairs, whose blocks of like lengths are cut into batches.

    `target` and `source` are the lengths of all pairs.
    """

    encoded: Encoded
    chosen: EpochRows
    target: np.ndarray
    source: np.ndarray
    blocks: Buckets


def lengths(encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Positions of every pair: of its target, and of all its sources together. Both count eos."""
    target = encoded.target.positions()
    return target, sum((ids.positions() for ids in encoded.sources.values()), np.zeros_like(target))


def shares(rows: np.ndarray, parts: int, target: np.ndarray, source: np.ndarray) -> list[np.ndarray]:
    """The rows of a global batch, dealt out, the longest first: no part has more than a pair's tokens above another.

    target, source: lengths of all pairs. A part may be empty.
    """
    dealt = rows if parts == 1 else rows[np.lexsort((rows, -source[rows], -target[rows]))]
    return [dealt[part::parts] for part in range(parts)]


# ------------------------------------------------------------------------------------------- in which order


def fill(encoded: Encoded, batches: Sequence[np.ndarray]) -> dict[str, float]:
    """The share of real tokens among the positions of these batches: of every side by its name, and of `all`."""
    every = {**encoded.sources, "target": encoded.target}
    real = {side: ids.real() for side, ids in every.items()}
    positions = {
        side: sum(len(rows) * int(counts[rows].max()) for rows in batches)
        for side, counts in ((side, ids.positions()) for side, ids in every.items())
    }
    shares = {side: real[side] / positions[side] for side in every}
    return {**shares, "all": sum(real.values()) / sum(positions.values())}


class TrainBatchSampler(Sampler[BatchSlice]):
    """The shares of one device, in order: a pure function of (seed, epoch, skip), however often it is asked.

    Its length is that of the whole present epoch. Lightning calls `set_epoch`; whoever resumes calls `set_position`
    first. `skip` counts this device's shares, `accumulate` of them to an update.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        tokens_per_batch: int,
        seed: int,
        accumulate: int = 1,
        rank: int = 0,
        world: int = 1,
        choose: Choose = all_pairs,
    ) -> None:
        self.corpus, self.choose, self.tokens_per_batch = corpus, choose, tokens_per_batch
        self.seed, self.accumulate, self.rank, self.world = seed, accumulate, rank, world
        self.epoch, self.skip = 0, 0
        self.before: EpochPlan | None = None
        self.lesson = lru_cache(CACHED_EPOCHS)(self._lesson)

    @property
    def sampler(self) -> TrainBatchSampler:
        """Itself, for those who look for `set_epoch` on a batch sampler's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; in the middle of it already, stays there."""
        if epoch != self.epoch:
            self.set_position(epoch, 0)

    def set_position(self, epoch: int, skip: int) -> None:
        """Goes to an epoch, with `skip` shares of it already trained on."""
        while skip and skip >= self.shares_in(epoch):
            epoch, skip = epoch + 1, skip - self.shares_in(epoch)
        self.epoch, self.skip = epoch, skip

    def shares_in(self, epoch: int) -> int:
        """How many shares an epoch has; the same on every device."""
        return int(self.lesson(epoch).blocks.batches.sum()) * self.accumulate

    def batches(self) -> list[np.ndarray]:
        """The global batches of this epoch, all of them."""
        lesson = self.lesson(self.epoch)
        rows = lesson.chosen.rows
        found = global_batches(lesson.blocks, lesson.target[rows], lesson.source[rows], self.seed, self.epoch)
        return [rows[each] for each in found]

    def __len__(self) -> int:
        return self.shares_in(self.epoch)

    def __iter__(self) -> Iterator[BatchSlice]:
        epoch, lesson = self.epoch, self.lesson(self.epoch)
        first, within = divmod(self.skip, self.accumulate)
        for at, rows in enumerate(self.batches()[first:]):
            parts = shares(rows, self.world * self.accumulate, lesson.target, lesson.source)
            tokens = int(lesson.target[rows].sum())
            for turn in range(within if at == 0 else 0, self.accumulate):
                share = _busy(parts[turn * self.world + self.rank], tokens, rows)
                graded = lesson.chosen.graded
                yield share._replace(epoch=epoch, graded=None if graded is None else graded[share.rows])

    def _lesson(self, epoch: int) -> EpochPlan:
        encoded, before = self.corpus.of_epoch(epoch), self.before
        chosen = self.choose(encoded, epoch)
        if before and before.encoded is encoded and np.array_equal(before.chosen.rows, chosen.rows):
            return before._replace(chosen=chosen)
        target, source = lengths(encoded)
        blocks = plan_buckets(target[chosen.rows], source[chosen.rows], self.tokens_per_batch)
        self.before = EpochPlan(encoded, chosen, target, source, blocks)
        return self.before


class EvalBatchSampler(Sampler[BatchSlice]):
    """All pairs once, the longest first, so that too large a batch is told at once: for validation and tests.

    By the target's length, or by the source's where the target is to be written (`by`). Every device has the same
    number of shares. The budget counts padded positions of the longer side.
    """

    def __init__(
        self,
        encoded: Encoded,
        *,
        tokens_per_batch: int,
        by: Literal["target", "source"] = "target",
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.target, self.source = lengths(encoded)
        self.rank, self.world = rank, world
        first, second = (self.target, self.source) if by == "target" else (self.source, self.target)
        order = np.lexsort((np.arange(len(first)), -second, -first))
        self.batches = _filled(order, np.maximum(first, second), tokens_per_batch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[BatchSlice]:
        for rows in self.batches:
            part = shares(rows, self.world, self.target, self.source)[self.rank]
            yield _busy(part, int(self.target[rows].sum()), rows)


def _busy(part: np.ndarray, tokens: int, rows: np.ndarray) -> BatchSlice:
    return BatchSlice(part, tokens, len(part) / len(rows)) if len(part) else BatchSlice(rows[:1], tokens, 0.0)


def _filled(order: np.ndarray, length: np.ndarray, budget: int) -> list[np.ndarray]:
    found, start, longest = [], 0, 0
    for at, row in enumerate(order):
        longest = max(longest, int(length[row]))
        if at > start and longest * (at + 1 - start) > budget:
            found.append(order[start:at])
            start, longest = at, int(length[row])
    return [*found, order[start:]] if len(order) else []


# ------------------------------------------------------------------------------------------- tensors


class Batches(Dataset[Batch]):
    """From a share of rows to the tensors of a batch."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __getitem__(self, share: BatchSlice) -> Batch:
        encoded = self.corpus.of_epoch(share.epoch)
        target = encoded.target
        out = padded(target, share.rows, last=EOS)
        counted = share.graded is not None and share.part > 0.0
        return {
            "sources": {side: source(ids, share.rows) for side, ids in encoded.sources.items()},
            "target_in": padded(target, share.rows, first=BOS),
            "target_out": out if share.part else torch.full_like(out, PAD),
            "tokens": float(share.tokens),
            "part": share.part,
            "rows": torch.from_numpy(share.rows.astype(np.int64)) if share.part else torch.full((1,), -1),
            "graded": torch.from_numpy(share.graded) if counted else torch.zeros(len(share.rows), dtype=torch.bool),
            "facts": facts_of(encoded, share.rows),
        }


def source(ids: Ids, rows: np.ndarray) -> Tensor:
    """What an encoder reads of these rows: (B, S), ending in eos; of stories (B, N, W)."""
    return padded(ids, rows) if ids.is_story else padded(ids, rows, last=EOS)


def facts_of(encoded: Encoded, rows: np.ndarray) -> Tensor:
    """The facts of these rows; none without stories. -> (B, F)"""
    none = np.zeros((len(rows), 0), dtype=np.int64)
    return torch.from_numpy(none if encoded.facts is None else encoded.facts[rows])


def padded(ids: Ids, rows: np.ndarray, first: int | None = None, last: int | None = None) -> Tensor:
    """The ids of these rows with `first` before and `last` after each, padded on the right. -> (B, T) int64

    Stories, which have neither, get whole sentences of padding. -> (B, N, W)
    """
    starts, counts = ids.starts[rows], ids.lengths()[rows]
    before = int(first is not None)
    longest = before + int(counts.max(initial=0)) + int(last is not None)
    out = np.full((len(rows), longest, *ids.values.shape[1:]), PAD, dtype=np.int64)
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row_of = np.repeat(np.arange(len(rows)), counts)
    out[row_of, places + before] = ids.values[np.repeat(starts, counts) + places]
    if first is not None:
        out[:, 0] = first
    if last is not None:
        out[np.arange(len(rows)), before + counts] = last
    return torch.from_numpy(out)


def data_loader(corpus: Corpus, order: Sampler[BatchSlice], workers: int = 0) -> DataLoader[Batch]:
    """Batches in that order, prepared by this process or by `workers` beside it.

    The loader has its own generator: it never draws from torch's global one. Workers are forked, so that they share
    the corpus with this process.
    """
    return DataLoader(
        Batches(corpus),
        sampler=order,
        batch_size=None,
        num_workers=workers,
        generator=torch.Generator(),
        persistent_workers=False,
        multiprocessing_context="fork" if workers else None,
    )
