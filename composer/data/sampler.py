"""Where a training stands in its data: counted in batches that were trained on, not in batches that were fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from composer.data.buckets import Buckets, global_batches, plan_buckets
from composer.data.encoding import CACHED_EPOCHS, Corpus, Encoded


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


SelectRows = Callable[[Encoded, int], EpochRows]
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


def pair_lengths(encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Positions of every pair: of its target, and of all its sources together. Both count eos."""
    target = encoded.target.positions()
    return target, sum((ids.positions() for ids in encoded.sources.values()), np.zeros_like(target))


def deal_rows(rows: np.ndarray, parts: int, target: np.ndarray, source: np.ndarray) -> list[np.ndarray]:
    """The rows of a global batch, dealt out, the longest first: no part has more than a pair's tokens above another.

    target, source: lengths of all pairs. A part may be empty.
    """
    dealt = rows if parts == 1 else rows[np.lexsort((rows, -source[rows], -target[rows]))]
    return [dealt[part::parts] for part in range(parts)]


def fill_ratio(encoded: Encoded, batches: Sequence[np.ndarray]) -> dict[str, float]:
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
        choose: SelectRows = all_pairs,
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
            parts = deal_rows(rows, self.world * self.accumulate, lesson.target, lesson.source)
            tokens = int(lesson.target[rows].sum())
            for turn in range(within if at == 0 else 0, self.accumulate):
                share = _pad_rank(parts[turn * self.world + self.rank], tokens, rows)
                graded = lesson.chosen.graded
                yield share._replace(epoch=epoch, graded=None if graded is None else graded[share.rows])

    def _lesson(self, epoch: int) -> EpochPlan:
        encoded, before = self.corpus.of_epoch(epoch), self.before
        chosen = self.choose(encoded, epoch)
        if before and before.encoded is encoded and np.array_equal(before.chosen.rows, chosen.rows):
            return before._replace(chosen=chosen)
        target, source = pair_lengths(encoded)
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
        self.target, self.source = pair_lengths(encoded)
        self.rank, self.world = rank, world
        first, second = (self.target, self.source) if by == "target" else (self.source, self.target)
        order = np.lexsort((np.arange(len(first)), -second, -first))
        self.batches = _filled(order, np.maximum(first, second), tokens_per_batch)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[BatchSlice]:
        for rows in self.batches:
            part = deal_rows(rows, self.world, self.target, self.source)[self.rank]
            yield _pad_rank(part, int(self.target[rows].sum()), rows)


def _pad_rank(part: np.ndarray, tokens: int, rows: np.ndarray) -> BatchSlice:
    return BatchSlice(part, tokens, len(part) / len(rows)) if len(part) else BatchSlice(rows[:1], tokens, 0.0)


def _filled(order: np.ndarray, length: np.ndarray, budget: int) -> list[np.ndarray]:
    found, start, longest = [], 0, 0
    for at, row in enumerate(order):
        longest = max(longest, int(length[row]))
        if at > start and longest * (at + 1 - start) > budget:
            found.append(order[start:at])
            start, longest = at, int(length[row])
    return [*found, order[start:]] if len(order) else []


class ResumableBatchSampler(Sampler[BatchSlice]):
    """The shares of all epochs, from a position on.

    A pure function of the position: what was fetched ahead, and how often somebody asked, changes nothing. It has no
    end, so that a training which stops anywhere and goes on meets no edge but those of its budget. Epochs may differ in
    length: one batch is fetched ahead, so that the shares may be of the next epoch already while `epoch` is this one.
    """

    def __init__(self, order: TrainBatchSampler) -> None:
        self.order, self.epoch, self.done = order, 0, 0

    def __iter__(self) -> Iterator[BatchSlice]:
        epoch, skip = self.epoch, self.done
        while True:
            self.order.set_position(epoch, skip)
            yield from self.order
            epoch, skip = epoch + 1, 0

    def advance(self) -> bool:
        """One share has been trained on; whether it was the last of its epoch."""
        self.done += 1
        if self.done < self.order.shares_in(self.epoch):
            return False
        self.epoch, self.done = self.epoch + 1, 0
        return True

    def pairs_of(self, epoch: int) -> Encoded:
        """All pairs of an epoch."""
        return self.order.corpus.of_epoch(epoch)

    def epochs(self) -> float:
        """Epochs behind, with the fraction of this one."""
        return self.epoch + self.done / self.order.shares_in(self.epoch) if self.done else float(self.epoch)
