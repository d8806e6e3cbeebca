"""Texts that were tokenised before: ids in the user's cache, which a training maps into memory.

An entry has `ids`, those of all documents, each with its end; and `starts` and `ends`, where each
starts and ends, without its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

from composer.atomic_io import is_hash
from composer.data.cache_entries import CORPORA, Append, Entry, cached_entry
from composer.data.columns import Column, FileNames, RowSubset, chunks_of
from composer.data.documents import Documents, FileFacts, Piece, remembered_count
from composer.data.ids import Encoded, Ids, TextCounts, smallest_type
from composer.data.line_hashes import CACHED_LINES, sha256_of_hashes
from composer.data.pairs import TARGET
from composer.data.round_trips import kept_pieces
from composer.data.tokenizer import Tokenizers
from composer.formatting import show_progress
from composer.model.special_tokens import EOS, UNK
from composer.text_lines import empty_if_blank

CHUNK = 1 << 21
"""Characters that are tokenised at once, about."""
MEASURED_LINES = 100
"""Lines from whose lengths those of a column are estimated."""
IdType = type[np.unsignedinteger[Any]]


def encode_documents(documents: Documents, tokenizers: Tokenizers) -> Encoded:
    """Return the ids of documents, from the cache; they are put there first where it has none.

    Raises DataError where a file cannot be read, RunError where the cache cannot be written or
    read.
    """
    characters = sum(file.characters for file in documents.facts)
    known, ids = cached_ids(documents.sha256, documents.pieces(), characters, TARGET, tokenizers)
    counts = count_text(kept_facts(documents, tokenizers), ids, known["unknown"])
    return Encoded({}, ids, documents, np.arange(len(ids)), counts=counts, digest=known["sha256"])


def kept_facts(documents: Documents, tokenizers: Tokenizers) -> list[FileFacts]:
    """Return the facts of the text that the ids of documents hold. Raises DataError."""
    if tokenizers.is_exact:
        return documents.facts
    key = ["kept", tokenizers.sha256, documents.sha256]
    return [remembered_count(key, lambda: kept_pieces(tokenizers, documents.pieces()))]


def count_text(files: Sequence[FileFacts], ids: Ids, unknown: int) -> TextCounts:
    """Return the counts of files or texts together, with the end of each document."""
    ends = len(ids)
    return TextCounts(
        documents=ends,
        tokens=int(ids.lengths().sum()) + ends,
        words=sum(file.words for file in files) + ends,
        characters=sum(file.characters for file in files) + ends,
        bytes=sum(file.bytes for file in files) + ends,
        unknown=unknown,
    )


def encode_column(lines: Sequence[str], side: str, tokenizers: Tokenizers) -> Ids:
    """Return the ids of a side's lines, blank ones as empty, from the cache if a file has many.

    Raises as `encode_documents`.
    """
    if isinstance(lines, RowSubset):
        return encode_column(lines.column, side, tokenizers).keep(lines.rows)
    if not is_cached(lines):
        chunks = (list(map(empty_if_blank, chunk)) for chunk in chunks_of(lines))
        return Ids.of((tokenizers.encode(side, chunk) for chunk in chunks), tokenizers.sizes[side])
    first = lines[:MEASURED_LINES]
    characters = len(lines) * sum(map(len, first)) // len(first)
    # read only if they are not in the cache
    pieces = (Piece(empty_if_blank(line), True) for line in lines)
    return cached_ids(sha256_of_hashes(lines), pieces, characters, side, tokenizers)[1]


def is_cached(lines: Sequence[str]) -> bool:
    """True if the ids of a column's lines are in the cache once they are encoded."""
    column = whole_column(lines)
    return (
        isinstance(column, Column)
        and not isinstance(column, FileNames)
        and len(column) >= CACHED_LINES
    )


def whole_column(lines: Sequence[str]) -> Sequence[str]:
    """Return the column of which lines are a subset, or the lines."""
    return whole_column(lines.column) if isinstance(lines, RowSubset) else lines


def cached_ids(
    sha256: str, pieces: Iterator[Piece], characters: int, side: str, tokenizers: Tokenizers
) -> tuple[dict[str, Any], Ids]:
    """Return facts and ids of a text from the cache, which are made first if missing.

    sha256: of the text in these pieces, which has so many characters, about.
    """
    vocabulary = tokenizers.sizes[side]

    def make(append: Append) -> dict[str, Any]:
        with show_progress("tokenising", characters) as advance:
            chunks = encoded_chunks(pieces, side, tokenizers, advance)
            return append_ids(append, chunks, smallest_type(vocabulary))

    def are_ids(entry: Entry) -> bool:
        facts, arrays = entry
        ids = Ids(arrays["ids"], arrays["starts"], arrays["ends"])
        return (
            type(facts["unknown"]) is int and is_hash(facts["sha256"]) and ids.are_below(vocabulary)
        )

    key: list[object] = [tokenizers.sha256, tokenizers.sides[side], sha256]
    if prefix := tokenizers.prefixes.get(side):  # sides of one tokenizer may have different ones
        key.append(prefix)
    facts, arrays = cached_entry(CORPORA, key, make, are_ids)
    return facts, Ids(arrays["ids"], arrays["starts"], arrays["ends"])


def append_ids(
    append: Append, chunks: Iterable[tuple[list[list[int]], list[int]]], dtype: IdType
) -> dict[str, object]:
    """Append chunks of ids, with the lengths of the documents that end in each; return facts."""
    digest, unknown, total, last = hashlib.sha256(), 0, 0, 0
    # if there is no document
    append(ids=np.zeros(0, dtype), starts=np.zeros(0, np.int64), ends=np.zeros(0, np.int64))
    for rows, lengths in chunks:
        ids = np.fromiter(chain.from_iterable(rows), dtype, sum(map(len, rows)))
        ends = total + np.cumsum(lengths, dtype=np.int64)
        starts = np.concatenate([[last], ends[:-1]])[: len(ends)]
        append(ids=ids, starts=starts, ends=ends - 1)
        digest.update(ids.tobytes())
        digest.update(ends.tobytes())
        unknown, total = unknown + int((ids == UNK).sum()), total + len(ids)
        last = int(ends[-1]) if len(ends) else last
    return {"unknown": unknown, "sha256": digest.hexdigest()}


def encoded_chunks(
    pieces: Iterator[Piece], side: str, tokenizers: Tokenizers, advance: Callable[[int], None]
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Yield chunks of ids, and the lengths of the documents that end in each, with their ends."""
    begun = 0
    for chunk, rows in _ahead(pieces, side, tokenizers):
        lengths: list[int] = []
        for row, piece in zip(rows, chunk, strict=True):
            begun += len(row) + piece.ends
            if piece.ends:
                row.append(EOS)
                lengths.append(begun)
                begun = 0
        yield rows, lengths
        advance(sum(len(piece.text) for piece in chunk))


def _ahead(
    pieces: Iterator[Piece], side: str, tokenizers: Tokenizers
) -> Iterator[tuple[list[Piece], list[list[int]]]]:
    """Yield chunks of pieces with their ids; the next one is tokenised while one is used."""
    continues, waiting = False, None
    with ThreadPoolExecutor(1) as pool:
        for chunk in _chunks(pieces):
            follows = [continues, *(not piece.ends for piece in chunk)]
            continues = follows.pop()
            encoding = pool.submit(
                tokenizers.encode_pieces, side, [piece.text for piece in chunk], follows
            )
            if waiting:
                yield waiting[0], waiting[1].result()
            waiting = chunk, encoding
        if waiting:
            yield waiting[0], waiting[1].result()


def _chunks(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces in lists of about CHUNK characters."""
    chunk: list[Piece] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.text) + 1
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
