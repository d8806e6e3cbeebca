"""Split the pairs or documents of the training files into train, val and test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from composer.data.columns import row_type
from composer.errors import Fault
from composer.recipe.data_sections import Corpus, Parallel, Table

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

GOLDEN_RATIO = 0.618033988749895
"""Its multiples, without their whole numbers, are spread evenly from the first on."""
PARTS = ("train", "val", "test")


def held_out_sizes(section: Parallel | Table | Corpus | None) -> dict[str, int]:
    """Return the size of val and of test where it is held out of the training files."""
    sizes = {"val": section.val, "test": section.test} if section else {}
    return {split: size for split, size in sizes.items() if isinstance(size, int)}


def held_out_faults(recipe: Recipe, section: str, count: int, noun: str) -> list[Fault]:
    """Return a fault if `count` training pairs or documents are not more than are held out."""
    sizes = held_out_sizes(getattr(recipe.data, section))
    total = sum(sizes.values())
    if total < count:
        return []
    largest, example_size = max(sizes, key=lambda name: sizes[name]), max(1, count // 20)
    takes = " and ".join(sizes) + (" take" if len(sizes) > 1 else " takes")
    message = f"{takes} {total:,} {noun}, and the training files have {count:,}"
    examples = ", ".join(f"{name}: {example_size}" for name in sizes)
    is_enough = count > len(sizes)
    fix = f"write, for example, `{examples}`" if is_enough else f"name files in `{largest}`"
    return [recipe.fault("empty", ("data", section, largest), message, fix)]


def split_rows(count: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Split the row numbers of `count` pairs; those held out are spread evenly.

    The rows depend on the numbers alone, so a line added at the end moves few others.
    """
    held_out = sum(sizes.values())
    rows = (np.arange(held_out) * 2 + 1) * count // (2 * max(held_out, 1))
    tests = sizes.get("test", 0)
    is_test = np.zeros(held_out, dtype=bool)
    is_test[(np.arange(tests) * 2 + 1) * held_out // (2 * max(tests, 1))] = True
    is_train = np.ones(count, dtype=bool)
    is_train[rows] = False
    return {
        "train": np.flatnonzero(is_train).astype(row_type(count)),
        "val": rows[~is_test],
        "test": rows[is_test],
    }


def split_last(count: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Split the row numbers of `count` documents; the last ones are held out."""
    rows, end = {}, count
    for split in ("test", "val"):
        size = sizes.get(split, 0)
        rows[split], end = np.arange(end - size, end), end - size
    return {"train": np.arange(end), **rows}


def split_sources(sources: np.ndarray, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Split the rows of pairs like `split_rows`, but keep pairs with the same source together.

    A source with more pairs than a part has room for is trained on. If a part then lacks pairs,
    it gets some from such sources.

    sources: (pairs,) the hash of each pair's source; 0 for an empty one.
    """
    rows = split_rows(len(sources), sizes)
    is_blank = sources == 0
    _, group, times = np.unique(sources, return_inverse=True, return_counts=True)
    times[group[is_blank]] = 1
    held_out = np.sort(np.concatenate([rows["val"], rows["test"]]))
    if (times[group[held_out]] == 1).all():
        return rows
    return GroupedSplit(group, times, is_blank, sizes).split(
        held_out, np.isin(held_out, rows["test"])
    )


class GroupedSplit:
    """Choose whole groups of rows for val and test.

    group: (rows,) the group of each row. times: (groups,) their sizes.
    """

    def __init__(
        self, group: np.ndarray, times: np.ndarray, is_blank: np.ndarray, sizes: Mapping[str, int]
    ) -> None:
        self.group, self.is_blank, self.left = group, is_blank, dict(sizes)
        self.size = times[group]  # (rows,) of each row's group
        self.order = np.argsort(group, kind="stable")
        self.sorted = group[self.order]
        self.part = np.full(len(group), PARTS.index("train"), np.int8)

    def split(self, places: np.ndarray, is_test: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of each part: a group near each place, while there is room."""
        gap = max(1, len(self.group) // len(places))
        for at in spread_order(len(places)):
            split = "test" if is_test[at] else "val"
            near = slice(places[at], places[at] + gap)
            fitting = np.flatnonzero(self.is_trained(near) & (self.size[near] <= self.left[split]))
            if len(fitting):
                self.take(int(places[at] + fitting[0]), split)
        self.take_anywhere()
        for split, count in self.left.items():
            rest = np.flatnonzero(self.is_trained())
            self.part[rest[split_rows(len(rest), {"val": count})["val"]]] = PARTS.index(split)
        return {split: np.flatnonzero(self.part == number) for number, split in enumerate(PARTS)}

    def take_anywhere(self) -> None:
        """Fill the parts with groups from all rows, while there is room."""
        if not any(self.left.values()):
            return
        rows = spread_order(len(self.group))
        rows = rows[(self.is_trained() & (self.size <= max(self.left.values())))[rows]]
        # a row without text is a group of its own; else the first row represents its group
        keys = np.where(self.is_blank[rows], -1 - rows, self.group[rows])
        rows = rows[np.sort(np.unique(keys, return_index=True)[1])]
        for row, size in zip(rows.tolist(), self.size[rows].tolist(), strict=True):
            roomy = [split for split, left in self.left.items() if size <= left]
            if roomy:
                self.take(row, roomy[0])
            elif not any(self.left.values()):
                return

    def is_trained(self, rows: slice = slice(None)) -> np.ndarray:
        """True for rows that are in the training part. -> (rows,) bool"""
        return np.asarray(self.part[rows] == PARTS.index("train"))

    def take(self, row: int, split: str) -> None:
        """Move a row, with all rows of its source, into a part."""
        first, last = np.searchsorted(self.sorted, [self.group[row], self.group[row] + 1])
        rows = np.array([row]) if self.is_blank[row] else self.order[first:last]
        self.part[rows] = PARTS.index(split)
        self.left[split] -= len(rows)


def spread_order(count: int) -> np.ndarray:
    """Order the numbers below `count` so that every prefix is spread evenly. -> (count,)"""
    return np.argsort(np.arange(count) * GOLDEN_RATIO % 1.0, kind="stable")
