"""Which pairs are trained on together: batches of like lengths, with as little padding as their size allows.

Pairs of the same two lengths are a *cell*. Cells are joined to *blocks*, neighbours in both lengths, and a block is cut
evenly into batches. The blocks depend on the lengths alone, so every epoch has as many batches; which pairs of a block
come together, and in which order the batches come, is drawn anew in every epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

PRICE = 0.15  # one batch more is worth it where it saves more padding than this share of the budget
STRIP = 10  # so many neighbouring target lengths can be joined, and then
SPAN = 24  # so many neighbouring source lengths
DENSE = 6  # and no more once there is enough for so many batches
GRID = 512  # source lengths are rounded so that there are no more than this


class Buckets(NamedTuple):
    """The cut of all pairs, by their lengths.

    Strip i has target lengths up to `longest[i]`; a block has all pairs of its strip with source lengths (rounded to
    `width`) after the previous block's, up to its own; `ends` is strip * (GRID + 1) + that length. `batches`: of each.
    """

    longest: np.ndarray
    ends: np.ndarray
    batches: np.ndarray
    width: int

    def of(self, target: np.ndarray, source: np.ndarray) -> np.ndarray:
        """The number of the block of every pair."""
        strip = np.searchsorted(self.longest, target)
        return np.searchsorted(self.ends, strip * (GRID + 1) + source // self.width)


class SplitPoint(NamedTuple):
    """Some neighbouring cells, or strips, cut into blocks: padded positions (and the price of batches), and how."""

    cost: float
    start: int
    batches: int


TargetBucket = tuple[float, int, list[tuple[int, int]]]
"""The cost of everything up to a strip's end, where it starts, and its blocks: (source length, batches)."""


def plan_buckets(target: np.ndarray, source: np.ndarray, budget: int) -> Buckets:
    """The cut with the least padding on both sides. target, source: (pairs,) positions of each, 1 or more, 0 or more.

    No batch has more than `budget` padded target positions, unless it is one pair.
    """
    width = int(source.max()) // GRID + 1
    kinds = np.unique(target)
    cells = np.zeros((len(kinds), GRID + 1), dtype=np.int64)
    np.add.at(cells, (np.searchsorted(kinds, target), source // width), 1)
    best: list[TargetBucket] = [(0.0, 0, [])]
    for end in range(1, len(kinds) + 1):
        best.append(_best_strip(best, cells[:end], int(kinds[end - 1]), budget, width))
    return _collected(best, kinds, width)


def global_batches(blocks: Buckets, target: np.ndarray, source: np.ndarray, seed: int, epoch: int) -> list[np.ndarray]:
    """The rows of every batch of an epoch, in the order of training."""
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(len(target))
    order = order[np.argsort(source[order], kind="stable")]
    block = blocks.of(target[order], source[order])
    order = order[np.argsort(block, kind="stable")]
    ends = np.cumsum(np.bincount(block, minlength=len(blocks.batches)))
    found = [
        rows[len(rows) * at // batches : len(rows) * (at + 1) // batches]
        for rows, batches in zip(np.split(order, ends[:-1]), blocks.batches.tolist(), strict=True)
        for at in range(batches)
    ]
    return [found[at] for at in draw.permutation(len(found))]


def _best_strip(best: list[TargetBucket], cells: np.ndarray, longest: int, budget: int, width: int) -> TargetBucket:
    """The best strip that ends with the last of these target lengths."""
    room = max(1, budget // longest)
    end = len(cells)
    found: list[TargetBucket] = []
    counts = np.zeros(cells.shape[1], dtype=np.int64)
    for start in range(end - 1, max(-1, end - 1 - STRIP), -1):
        counts = counts + cells[start]
        pairs = int(counts.sum())
        if found and pairs > DENSE * room:
            break
        cost, blocks = _cut(counts, room, PRICE * budget, width)
        found.append((best[start][0] + cost + pairs * longest, start, blocks))
    return min(found, key=lambda strip: strip[:2])


def _cut(counts: np.ndarray, room: int, price: float, width: int) -> tuple[float, list[tuple[int, int]]]:
    """Cuts the cells of one strip into blocks; the padded source positions with the price, and the blocks."""
    lengths = np.flatnonzero(counts).tolist()
    upto = [0, *np.cumsum(counts[lengths]).tolist()]
    positions = [(length + 1) * width - 1 for length in lengths]
    best = [SplitPoint(0.0, 0, 0)]
    for end in range(1, len(lengths) + 1):
        best.append(min(_blocks(best, upto, positions, end, room, price)))
    blocks, end = [], len(lengths)
    while end:
        blocks.append((lengths[end - 1], best[end].batches))
        end = best[end].start
    return best[-1].cost, blocks[::-1]


def _blocks(
    best: list[SplitPoint], upto: list[int], positions: list[int], end: int, room: int, price: float
) -> list[SplitPoint]:
    """Every block that ends with this cell."""
    found: list[SplitPoint] = []
    for start in range(end - 1, max(-1, end - 1 - SPAN), -1):
        pairs = upto[end] - upto[start]
        if found and pairs > DENSE * room:
            break
        batches = -(-pairs // room)
        padded = _padded(upto, positions, start, end, batches)
        found.append(SplitPoint(best[start].cost + padded + price * batches, start, batches))
    return found


def _padded(upto: list[int], positions: list[int], start: int, end: int, batches: int) -> int:
    """The padded source positions of a block that is cut evenly."""
    first, pairs = upto[start], upto[end] - upto[start]
    if batches == 1 or end - start == 1:
        return pairs * positions[end - 1]
    edges = [first + pairs * at // batches for at in range(batches + 1)]
    last = [positions[bisect_left(upto, edge, start + 1, end + 1) - 1] for edge in edges[1:]]
    return sum(longest * (high - low) for longest, low, high in zip(last, edges, edges[1:], strict=False))


def _collected(best: list[TargetBucket], kinds: np.ndarray, width: int) -> Buckets:
    strips, end = [], len(kinds)
    while end:
        _, start, blocks = best[end]
        strips.append((int(kinds[end - 1]), blocks))
        end = start
    strips.reverse()
    blocks = [(at * (GRID + 1) + length, batches) for at, (_, each) in enumerate(strips) for length, batches in each]
    ends, batches = np.array(blocks, dtype=np.int64).T
    return Buckets(np.array([longest for longest, _ in strips]), ends, batches, width)
