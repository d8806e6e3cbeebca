"""Encoded pairs: ids in flat arrays, so that millions of lines fit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

CHUNK = 10_000  # lines that are encoded at once

CACHED_EPOCHS = 3
"""Epochs that are remembered: the present one and the next, whichever was asked for last."""

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Ids:
    """Rows of ids, one after another. Row r is values[starts[r] : starts[r + 1]].

    Of stories the values are (sentences, words), padded on the right, and a row is a story.
    """

    values: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, chunks: Iterable[list[list[int]]], vocabulary: int) -> Ids:
        """Packs rows into the smallest type that holds every id of the vocabulary."""
        kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        values, lengths = [np.zeros(0, dtype=kind)], [np.zeros(1, dtype=np.int64)]
        for rows in chunks:
            values.append(np.fromiter((each for row in rows for each in row), dtype=kind))
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64))
        return cls(np.concatenate(values), np.cumsum(np.concatenate(lengths)))

    @classmethod
    def of_stories(cls, stories: Sequence[np.ndarray], vocabulary: int) -> Ids:
        """Packs stories, (sentences, words) each, all of as many words."""
        kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        return cls(np.concatenate(stories).astype(kind), np.cumsum([0, *map(len, stories)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> list[int] | np.ndarray:
        """A row; of a story an array (sentences, words)."""
        row = range(len(self))[row]
        found = self.values[self.starts[row] : self.starts[row + 1]]
        return found.astype(np.int64) if self.is_story else found.tolist()

    @property
    def is_story(self) -> bool:
        return self.values.ndim == 2

    def lengths(self) -> np.ndarray:
        """How many ids each row has; of a story how many sentences."""
        return np.diff(self.starts)

    def positions(self) -> np.ndarray:
        """How many positions each row has alone, its eos counted; of a story its sentences times their room."""
        return self.lengths() * self.values.shape[1] if self.is_story else self.lengths() + 1

    def real(self) -> int:
        """How many of all positions are no padding."""
        return int(np.count_nonzero(self.values)) if self.is_story else int(self.positions().sum())

    def keep(self, rows: np.ndarray) -> Ids:
        """Only these rows (bool, one per row), in their order."""
        counts = self.lengths()
        return Ids(self.values[np.repeat(rows, counts)], np.concatenate([[0], np.cumsum(counts[rows])]))


@dataclass(frozen=True)
class Encoded:
    """The ids of every side of a split, without bos and eos; `sources` by what the encoders read.

    `lines` are the target's lines as the files have them, for BLEU; `originals` the number of each row's line. `facts`:
    (rows, F), the places in each row's story of the sentences that bear the answer, -1 for none; None without stories.
    """

    sources: dict[str, Ids]
    target: Ids
    lines: Sequence[str]
    originals: np.ndarray
    facts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.target)

    def keep(self, rows: np.ndarray) -> Encoded:
        """Only these rows (bool, one per row)."""
        sources = {side: ids.keep(rows) for side, ids in self.sources.items()}
        facts = None if self.facts is None else self.facts[rows]
        return Encoded(sources, self.target.keep(rows), self.lines, self.originals[rows], facts)

    def of_epoch(self, epoch: int) -> Encoded:
        """The pairs of an epoch: the same in every one."""
        return self

    @property
    def sha256(self) -> str:
        """The fingerprint of all ids: whether the data are still what they were."""
        digest = hashlib.sha256()
        for ids in (*self.sources.values(), self.target):
            digest.update(ids.starts.tobytes() + ids.values.astype(np.uint32).tobytes())
        if self.facts is not None:
            digest.update(self.facts.tobytes())
        return digest.hexdigest()


class Corpus(Protocol):
    """The pairs of every epoch, a pure function of its number: of `Encoded` always the same, of `Endless` others."""

    def of_epoch(self, epoch: int) -> Encoded: ...


class EndlessCorpus:
    """Fresh pairs in every epoch. Some are kept: batches of the next epoch are fetched before the present one ends."""

    def __init__(self, first: Encoded, fresh: Callable[[int], Encoded]) -> None:
        self.first, self.fresh = first, lru_cache(CACHED_EPOCHS)(fresh)

    def of_epoch(self, epoch: int) -> Encoded:
        """The pairs of an epoch; those of epoch 0 are there from the start."""
        return self.fresh(epoch) if epoch else self.first


def encode(lines: Sequence[str], encoder: Encode, vocabulary: int) -> Ids:
    """The ids of all lines, chunk by chunk."""
    return Ids.of((encoder(lines[at : at + CHUNK]) for at in range(0, len(lines), CHUNK)), vocabulary)
