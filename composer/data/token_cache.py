"""Texts that were tokenised before: ids in files of the user's cache, which a training maps into memory.

An entry is a folder named by all that its ids depend on: `ids.bin`, the ids of all documents, each with its end; and
`starts.bin` and `ends.bin`, where each starts and ends, without its end; `entry.json` says what they have.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from composer import formatting
from composer.atomic_io import atomic_write, parse_json, read_text
from composer.data import corpora, tokenizer, tokenizer_files, tokenizer_kinds
from composer.data.cache_entries import CORPORA, cached_entry, entry_path
from composer.data.columns import Column, FileNames, RowSubset, chunks_of
from composer.data.corpora import Documents, Piece
from composer.data.ids import Encoded, Ids, TextCounts, smallest_type
from composer.data.line_hashes import CACHED_LINES, sha256_of_hashes
from composer.data.pairs import TARGET
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.model.encoder_decoder import EOS, UNK

CHUNK = 1 << 21
"""Characters that are tokenised at once, about."""
MEASURED_LINES = 100
"""Lines from whose lengths those of a column are estimated."""
SHOWN_SECONDS = 2.0
"""Seconds after which a terminal shows how far the tokenising is."""
ENTRY = "entry.json"
IdType = type[np.unsignedinteger[Any]]


def encode_documents(documents: Documents, tokenizers: Tokenizers) -> Encoded:
    """Return the ids of documents, from the cache; they are put there first where it has none.

    Raises DataError where a file cannot be read, RunError where the cache cannot be written or read.
    """
    facts = documents.facts
    characters = sum(file.characters for file in facts)
    entry, ids = cached_ids(documents.sha256, documents.pieces(), characters, TARGET, tokenizers)
    count = len(ids)
    counts = TextCounts(
        documents=count,
        tokens=len(ids.values),
        words=sum(file.words for file in facts) + count,
        characters=characters + count,
        bytes=sum(file.bytes for file in facts) + count,
        unknown=entry["unknown"],
    )
    return Encoded({}, ids, documents, np.arange(count), counts=counts, digest=entry["sha256"])


def encode_column(lines: Sequence[str], side: str, tokenizers: Tokenizers) -> Ids:
    """Return the ids of a side's lines, those without text as empty ones, through the cache where a file has many.

    Raises as `encode_documents`.
    """
    if isinstance(lines, RowSubset):
        return encode_column(lines.column, side, tokenizers).keep(lines.rows)
    if not is_cached(lines):
        chunks = ([empty_if_blank(line) for line in chunk] for chunk in chunks_of(lines))
        return Ids.of((tokenizers.encode(side, chunk) for chunk in chunks), tokenizers.sizes[side])
    first = lines[:MEASURED_LINES]
    characters = len(lines) * sum(map(len, first)) // len(first)
    pieces = (Piece(empty_if_blank(line), True) for line in lines)  # read only if they are not in the cache
    return cached_ids(sha256_of_hashes(lines), pieces, characters, side, tokenizers)[1]


def is_cached(lines: Sequence[str]) -> bool:
    """Return whether the ids of a column's lines are in the cache, once they are encoded."""
    column = whole_column(lines)
    return isinstance(column, Column) and not isinstance(column, FileNames) and len(column) >= CACHED_LINES


def whole_column(lines: Sequence[str]) -> Sequence[str]:
    """Return the column of which lines are a subset, or the lines."""
    return whole_column(lines.column) if isinstance(lines, RowSubset) else lines


def code_hashes(*modules: ModuleType) -> list[str]:
    """Return the SHA-256 of the source of each module."""
    return [hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest() for module in modules]


def empty_if_blank(line: str) -> str:
    """Return a line, and "" of one without text."""
    return line if line.strip() else ""


def cached_ids(
    sha256: str, pieces: Iterator[Piece], characters: int, side: str, tokenizers: Tokenizers
) -> tuple[dict[str, Any], Ids]:
    """Return what an entry says of itself, and its ids; it is made first where the cache has none.

    sha256: of the text in these pieces, which has so many characters, about.
    """
    code = code_hashes(tokenizer, tokenizer_kinds, tokenizer_files, corpora, sys.modules[__name__])
    parts = [versions_of("tokenizers", "sentencepiece"), code, tokenizers.sha256, tokenizers.sides[side], sha256]

    def write(folder: Path) -> None:
        with _progress(characters) as advance:
            chunks = encoded_chunks(pieces, side, tokenizers, advance)
            write_entry(folder, chunks, smallest_type(tokenizers.sizes[side]))

    return cached_entry(entry_path(CORPORA, parts), open_entry, write)


def open_entry(folder: Path) -> tuple[dict[str, Any], Ids] | None:
    """Return what an entry says of itself, and its ids; None where it is not there, or not as it was written."""
    try:
        entry = parse_json(read_text(folder / ENTRY))
        values = np.memmap(folder / "ids.bin", dtype=entry["dtype"], mode="r")
        starts, ends = (np.memmap(folder / name, dtype=np.int64, mode="r") for name in ("starts.bin", "ends.bin"))
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return None
    if not len(starts) == len(ends) == entry["documents"] or len(values) != entry["tokens"]:
        return None
    return entry, Ids(values, starts, ends)


def versions_of(*packages: str) -> list[str]:
    """Return the versions of packages, "" of one that is not installed."""
    return [version(package) if importlib.util.find_spec(package) else "" for package in packages]


def write_entry(folder: Path, chunks: Iterable[tuple[list[list[int]], list[int]]], dtype: IdType) -> None:
    """Write the files of an entry: the ids of some pieces at a time, and how many each document has that ends there."""
    digest, unknown, total, count, last = hashlib.sha256(), 0, 0, 0, 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.bin").open("wb")) for name in ("ids", "starts", "ends")]
        for rows, lengths in chunks:
            ids = np.fromiter(chain.from_iterable(rows), dtype, sum(map(len, rows)))
            ends = total + np.cumsum(lengths, dtype=np.int64)
            starts = np.concatenate([[last], ends[:-1]])[: len(ends)]
            unknown += int((ids == UNK).sum())
            total, count = total + len(ids), count + len(ends)
            digest.update(ids.tobytes())
            digest.update(ends.tobytes())
            for file, array in zip(files, (ids, starts, ends - 1), strict=True):
                array.tofile(file)
            last = int(ends[-1]) if len(ends) else last
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    entry = {"documents": count, "tokens": total, "unknown": unknown, "dtype": np.dtype(dtype).name}
    atomic_write(folder / ENTRY, json.dumps({**entry, "sha256": digest.hexdigest()}).encode())


def encoded_chunks(
    pieces: Iterator[Piece], side: str, tokenizers: Tokenizers, advance: Callable[[int], None]
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Yield the ids of some pieces at a time, and how many each document has that ends there, its end included."""
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


def _ahead(pieces: Iterator[Piece], side: str, tokenizers: Tokenizers) -> Iterator[tuple[list[Piece], list[list[int]]]]:
    """Yield lists of pieces with their ids; the library's threads tokenise the next list while one is used."""
    continues, waiting = False, None
    with ThreadPoolExecutor(1) as pool:
        for chunk in _chunks(pieces):
            follows = [continues, *(not piece.ends for piece in chunk)]
            continues = follows.pop()
            parts = zip(chunk, follows, strict=True)
            texts = [tokenizers.kind.continuation(text) if later else text for (text, _), later in parts]
            encoding = pool.submit(tokenizers.encode, side, texts)
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


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows on a terminal how many more characters are tokenised, where it takes long."""
    from rich.progress import Progress  # late: most texts are in the cache

    began = time.monotonic()
    with Progress(console=formatting.make_console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("tokenising", total=total)

        def advance(characters: int) -> None:
            bar.advance(task, characters)
            if time.monotonic() - began > SHOWN_SECONDS and bar.console.is_terminal:
                bar.refresh()

        yield advance
