"""Columns of text: one side of the pairs, as a sequence of lines that stays on disk until it is read.

A slice of a column is a list; `len` is quick. Text, TSV and JSON lines are read in place, through one index of where
each line starts; Parquet, CSV and the hub go through `datasets`, which keeps a memory-mapped copy.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from composer.data.tables import value_at

CHUNK = 10_000  # lines that are read at once when all are wanted
BLOCK = 1 << 26
BOM = b"\xef\xbb\xbf"


class Column(Sequence[str]):
    """Lines by number; a subclass says how many there are and reads some of them."""

    def read(self, rows: Sequence[int]) -> list[str]:
        """The lines of these numbers, 0 or more and less than the length."""
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self.read(range(*at.indices(len(self))))
        return self.read([range(len(self))[at]])[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self[start : start + CHUNK]


class TextColumn(Column):
    """The lines of a UTF-8 file. Only `\\n` ends a line, with or without `\\r` before it; the last may have none.

    `skip` lines at the start are left out; `pick` takes the column out of a line.
    """

    def __init__(self, path: Path, skip: int = 0, pick: Callable[[str], str] | None = None) -> None:
        self.bytes = _mapped(path)
        self.starts = _starts(self.bytes)
        self.skip, self.pick = skip, pick

    def __len__(self) -> int:
        return max(0, len(self.starts) - 1 - self.skip)

    def read(self, rows: Sequence[int]) -> list[str]:
        lines = [self._line(row + self.skip) for row in rows]
        return [one_line(self.pick(line)) for line in lines] if self.pick else lines

    def _line(self, number: int) -> str:
        raw = self.bytes[self.starts[number] : self.starts[number + 1]]
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")


class DatasetColumn(Column):
    """A column of a `datasets.Dataset`, which is memory-mapped; `a.b` reaches into a structure."""

    def __init__(self, dataset: Any, name: str) -> None:
        head = name if name in dataset.column_names else name.split(".")[0]
        self.dataset, self.head, self.name = dataset.select_columns([head]), head, name

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Sequence[int]) -> list[str]:
        if not len(rows):
            return []
        found = self.dataset[rows if isinstance(rows, range) else list(rows)][self.head]
        return [one_line(value_at({self.head: each}, self.name)) for each in found]


def tsv_column(path: Path, name: str) -> TextColumn:
    """A column of a TSV file whose first line names the columns. Nothing is quoted in it."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        place = file.readline().rstrip("\r\n").split("\t").index(name)
    return TextColumn(path, skip=1, pick=lambda line: line.split("\t")[place])


def json_column(path: Path, name: str) -> TextColumn:
    """A key of the objects in a JSON lines file; `a.b` reaches into an inner object."""
    return TextColumn(path, pick=lambda line: value_at(json.loads(line), name))


def dataset_columns(dataset: Any, names: Mapping[str, str]) -> dict[str, Column]:
    """The columns called so of a data set, by side."""
    return {side: DatasetColumn(dataset, name) for side, name in names.items()}


def one_line(text: str | None) -> str:
    """A text as one line: a pair is a line on each side, wherever it came from. Nothing is an empty line."""
    return (text or "").replace("\r\n", " ").replace("\n", " ")


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _starts(data: mmap.mmap | bytes) -> np.ndarray:
    """Where each line starts, and the end."""
    first = len(BOM) if data[: len(BOM)] == BOM else 0
    found = [np.array([first], dtype=np.int64)]
    for start in range(0, len(data), BLOCK):
        block = np.frombuffer(data[start : start + BLOCK], dtype=np.uint8)
        found.append(np.flatnonzero(block == 10) + (start + 1))
    starts = np.concatenate(found)
    return starts if starts[-1] == len(data) else np.append(starts, len(data))
