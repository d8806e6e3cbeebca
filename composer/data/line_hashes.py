"""Hashes of lines: they tell data apart, and find lines that are there twice, without reading the text again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from composer.atomic_io import atomic_open
from composer.data.columns import Concatenation, FileColumn, RowSubset, chunks_of
from composer.errors import RunError
from composer.recipe.cache import cache_dir

CACHED_LINES = 10_000
"""Lines of a file from which on the cache has what is made of them; fewer are made anew in a moment."""
USUAL_SHARE = 0.01
"""Share of lines that are trained on, too, in any text: short sentences repeat."""
DTYPE = np.dtype("<u8")
BLANK = bytes(DTYPE.itemsize)


def line_hashes(lines: Sequence[str]) -> np.ndarray:
    """Return a hash of each line, 0 of those without text. -> (lines,) uint64

    Those of a large file are remembered in the user's cache until the file changes.
    """
    if isinstance(lines, RowSubset):
        return line_hashes(lines.column)[lines.rows]
    if isinstance(lines, Concatenation):
        return np.concatenate([line_hashes(column) for column in lines.columns])
    if not isinstance(lines, FileColumn) or len(lines) < CACHED_LINES:
        return np.frombuffer(b"".join(hash_chunk(chunk) for chunk in chunks_of(lines)), DTYPE)
    with suppress(OSError, RunError, ValueError):
        path = cache_dir() / "lines" / hashlib.sha256(json.dumps(lines.identity).encode()).hexdigest()
        if not path.exists():
            write_hashes(path, lines)
        os.utime(path)
        return np.memmap(path, DTYPE, "r", shape=(len(lines),))
    return np.frombuffer(b"".join(hash_chunk(chunk) for chunk in chunks_of(lines)), DTYPE)


def write_hashes(path: Path, lines: Sequence[str]) -> None:
    """Write the hashes of lines into a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(path) as file:
        for chunk in chunks_of(lines):
            file.write(hash_chunk(chunk))


def hash_chunk(lines: Sequence[str]) -> bytes:
    """Return the hashes of some lines, one after another."""
    encoded = (line.encode("utf-8", "surrogatepass") if line.strip() else b"" for line in lines)
    return b"".join(hashlib.blake2b(text, digest_size=DTYPE.itemsize).digest() if text else BLANK for text in encoded)


def sha256_of_hashes(lines: Sequence[str]) -> str:
    """Return the SHA-256 of the hashes of lines."""
    return hashlib.sha256(line_hashes(lines).data).hexdigest()


def row_hashes(*columns: Sequence[str]) -> np.ndarray:
    """Return a hash of each row of line-aligned columns; 0 without text. -> (rows,) uint64"""
    rows = np.zeros(len(columns[0]), DTYPE)
    for column in columns:
        rows = rows * np.uint64(31) + line_hashes(column)
    return rows


def count_shared(rows: np.ndarray, train_rows: np.ndarray) -> int:
    """Return how many rows with text, by their hashes, are among those of training; 0 if that is a usual share."""
    shared = int((np.isin(rows, train_rows) & (rows != 0)).sum())
    return shared if shared > USUAL_SHARE * len(rows) else 0
