"""Length buckets: batches of pairs of similar lengths, with as little padding as their size allows.

Pairs of the same two lengths are a *cell*. A bucket joins neighbouring cells, and is cut evenly into batches; the
buckets of a range of target lengths make up a target bucket. The buckets depend on the lengths alone, so every epoch
has as many batches; which pairs of a bucket come together, and the order of the batches, is drawn anew in every epoch.

The cut with the least padding is found by dynamic programming, over source lengths within target lengths.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

BATCH_COST = 0.15  # share of the budget: one batch more is worth it if it saves more padding than this
MAX_TARGET_LENGTHS = 10  # neighbouring target lengths that one target bucket can join
MAX_SOURCE_LENGTHS = 24  # neighbouring source lengths that one bucket can join
MAX_BATCHES = 6  # a bucket grows no further once it has pairs for so many batches
GRID = 512  # source lengths are rounded so that there are no more than this


class Buckets(NamedTuple):
    """Buckets of all pairs, by their lengths.

    Target bucket i has target lengths up to `longest[i]`; a bucket has all its pairs with source lengths (rounded to
    `width`) after the previous bucket's, up to its own; `ends` is i * (GRID + 1) + that length. `batches`: of each.
    """

    longest: np.ndarray
    ends: np.ndarray
    batches: np.ndarray
    width: int

    def assign(self, target: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Return the index of every pair's bucket. target, source: (pairs,) lengths -> (pairs,)"""
        target_bucket = np.searchsorted(self.longest, target)
        return np.searchsorted(self.ends, target_bucket * (GRID + 1) + source // self.width)


class SplitPoint(NamedTuple):
    """The last bucket of the best cut up to some cell: cost of the whole cut, its first cell, its batches."""

    cost: float
    start: int
    batches: int


TargetBucket = tuple[float, int, list[tuple[int, int]]]
"""Cost of the best cut up to a target bucket's end, where it starts, and its buckets: (source length, batches)."""


def plan_buckets(target: np.ndarray, source: np.ndarray, budget: int) -> Buckets:
    """Return the buckets with the least padding on both sides.

    target, source: (pairs,) positions of each, target 1 or more, source 0 or more. No batch has more than `budget`
    padded target positions, unless it is one pair.
    """
    width = int(source.max()) // GRID + 1
    lengths = np.unique(target)
    cells = np.zeros((len(lengths), GRID + 1), dtype=np.int64)
    np.add.at(cells, (np.searchsorted(lengths, target), source // width), 1)
    best: list[TargetBucket] = [(0.0, 0, [])]
    for end in range(1, len(lengths) + 1):
        best.append(_best_target_bucket(best, cells[:end], int(lengths[end - 1]), budget, width))
    return _trace_back(best, lengths, width)


def global_batches(buckets: Buckets, target: np.ndarray, source: np.ndarray, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the rows of every batch of an epoch, in the order of training."""
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(len(target))
    # stable sorts keep the drawn order among equals, so that pairs of one length meet others in each epoch
    order = order[np.argsort(source[order], kind="stable")]
    bucket = buckets.assign(target[order], source[order])
    order = order[np.argsort(bucket, kind="stable")]
    ends = np.cumsum(np.bincount(bucket, minlength=len(buckets.batches)))
    batches = [
        rows[len(rows) * at // count : len(rows) * (at + 1) // count]
        for rows, count in zip(np.split(order, ends[:-1]), buckets.batches.tolist(), strict=True)
        for at in range(count)
    ]
    return [batches[at] for at in draw.permutation(len(batches))]


def _best_target_bucket(
    best: list[TargetBucket], cells: np.ndarray, longest: int, budget: int, width: int
) -> TargetBucket:
    """Return the best target bucket that ends with the last row of `cells`."""
    rows_per_batch = max(1, budget // longest)
    end = len(cells)
    options: list[TargetBucket] = []
    counts = np.zeros(cells.shape[1], dtype=np.int64)
    for start in range(end - 1, max(-1, end - 1 - MAX_TARGET_LENGTHS), -1):
        counts = counts + cells[start]
        pairs = int(counts.sum())
        if options and pairs > MAX_BATCHES * rows_per_batch:
            break
        cost, buckets = _cut(counts, rows_per_batch, BATCH_COST * budget, width)
        options.append((best[start][0] + cost + pairs * longest, start, buckets))
    return min(options, key=lambda option: option[:2])


def _cut(counts: np.ndarray, rows_per_batch: int, batch_cost: float, width: int) -> tuple[float, list[tuple[int, int]]]:
    """Cut the cells of one target bucket into buckets; return padded source positions plus batch costs, and them."""
    lengths = np.flatnonzero(counts).tolist()
    before = [0, *np.cumsum(counts[lengths]).tolist()]
    positions = [(length + 1) * width - 1 for length in lengths]
    best = [SplitPoint(0.0, 0, 0)]
    for end in range(1, len(lengths) + 1):
        best.append(min(_split_points(best, before, positions, end, rows_per_batch, batch_cost)))
    buckets, end = [], len(lengths)
    while end:
        buckets.append((lengths[end - 1], best[end].batches))
        end = best[end].start
    return best[-1].cost, buckets[::-1]


def _split_points(
    best: list[SplitPoint], before: list[int], positions: list[int], end: int, rows_per_batch: int, batch_cost: float
) -> list[SplitPoint]:
    """Return every bucket that ends with this cell."""
    options: list[SplitPoint] = []
    for start in range(end - 1, max(-1, end - 1 - MAX_SOURCE_LENGTHS), -1):
        pairs = before[end] - before[start]
        if options and pairs > MAX_BATCHES * rows_per_batch:
            break
        batches = -(-pairs // rows_per_batch)
        padded = _padded_positions(before, positions, start, end, batches)
        options.append(SplitPoint(best[start].cost + padded + batch_cost * batches, start, batches))
    return options


def _padded_positions(before: list[int], positions: list[int], start: int, end: int, batches: int) -> int:
    """Return the padded source positions of a bucket that is cut evenly into batches."""
    first, pairs = before[start], before[end] - before[start]
    if batches == 1 or end - start == 1:
        return pairs * positions[end - 1]
    edges = [first + pairs * at // batches for at in range(batches + 1)]
    last = [positions[bisect_left(before, edge, start + 1, end + 1) - 1] for edge in edges[1:]]
    return sum(longest * (high - low) for longest, low, high in zip(last, edges, edges[1:], strict=False))


def _trace_back(best: list[TargetBucket], lengths: np.ndarray, width: int) -> Buckets:
    target_buckets, end = [], len(lengths)
    while end:
        _, start, buckets = best[end]
        target_buckets.append((int(lengths[end - 1]), buckets))
        end = start
    target_buckets.reverse()
    flat = [
        (at * (GRID + 1) + length, batches)
        for at, (_, buckets) in enumerate(target_buckets)
        for length, batches in buckets
    ]
    ends, batches = np.array(flat, dtype=np.int64).T
    return Buckets(np.array([longest for longest, _ in target_buckets]), ends, batches, width)
