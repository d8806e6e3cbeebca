"""Hashes of lines: they tell data apart, and find repeated lines without another read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from composer.data.cache_entries import cached_array
from composer.data.columns import (
    Concatenation,
    FileColumn,
    FileNames,
    RowSubset,
    SampledLines,
    chunks_of,
)
from composer.data.media_files import hash_contents, hash_states
from composer.text_lines import is_blank

CACHED_LINES = 10_000
"""Lines from which on results of a file are cached; those of fewer are quickly made anew."""
DTYPE = np.dtype("<u8")
BLANK = bytes(DTYPE.itemsize)


def line_hashes(lines: Sequence[str]) -> np.ndarray:
    """Return a hash of each line, 0 of those without text. -> (lines,) uint64

    Those of a large file are remembered in the user's cache until the file changes.
    """
    if isinstance(lines, RowSubset):
        return line_hashes(lines.column)[lines.rows]
    if name_files(lines):  # of what is in them, whatever they are called
        return file_hashes([*lines])
    if isinstance(lines, Concatenation):
        return np.concatenate([line_hashes(column) for column in lines.columns])
    if isinstance(lines, FileColumn) and len(lines) >= CACHED_LINES:
        return cached_array(
            "lines", lines.identity, lambda: hash_lines(lines), are_hashes_of(len(lines))
        )
    return hash_lines(lines)


def name_files(lines: Sequence[str]) -> bool:
    """True if lines name files, also in a sample of such a column."""
    match lines:
        case SampledLines() | RowSubset():
            return name_files(lines.column)
        case Concatenation():
            return all(map(name_files, lines.columns))
    return isinstance(lines, FileNames)


def file_hashes(names: Sequence[str]) -> np.ndarray:
    """Return a hash of the content of each file, from memory until it changes. -> (files,) uint64

    Raises DataError.
    """

    def make() -> np.ndarray:
        hashes = [content[: DTYPE.itemsize] for content in hash_contents(names)]
        return np.frombuffer(b"".join(hashes), DTYPE)

    return cached_array("files", [hash_states(names)], make, are_hashes_of(len(names)))


def are_hashes_of(count: int) -> Callable[[np.ndarray], bool]:
    """Return a check of an array: whether it can be so many hashes."""
    return lambda array: array.dtype == DTYPE and array.shape == (count,)


def hash_lines(lines: Sequence[str]) -> np.ndarray:
    """Return a hash of each line, anew."""
    return np.frombuffer(b"".join(map(hash_chunk, chunks_of(lines))), DTYPE)


def hash_chunk(lines: Sequence[str]) -> bytes:
    """Return the hashes of some lines, one after another."""
    return b"".join(map(hash_line, lines))


def hash_line(line: str) -> bytes:
    """Return the hash of a line; that of blank lines is 0."""
    if is_blank(line):
        return BLANK
    text = line.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=DTYPE.itemsize).digest()


def sha256_of_hashes(lines: Sequence[str]) -> str:
    """Return the SHA-256 of the hashes of lines."""
    return hashlib.sha256(line_hashes(lines).data).hexdigest()


def sha256_of_files(names: Sequence[str]) -> str:
    """Return the SHA-256 of the hashes of files' content, whatever their names.

    Raises DataError.
    """
    return hashlib.sha256(file_hashes([*names]).data).hexdigest()


def row_hashes(*columns: Sequence[str]) -> np.ndarray:
    """Return a hash of each row of line-aligned columns; 0 without text. -> (rows,) uint64"""
    return combine_hashes([*map(line_hashes, columns)])


def combine_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a hash of each row from those of its lines, (rows,) each; 0 without text.

    -> (rows,) uint64
    """
    rows = np.zeros(len(columns[0]), DTYPE)
    for hashes in columns:
        rows *= np.uint64(31)
        rows += hashes
    return rows


def are_among(hashes: np.ndarray, few: np.ndarray) -> np.ndarray:
    """True for hashes that are among a few others; sorts only those. (N,), (M,) -> (N,) bool"""
    if not len(few):
        return np.zeros(len(hashes), dtype=bool)
    few = np.unique(few)
    return np.asarray(few[np.searchsorted(few[:-1], hashes)] == hashes)
