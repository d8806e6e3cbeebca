"""Pairs of text: the lines of every side of a split, and which sides and splits a recipe has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from composer.data.columns import RowSubset, SampledLines
from composer.errors import KeyPath
from composer.model.features import feature_settings
from composer.recipe.data_sections import Parallel, Table
from composer.recipe.schema_reader import DATA_SOURCES, REFERENCE, SPLITS

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

TARGET = "target"


@dataclass(frozen=True)
class Pairs:
    """Lines of a split by side. A side is read when it is indexed; files stay on disk.

    `columns` has the sides, and further references of each line, beside the target, as `target-2`
    and so on. `facts` are, for each pair, the indices of the sentences of its story that support
    the answer; None without stories. `notes` are lines for the user. `weights` are how often an
    epoch has each pair, (pairs,); None where that is once.
    """

    columns: Mapping[str, Sequence[str]]
    facts: Sequence[Sequence[int]] | None = None
    notes: Sequence[str] = ()
    weights: np.ndarray | None = None

    @cached_property
    def sides(self) -> dict[str, Sequence[str]]:
        """The columns that models read and write."""
        return {
            name: lines for name, lines in self.columns.items() if not name.startswith(REFERENCE)
        }

    @property
    def references(self) -> list[Sequence[str]]:
        """The columns of further references."""
        return [lines for name, lines in self.columns.items() if name.startswith(REFERENCE)]

    def __len__(self) -> int:
        return len(self.columns[TARGET])

    def __getitem__(self, at: int) -> dict[str, str]:
        return {side: lines[at] for side, lines in self.sides.items()}

    def keep(self, rows: np.ndarray) -> Pairs:
        """Return the pairs with these row numbers, in their order."""
        facts = None if self.facts is None else [self.facts[row] for row in rows]
        columns = {name: RowSubset(lines, rows) for name, lines in self.columns.items()}
        return Pairs(columns, facts, (), None if self.weights is None else self.weights[rows])

    def sample(self, first: int, spread: int) -> Pairs:
        """Return the first pairs, in memory, and some more that are spread over the rest."""
        rest = np.linspace(
            first, len(self) - 1, min(spread, max(0, len(self) - first)), dtype=np.int64
        )
        part = self if first >= len(self) else self.keep(np.concatenate([np.arange(first), rest]))
        # the beginning is one read
        lines = {
            name: [*column[:first], *RowSubset(column, rest)]
            for name, column in self.columns.items()
        }
        columns = {name: SampledLines(column, lines[name]) for name, column in part.columns.items()}
        return Pairs(columns, part.facts, part.notes)


def side_names(recipe: Recipe) -> list[str]:
    """Return the sides of a pair: what the encoders read, in alphabetical order, then `target`.

    So tokenizers, batches and fingerprints are the same whatever the order of the recipe's keys.
    """
    return [*sorted(recipe.sources), TARGET]


def text_names(recipe: Recipe) -> list[str]:
    """Return the sides that are text, with `target`; the others are images, sounds or vectors."""
    return [side for side in side_names(recipe) if feature_settings(recipe.data, side) is None]


def file_options(recipe: Recipe) -> str:
    """Return example options: a file for each encoder in the recipe's order, and a target."""
    sources = [f"--source news.{side}" for side in recipe.sources]
    return " ".join([*sources, f"--target news.{TARGET}"])


def available_splits(recipe: Recipe) -> list[str]:
    """Return the splits that a recipe's data has: train, val, test, and its further test sets."""
    data = recipe.data
    if data.generate:
        return list(SPLITS)
    if data.babi:
        return list(SPLITS) if data.babi.val else ["train", "test"]
    section = data.parallel or data.table or data.text or data.hub
    test_sets = section.test_sets if isinstance(section, Parallel | Table) else None
    return [*(split for split in SPLITS if getattr(section, split)), *(test_sets or {})]


def split_path(recipe: Recipe, split: str) -> KeyPath:
    """Return the path in the recipe of what a split is read from."""
    kind = next(kind for kind in DATA_SOURCES if getattr(recipe.data, kind))
    if kind not in ("parallel", "table", "text", "hub"):
        return ("data", kind)
    return ("data", kind, split) if split in SPLITS else ("data", kind, "test_sets", split)
