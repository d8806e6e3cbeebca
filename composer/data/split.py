"""Pairs of the training files that are not trained on, so that somebody with one text has all three parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from composer.data.columns import Column

HELD_OUT = ("val", "test")


class RowSubset(Column):
    """Some lines of a column, in their order."""

    def __init__(self, whole: Sequence[str], rows: np.ndarray) -> None:
        self.whole, self.rows = whole, rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> list[str]:
        wanted = self.rows[np.asarray(rows, dtype=np.int64)]
        if not len(wanted):
            return []
        first, last = int(wanted.min()), int(wanted.max())
        if last - first > 2 * len(wanted):
            return [self.whole[int(at)] for at in wanted]
        lines = self.whole[first : last + 1]  # neighbours are read at once
        return [lines[at - first] for at in wanted]


def held_out_sizes(parallel: Mapping[str, object]) -> dict[str, int]:
    """How many pairs of the training files each of val and test takes; nothing of those that have files."""
    return {split: size for split in HELD_OUT if isinstance(size := parallel.get(split), int)}


def split_rows(count: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Which of `count` pairs are trained on, validated with and tested on: those held out are spread evenly.

    The same for the same numbers, whatever the text: a line that is added at the end moves few others.
    """
    held = sum(sizes.values())
    places = (np.arange(held) * 2 + 1) * count // (2 * max(held, 1))
    test = np.zeros(held, dtype=bool)
    test[(np.arange(sizes.get("test", 0)) * 2 + 1) * held // (2 * max(sizes.get("test", 0), 1))] = True
    train = np.ones(count, dtype=bool)
    train[places] = False
    return {"train": np.flatnonzero(train), "val": places[~test], "test": places[test]}
