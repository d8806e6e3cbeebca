"""The data that `check` reads: all of a small split; of a large one its beginning and a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from composer.data.columns import CHUNK_LINES, RowSubset, SampledLines, TextColumn, chunks_of
from composer.data.documents import Documents
from composer.data.line_hashes import name_files
from composer.data.media_files import file_size
from composer.data.pairs import TARGET, Pairs, available_splits, side_names, text_names
from composer.data.sources import DataSource, generate_pairs

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

READ_SIZE, PIECES_SIZE = 16_000_000, 2_000_000
"""Bytes (else characters) of a split to read, and to cut into pieces of words, which is slow."""
SPREAD_PAIRS = 1_000
"""Pairs behind the beginning of a split that are read, too."""
MEASURED_PAIRS, DRAWN_PAIRS = 10, 50_000
"""Training pairs of a task to measure, and to draw at most: a second's work."""
TOKENIZER_PAIRS, TOKENIZER_CHARACTERS = 1_000, 1 << 18
"""First pairs and later pairs, or characters, that train the tokenizer of a part of the data."""


@dataclass(frozen=True)
class Sample:
    """Data of a recipe, or a part; `few` are training pairs of a part that train a tokenizer.

    beginnings: Of the splits with more than READ_SIZE, how many pairs or documents of the beginning
    are there.
    """

    source: DataSource
    few: DataSource
    beginnings: Mapping[str, int]

    @property
    def is_all(self) -> bool:
        """True if every split is complete."""
        return self.few is self.source


def read_sample(source: DataSource, needs_sizes: bool) -> Sample:
    """Return as much of the data as is read in a moment. Raises DataError with every fault of it.

    needs_sizes: Whether the model depends on the sizes of vocabularies.
    """
    recipe, task = source.recipe, source.recipe.data.generate
    has_files = text_names(recipe) != side_names(recipe)
    refuses_lines = recipe.tokenizer.is_closed or recipe.model.output.length is not None
    is_slow = recipe.tokenizer.is_slow and not (has_files or refuses_lines or needs_sizes)
    opened, beginnings, complete = dict[str, Pairs](), dict[str, int](), list[str]()
    for split in available_splits(recipe):
        if split == "train" and task and task.train > (count := count_drawn(recipe)):
            opened[split] = generate_pairs(recipe, split, train=count)
            beginnings[split] = count
            continue
        pairs = source.pairs(split)
        opened[split], first = read_part(pairs, PIECES_SIZE if is_slow else READ_SIZE)
        if opened[split] is pairs:
            complete.append(split)
        elif not (is_slow and fits(pairs, READ_SIZE)):
            beginnings[split] = first
    if len(complete) == len(opened):
        return Sample(source, source, beginnings)
    few = tokenizer_sample(opened["train"])
    # of a few lines of a large file the cache would have all
    opened |= {split: pairs_in_memory(opened[split]) for split in complete}
    return Sample(source.with_pairs(opened), source.with_pairs({"train": few}), beginnings)


def count_drawn(recipe: Recipe) -> int:
    """Return the number of training pairs to draw of a recipe's task: fewer of long ones."""
    first = generate_pairs(recipe, "train", train=MEASURED_PAIRS)
    size = sum(sum(map(len, lines)) for lines in first.sides.values()) / len(first)
    return min(DRAWN_PAIRS, max(MEASURED_PAIRS, int(READ_SIZE / (1 + size))))


def read_part(pairs: Pairs, most: int) -> tuple[Pairs, int]:
    """Return the pairs if they have at most so many bytes, else a part; and how many begin it."""
    if not isinstance(text := pairs.sides[TARGET], Documents):
        first = count_first(pairs, most)
        return (pairs, first) if first == len(pairs) else (pairs.sample(first, SPREAD_PAIRS), first)
    if fits(pairs, most):
        return pairs, len(pairs)
    documents = text.head(most)
    return Pairs({TARGET: SampledLines(text, documents)}), len(documents)


def fits(pairs: Pairs, most: int) -> bool:
    """True if pairs have at most so many bytes, see READ_SIZE."""
    if isinstance(text := pairs.sides[TARGET], Documents):
        return sum(file.characters for file in text.facts) <= most
    return count_first(pairs, most) == len(pairs)


def in_memory(source: DataSource) -> DataSource:
    """Return the same data in memory, which no cache is asked for."""
    return source.with_pairs(
        {split: pairs_in_memory(pairs) for split, pairs in source.all_pairs().items()}
    )


def pairs_in_memory(pairs: Pairs) -> Pairs:
    """Return the same pairs in memory."""
    if isinstance(text := pairs.sides[TARGET], Documents):
        return Pairs({TARGET: SampledLines(text, text)})
    return pairs.sample(len(pairs), 0)


def tokenizer_sample(pairs: Pairs) -> Pairs:
    """Return some pairs of those that are trained on; of a text its first documents."""
    if isinstance(text := pairs.sides[TARGET], Documents):
        return Pairs({TARGET: SampledLines(text, text.head(TOKENIZER_CHARACTERS))})
    return pairs.sample(TOKENIZER_PAIRS, TOKENIZER_PAIRS)


def count_first(pairs: Pairs, most: int) -> int:
    """Return the number of first pairs that have at most so many bytes, see READ_SIZE."""
    count = size = 0
    for chunks in zip(*map(line_sizes, pairs.sides.values()), strict=True):
        ends = size + np.cumsum(np.sum(chunks, axis=0))
        if ends[-1] > most:
            return count + int(np.searchsorted(ends, most, side="right"))
        count, size = count + len(ends), int(ends[-1])
    return count


def line_sizes(lines: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield the sizes of CHUNK_LINES lines at a time.

    They are bytes of lines on disk or of named files, else characters.
    """
    if (known := known_sizes(lines)) is not None:
        yield from (known[at : at + CHUNK_LINES] for at in range(0, len(known), CHUNK_LINES))
        return
    measure = file_size if name_files(lines) else len
    for chunk in chunks_of(lines):
        yield np.fromiter(map(measure, chunk), np.int64, len(chunk))


def known_sizes(lines: Sequence[str]) -> np.ndarray | None:
    """Return the bytes of each line where an index of its file has them, else None. -> (lines,)"""
    match lines:
        case RowSubset():
            sizes = known_sizes(lines.column)
            return None if sizes is None else sizes[lines.rows]
        case TextColumn(pick=None):
            return lines.sizes()
    return None
