"""Batch samplers: which pairs are trained on together, in which order, on which device.

Everything is a pure function of the pairs, the seed and the epoch. A *global* batch is what one
update of the weights sees; it is the same for every number of devices and every accumulation, and
is dealt out to them row by row. So a run on two devices trains on what a run on one would, and a
resumed run continues with the batches that would have come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from composer.data.columns import row_type
from composer.data.epochs import CACHED_EPOCHS
from composer.data.ids import Corpus, Encoded, smallest_type

# share of the budget: one batch more is worth it if it saves more padding than this
BATCH_COST = 0.15
MAX_TARGET_LENGTHS = 10  # neighbouring target lengths that one target bucket can join
MAX_SOURCE_LENGTHS = 24  # neighbouring source lengths that one bucket can join
MAX_BATCHES = 6  # a bucket grows no further once it has pairs for so many batches
SORTED_ROWS = 1 << 20  # pairs whose buckets are looked up at once
SAMPLE_SEED = 1  # of the rows that a part of the validation is of
GRID = 512  # source lengths are rounded so that there are no more than this


class BatchSlice(NamedTuple):
    """Row numbers of one device's part of a global batch, among the pairs of `epoch`.

    `tokens`: target tokens of the whole global batch. `part`: share of its rows that are here, 0 if
    the row only keeps the device busy. `graded`: which rows' mistakes a curriculum counts, None
    without one. `window`: of rows that go on from the state before, how many windows of the text
    came before; -1 where no state is carried. `turn`: of the accumulation, which has states of its
    own.
    """

    rows: np.ndarray
    tokens: int
    part: float = 1.0
    epoch: int = 0
    graded: np.ndarray | None = None
    window: int = -1
    turn: int = 0


class EpochRows(NamedTuple):
    """Row numbers of an epoch, and for each row whether a curriculum counts its mistakes."""

    rows: np.ndarray
    graded: np.ndarray | None


SelectRows = Callable[[Encoded, int], EpochRows]
"""From the pairs of an epoch and its number to the rows that it trains on."""


class EpochPlan(NamedTuple):
    """The pairs of an epoch, the selected rows, and their buckets of similar lengths.

    `target` and `source` are the lengths of all pairs.
    """

    encoded: Encoded
    selected: EpochRows
    target: np.ndarray
    source: np.ndarray
    buckets: Buckets


def pair_lengths(encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of each pair, in its target and all its sources with eos."""
    target = encoded.target.positions()
    return target, sum((ids.positions() for ids in encoded.sources.values()), np.zeros_like(target))


def deal_rows(
    rows: np.ndarray, parts: int, target: np.ndarray, source: np.ndarray
) -> list[np.ndarray]:
    """Deal the rows of a global batch out to `parts` devices, the longest first.

    So no part has more tokens than another by more than one pair's. target, source: lengths of all
    pairs. A part may be empty.
    """
    dealt = rows if parts == 1 else rows[np.lexsort((rows, -source[rows], -target[rows]))]
    return [dealt[part::parts] for part in range(parts)]


class EpochSampler(Sampler[BatchSlice]):
    """Yield one device's slices of the batches of an epoch: a pure function of (seed, epoch, skip).

    Its length is that of the whole present epoch. Lightning calls `set_epoch`; a resumed run calls
    `set_position` first. `skip` counts this device's slices, `accumulate` of them to an update. The
    device is `rank` of `world`, the only one unless they are set.
    """

    def __init__(self, corpus: Corpus, *, seed: int, accumulate: int = 1) -> None:
        self.corpus, self.seed, self.accumulate = corpus, seed, accumulate
        self.rank, self.world = 0, 1
        self.epoch, self.skip = 0, 0

    @property
    def sampler(self) -> EpochSampler:
        """Itself: Lightning looks for `set_epoch` on a batch sampler's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; within this epoch already, stay at the present position."""
        if epoch != self.epoch:
            self.set_position(epoch, 0)

    def set_position(self, epoch: int, skip: int) -> None:
        """Go to an epoch, with `skip` of its slices already trained on."""
        while skip and skip >= self.slices_in(epoch):
            epoch, skip = epoch + 1, skip - self.slices_in(epoch)
        self.epoch, self.skip = epoch, skip

    def slices_in(self, epoch: int) -> int:
        """Return the slices of an epoch; the number is the same on every device."""
        raise NotImplementedError(f"{type(self).__name__} does not define slices_in")

    def batches(self) -> list[np.ndarray]:
        """Return the row numbers of all global batches of this epoch."""
        raise NotImplementedError(f"{type(self).__name__} does not define batches")

    def __len__(self) -> int:
        return self.slices_in(self.epoch)


class TrainBatchSampler(EpochSampler):
    """Yield batches of rows of similar lengths, within `tokens_per_batch` with padding."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        tokens_per_batch: int,
        seed: int,
        accumulate: int = 1,
        choose: SelectRows | None = None,
    ) -> None:
        super().__init__(corpus, seed=seed, accumulate=accumulate)
        self.choose, self.tokens_per_batch = choose, tokens_per_batch
        self.last_plan: EpochPlan | None = None
        self.plan = lru_cache(CACHED_EPOCHS)(self._plan)

    def slices_in(self, epoch: int) -> int:
        return int(self.plan(epoch).buckets.batches.sum()) * self.accumulate

    def batches(self) -> list[np.ndarray]:
        plan = self.plan(self.epoch)
        rows = plan.selected.rows
        batches = global_batches(
            plan.buckets, plan.target[rows], plan.source[rows], self.seed, self.epoch
        )
        return [rows[batch] for batch in batches]

    def __iter__(self) -> Iterator[BatchSlice]:
        epoch, plan = self.epoch, self.plan(self.epoch)
        graded = plan.selected.graded
        first, within = divmod(self.skip, self.accumulate)
        for at, rows in enumerate(self.batches()[first:]):
            parts = deal_rows(rows, self.world * self.accumulate, plan.target, plan.source)
            tokens = int(plan.target[rows].sum())
            for turn in range(within if at == 0 else 0, self.accumulate):
                slice_ = _pad_rank(parts[turn * self.world + self.rank], tokens, rows)
                yield slice_._replace(
                    epoch=epoch, graded=None if graded is None else graded[slice_.rows]
                )

    def _plan(self, epoch: int) -> EpochPlan:
        encoded, last = self.corpus.of_epoch(epoch), self.last_plan
        rows = np.arange(len(encoded), dtype=row_type(len(encoded)))
        selected = self.choose(encoded, epoch) if self.choose else EpochRows(rows, None)
        # planning buckets takes seconds for millions of pairs, and most epochs train on the same
        # rows
        if last and last.encoded is encoded and np.array_equal(last.selected.rows, selected.rows):
            return last._replace(selected=selected)
        target, source = pair_lengths(encoded)
        buckets = plan_buckets(target[selected.rows], source[selected.rows], self.tokens_per_batch)
        self.last_plan = EpochPlan(encoded, selected, target, source, buckets)
        return self.last_plan


class ResumableBatchSampler(Sampler[BatchSlice]):
    """Yield the batch slices of all epochs, from any position; with `by_epoch`, to an epoch's end.

    A pure function of the position, which counts slices trained on: prefetching and repeated
    iteration do not affect it, and a resumed run sees exactly the batches that it has not trained
    on. Epochs may differ in length: one batch is fetched ahead, so that the slices may be of the
    next epoch already while `epoch` is this one.
    """

    def __init__(self, order: EpochSampler, by_epoch: bool = False) -> None:
        self.order, self.by_epoch, self.epoch, self.done = order, by_epoch, 0, 0

    def __iter__(self) -> Iterator[BatchSlice]:
        epoch, skip = self.epoch, self.done
        while True:
            self.order.set_position(epoch, skip)
            yield from self.order
            if self.by_epoch:
                return
            epoch, skip = epoch + 1, 0

    def advance(self) -> bool:
        """Count one slice as trained on, and return True if it was the last of its epoch."""
        self.done += 1
        if self.done < self.order.slices_in(self.epoch):
            return False
        self.epoch, self.done = self.epoch + 1, 0
        return True

    def pairs_of(self, epoch: int) -> Encoded:
        """Return all pairs of an epoch."""
        return self.order.corpus.of_epoch(epoch)

    def epochs(self) -> float:
        """Return the epochs trained on, with the fraction of this one."""
        if self.done:
            return self.epoch + self.done / self.order.slices_in(self.epoch)
        return float(self.epoch)


class EvalBatchSampler(Sampler[BatchSlice]):
    """Yield a device's slices of all pairs once, longest first: too large a batch fails at once.

    Every device has the same number of slices. The budget counts padded positions of the longer
    side.
    """

    def __init__(
        self, encoded: Encoded, tokens_per_batch: int, rank: int = 0, world: int = 1
    ) -> None:
        self.target, self.source = pair_lengths(encoded)
        self.rank, self.world = rank, world
        order = np.lexsort((np.arange(len(encoded)), -self.source, -self.target))
        self.batches = _fill_batches(order, np.maximum(self.target, self.source), tokens_per_batch)

    def sample_rows(self, limit: int | float) -> np.ndarray | None:
        """Return a sample of the rows, for about as many batches or this share of them.

        None for all.

        It depends on the number of rows and of batches alone, not on what is in a row: it is the
        same at every validation, for every number of devices, and long rows are as likely in it as
        short ones.
        """
        rows = len(self.target)
        share = limit if isinstance(limit, float) else limit / max(1, len(self.batches))
        if share >= 1:
            return None
        chosen = np.random.default_rng(SAMPLE_SEED).permutation(rows)[: max(1, round(share * rows))]
        return np.sort(chosen)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[BatchSlice]:
        for rows in self.batches:
            part = deal_rows(rows, self.world, self.target, self.source)[self.rank]
            yield _pad_rank(part, int(self.target[rows].sum()), rows)


def _pad_rank(part: np.ndarray, tokens: int, rows: np.ndarray) -> BatchSlice:
    """Return a device's slice; without rows one of weight 0, so all devices make equal steps."""
    if len(part):
        return BatchSlice(part, tokens, len(part) / len(rows))
    return BatchSlice(rows[:1], tokens, 0.0)


def _fill_batches(order: np.ndarray, lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    starts, longest = [0], 0
    for at, row in enumerate(order):
        longest = max(longest, int(lengths[row]))
        if at > starts[-1] and longest * (at + 1 - starts[-1]) > budget:
            starts.append(at)
            longest = int(lengths[row])
    return np.split(order, starts[1:]) if len(order) else []


class Buckets(NamedTuple):
    """Buckets of all pairs, by their lengths.

    Target bucket i has target lengths up to `longest[i]`; a bucket has all its pairs with source
    lengths (rounded to `width`) after the previous bucket's, up to its own; `ends` is i * (GRID +
    1) + that length. `batches`: of each.
    """

    longest: np.ndarray
    ends: np.ndarray
    batches: np.ndarray
    width: int

    def of(self, target: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Return the bucket of pairs with these lengths. (pairs,) each -> (pairs,)"""
        cells = np.searchsorted(self.longest, target) * (GRID + 1) + source // self.width
        return np.searchsorted(self.ends, cells).astype(smallest_type(len(self.ends)))


Cut = tuple[float, Any]
"""Cost of the best cut of all cells up to the end of a run, and what the run is cut into."""


def plan_buckets(target: np.ndarray, source: np.ndarray, budget: int) -> Buckets:
    """Return the buckets of pairs with the least padding on both sides, by dynamic programming.

    Pairs of the same two lengths are a *cell*. A bucket joins neighbouring cells, and is cut evenly
    into batches; the buckets of a range of target lengths make up a target bucket. Since buckets
    depend on the lengths alone, every epoch has as many batches; which pairs of a bucket come
    together, and the order of the batches, is up to the epoch.

    target, source: (pairs,) positions of each, target 1 or more, source 0 or more. No batch has
    more than `budget` padded target positions, unless it is one pair.
    """
    width = int(source.max()) // GRID + 1
    lengths = np.unique(target)
    cells = np.zeros((len(lengths) + 1, GRID + 1), dtype=np.int64)
    np.add.at(cells, (np.searchsorted(lengths, target) + 1, source // width), 1)
    before = cells.cumsum(0)

    def join_targets(cost: float, start: int, end: int) -> Cut | None:
        longest = int(lengths[end - 1])
        counts, rows_per_batch = before[end] - before[start], max(1, budget // longest)
        pairs = int(counts.sum())
        if end - start > 1 and pairs > MAX_BATCHES * rows_per_batch:
            return None
        source_cost, buckets = _cut_sources(counts, rows_per_batch, BATCH_COST * budget, width)
        return cost + source_cost + pairs * longest, buckets

    _, target_buckets = _cut_cells(len(lengths), MAX_TARGET_LENGTHS, join_targets)
    flat: list[tuple[int, int]] = []
    for at, (_, buckets) in enumerate(target_buckets):
        flat += [(at * (GRID + 1) + length, batches) for length, batches in buckets]
    ends, batches = np.array(flat, dtype=np.int64).T
    return Buckets(lengths[[end - 1 for end, _ in target_buckets]], ends, batches, width)


def global_batches(
    buckets: Buckets, target: np.ndarray, source: np.ndarray, seed: int, epoch: int
) -> list[np.ndarray]:
    """Return the rows of every batch of an epoch, in the order of training."""
    draw = np.random.default_rng([seed, epoch])
    order = np.arange(len(target), dtype=row_type(len(target)))
    draw.shuffle(order)
    # stable sorts keep the drawn order among equals, so that pairs of one length meet others in
    # each epoch; they are many times faster of short integers
    order = order[
        np.argsort(source[order].astype(smallest_type(int(source.max()) + 1)), kind="stable")
    ]
    parts = [order[at : at + SORTED_ROWS] for at in range(0, len(order), SORTED_ROWS)]
    bucket = np.concatenate([buckets.of(target[rows], source[rows]) for rows in parts])
    order = order[np.argsort(bucket, kind="stable")]
    ends = np.cumsum(np.bincount(bucket, minlength=len(buckets.batches)))
    batches = []
    for rows, count in zip(np.split(order, ends[:-1]), buckets.batches.tolist(), strict=True):
        edges = [len(rows) * at // count for at in range(count + 1)]
        batches += [rows[start:end] for start, end in pairwise(edges)]
    return [batches[at] for at in draw.permutation(len(batches))]


def _cut_sources(
    counts: np.ndarray, rows_per_batch: int, batch_cost: float, width: int
) -> tuple[float, list[tuple[int, int]]]:
    """Cut a target bucket into buckets.

    Returns padded source positions plus batch costs, and the length and batches of each bucket.

    counts: (GRID + 1,) pairs of every source length.
    """
    lengths = np.flatnonzero(counts).tolist()
    before = [0, *np.cumsum(counts[lengths]).tolist()]
    positions = [(length + 1) * width - 1 for length in lengths]

    def join_sources(cost: float, start: int, end: int) -> Cut | None:
        pairs = before[end] - before[start]
        if end - start > 1 and pairs > MAX_BATCHES * rows_per_batch:
            return None
        batches = -(-pairs // rows_per_batch)
        padded = pairs * positions[end - 1]
        if batches > 1 and end - start > 1:  # cut evenly, each batch is padded to its own last pair
            edges = [before[start] + pairs * at // batches for at in range(batches + 1)]
            last = [
                positions[bisect_left(before, edge, start + 1, end + 1) - 1] for edge in edges[1:]
            ]
            padded = sum(
                longest * (high - low)
                for longest, low, high in zip(last, edges, edges[1:], strict=False)
            )
        return cost + padded + batch_cost * batches, batches

    cost, buckets = _cut_cells(len(lengths), MAX_SOURCE_LENGTHS, join_sources)
    return cost, [(lengths[end - 1], batches) for end, batches in buckets]


def _cut_cells(
    cells: int, most: int, join: Callable[[float, int, int], Cut | None]
) -> tuple[float, list[tuple[int, Any]]]:
    """Cut a row of cells into runs of at most `most` cells, at the least cost.

    Returns the cost, and end and content of each run.

    `join` gets the cost of the cells before a run, its start and its end. It returns None for a run
    of too many pairs.
    """
    best: list[tuple[float, int, Any]] = [(0.0, 0, None)]
    for end in range(1, cells + 1):
        options = []
        for start in range(end - 1, max(-1, end - 1 - most), -1):
            cut = join(best[start][0], start, end)
            if cut is None:
                break
            options.append((cut[0], start, cut[1]))
        best.append(min(options, key=itemgetter(0, 1)))
    runs, end = [], cells
    while end:
        _, start, content = best[end]
        runs.append((end, content))
        end = start
    return best[cells][0], runs[::-1]
