"""Ids of texts in flat arrays, in memory or mapped from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from composer.data.features import Features, Ragged
from composer.data.pairs import TARGET
from composer.model.special_tokens import BOS, EOS, PAD, UNK

HASHED_ROWS = 100_000
"""Rows whose ids are hashed at once."""


def smallest_type(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type that holds every id of a vocabulary."""
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32


@dataclass(frozen=True)
class Ids(Ragged):
    """Rows of ids. For stories a row is a story, and values are (sentences, words), padded."""

    @classmethod
    def of(
        cls, chunks: Iterable[Sequence[Sequence[object]]], vocabulary: int, words: int | None = None
    ) -> Ids:
        """Pack rows into the smallest type for a vocabulary.

        words: Words of a sentence, for stories.
        """
        dtype = smallest_type(vocabulary)
        values, lengths = [], [0]
        for rows in chunks:
            if words is None:
                values.append(np.fromiter(chain.from_iterable(rows), dtype, sum(map(len, rows))))
            else:
                values.append(
                    np.concatenate([np.asarray(row, dtype).reshape(-1, words) for row in rows])
                )
            lengths += map(len, rows)
        edges = np.cumsum(lengths)
        return cls(np.concatenate(values or [np.zeros(0, dtype)]), edges[:-1], edges[1:])

    def __getitem__(self, row: int) -> list[int] | np.ndarray:
        """Return a row; of a story an array (sentences, words)."""
        row = range(len(self))[row]
        values = self.values[self.starts[row] : self.ends[row]]
        return values.astype(np.int64) if self.is_story else values.tolist()

    def are_below(self, vocabulary: int) -> bool:
        """True if the rows lie within the values, and these are ids of such a vocabulary."""
        return self.lies_within(len(self.values)) and int(self.values.max(initial=0)) < vocabulary

    @property
    def is_story(self) -> bool:
        return self.values.ndim == 2

    def positions(self) -> np.ndarray:
        """Return the positions of each row with eos; of a story sentences times words."""
        return self.lengths() * self.values.shape[1] if self.is_story else self.lengths() + 1

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """Return the inputs of a decoder: bos, then ids, padded on the right. -> (B, T) int64"""
        return self.padded(rows, first=BOS)

    def outputs(self, rows: np.ndarray) -> np.ndarray:
        """Return the outputs of a decoder: ids, then eos, padded on the right. -> (B, T) int64

        Stories have no eos, and get whole sentences of padding. -> (B, N, W)
        """
        return self.padded(rows, last=None if self.is_story else EOS)

    def padded(
        self, rows: np.ndarray, first: int | None = None, last: int | None = None
    ) -> np.ndarray:
        """Return the ids of rows, `first` before and `last` after each, padded on the right."""
        starts, counts = self.starts[rows], self.ends[rows] - self.starts[rows]  # (B,) each
        before = int(first is not None)
        longest = before + int(counts.max(initial=0)) + int(last is not None)
        out = np.full(
            (len(rows), longest, *self.values.shape[1:]), PAD, dtype=np.int64
        )  # (B, T), or (B, N, W)
        # one scatter for all rows: their positions one after another, and of each the row that it
        # belongs to
        positions, row_of = ragged_positions(counts)  # (ids,) each
        out[row_of, positions + before] = self.values[np.repeat(starts, counts) + positions]
        if first is not None:
            out[:, 0] = first
        if last is not None:
            out[np.arange(len(rows)), before + counts] = last
        return out

    def flat(self) -> Iterator[np.ndarray]:
        """Yield the values of all rows, one after another, a part of them at a time."""
        for at in range(0, len(self), HASHED_ROWS):
            starts, ends = self.starts[at : at + HASHED_ROWS], self.ends[at : at + HASHED_ROWS]
            if (starts[1:] == ends[:-1]).all():
                yield self.values[starts[0] : ends[-1]]
            else:
                counts = ends - starts
                yield self.values[np.repeat(starts, counts) + ragged_positions(counts)[0]]

    def count(self, token: int) -> int:
        """Count a token in all rows."""
        return sum(int((values == token).sum()) for values in self.flat())

    def repeats(self) -> np.ndarray:
        """Count the ids of each row that equal the one before. -> (rows,)"""
        # up to each id
        before = np.concatenate([[0, 0], np.cumsum(self.values[1:] == self.values[:-1])])
        last = np.maximum(self.ends, self.starts + 1)  # of an empty row nothing
        return np.where(self.ends > self.starts, before[last] - before[self.starts + 1], 0)

    def num_tokens(self) -> int:
        """Count the ids of all rows; of stories, without padding."""
        count = int(self.lengths().sum())
        return count * self.values.shape[1] - self.count(PAD) if self.is_story else count

    def update(self, digest: Any) -> None:
        """Add the lengths and the ids of all rows to a hash."""
        digest.update(np.concatenate([[0], np.cumsum(self.lengths())]).tobytes())
        for values in self.flat():
            digest.update(values.astype(np.uint32).tobytes())

    def first(self, token: int) -> tuple[int, int]:
        """Return the first row with a token, and its place there.

        Raises StopIteration without one.
        """
        rows = ((row, np.flatnonzero(np.asarray(self[row]) == token)) for row in range(len(self)))
        return next((row, int(places[0])) for row, places in rows if len(places))


def ragged_positions(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each id in its row, and its row. counts: (B,) -> (ids,) each"""
    positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions, np.repeat(np.arange(len(counts)), counts)


@dataclass(frozen=True)
class TextCounts:
    """Counts of a text: tokens with document ends, words, characters and UTF-8 bytes.

    The end of a document counts as a word, a character and a byte, as a line feed does in a file of
    lines.
    """

    documents: int
    tokens: int
    words: int
    characters: int
    bytes: int
    unknown: int

    def units(self) -> dict[str, int]:
        """Return the sums of `composer.metrics.table.Sums` that are known without a model."""
        return {"words": self.words, "characters": self.characters, "bytes": self.bytes}


@dataclass(frozen=True)
class Encoded:
    """Ids of every side of a split, without bos and eos; `sources` by what the encoders read.

    `lines` are the target's lines as the files have them, for BLEU; `originals` the number of each
    row's line. `facts`: (rows, F), the indices in each row's story of the sentences that support
    the answer, -1 for none; None without stories. `digest`, of what the cache has: the SHA-256 of
    the ids; `counts`, of a text: what it has. `cut`: of how many pairs the last tokens are left
    out, where a line had no end.
    """

    sources: Mapping[str, Ids | Features]
    target: Ids
    lines: Sequence[str]
    originals: np.ndarray
    facts: np.ndarray | None = None
    counts: TextCounts | None = None
    digest: str | None = None
    cut: int = 0

    def __len__(self) -> int:
        return len(self.target)

    @property
    def sides(self) -> dict[str, Ids | Features]:
        """Sources and target by name."""
        return {**self.sources, TARGET: self.target}

    @property
    def texts(self) -> dict[str, Ids]:
        """The sides that are tokens, by name."""
        return {side: ids for side, ids in self.sides.items() if isinstance(ids, Ids)}

    def keep(self, rows: np.ndarray) -> Encoded:
        """Return only these rows (bool, one per row)."""
        sources = {side: ids.keep(rows) for side, ids in self.sources.items()}
        facts = None if self.facts is None else self.facts[rows]
        return Encoded(sources, self.target.keep(rows), self.lines, self.originals[rows], facts)

    def count_unknown(self, side: str) -> tuple[int, int]:
        """Return the number of unknown tokens of a side of text, and of all its tokens."""
        ids = self.texts[side]
        return ids.count(UNK) if self.counts is None else self.counts.unknown, ids.num_tokens()

    def unknown_share(self) -> float:
        """Return the share of unknown tokens, 0 to 1, of the side of text that has most."""
        counts = [self.count_unknown(side) for side in self.texts]
        return max((unknown / tokens for unknown, tokens in counts if tokens), default=0.0)

    def nonempty(self) -> np.ndarray:
        """True for pairs with text on every side. -> (pairs,) bool"""
        return np.asarray(np.min([ids.lengths() for ids in self.sides.values()], axis=0) > 0)

    def of_epoch(self, epoch: int) -> Encoded:
        """Return the pairs of an epoch: the same in every one."""
        return self

    def lengths(self, by: str | None = None) -> np.ndarray:
        """Return the tokens of each pair, without eos: of the side `by`, else its longest source.

        Without sources, those of the target. -> (rows,)
        """
        sides = [by] if by else [*self.sources] or [TARGET]
        return np.asarray(np.max([self.sides[side].lengths() for side in sides], axis=0))

    @property
    def sha256(self) -> str:
        """Hash of all ids, which shows whether the data of a resumed run have changed."""
        if self.digest is not None:
            return self.digest
        digest = hashlib.sha256()
        for ids in self.sides.values():
            ids.update(digest)
        if self.facts is not None:
            digest.update(self.facts.tobytes())
        return digest.hexdigest()


class Corpus(Protocol):
    """The rows of every epoch as a function of its number."""

    def of_epoch(self, epoch: int) -> Encoded:
        """Return the rows of an epoch."""
