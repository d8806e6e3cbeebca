"""Columns of text: one side of the pairs, as a sequence of lines that stays on disk until it is read.

A slice of a column is a list; `len` is quick. Text, TSV and JSON lines are read in place, through one index of where
each line starts; Parquet, CSV and the hub go through `datasets`, which keeps a memory-mapped copy.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np

from composer.data.tables import value_at
from composer.data.text_files import BOM
from composer.errors import DataError, Fault

CHUNK = 10_000  # lines that are read at once when all are wanted
BLOCK = 1 << 26


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
        self.bytes = Bytes(path)
        self.starts = _starts(self.bytes.blocks())
        self.skip, self.pick = skip, pick

    def __len__(self) -> int:
        return max(0, len(self.starts) - 1 - self.skip)

    def read(self, rows: Sequence[int]) -> list[str]:
        lines = self._lines(rows) if isinstance(rows, range) and rows.step == 1 else map(self._line, rows)
        return [one_line(self.pick(line)) for line in lines] if self.pick else list(lines)

    def _lines(self, rows: range) -> list[str]:
        """Neighbouring lines, read at once."""
        starts = self.starts[rows.start + self.skip : rows.stop + self.skip + 1].tolist()
        whole = self.bytes.read(starts[0], starts[-1]) if len(rows) else b""
        return [_text(whole[start - starts[0] : end - starts[0]]) for start, end in pairwise(starts)]

    def _line(self, row: int) -> str:
        start, end = self.starts[row + self.skip : row + self.skip + 2].tolist()
        return _text(self.bytes.read(start, end))


class Bytes:
    """The bytes of a file that is open as long as it is needed; they must stay what they were, which is looked at.

    They are not mapped into memory: a mapped file that another process cuts short ends this one without a word.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.open("rb")
        self.stamp, self.sum = self._stamp(), self._sum()

    def blocks(self) -> Iterator[bytes]:
        """All bytes."""
        at = 0
        while block := os.pread(self.file.fileno(), BLOCK, at):
            yield block
            at += len(block)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`. Raises DataError where the file is not what it was."""
        found = os.pread(self.file.fileno(), end - start, start)
        if self._stamp() != self.stamp:
            stamp, now = self._stamp(), self._sum()
            if now != self.sum:
                raise _changed(self.path)
            self.stamp = stamp  # touched, or written as it was
            found = os.pread(self.file.fileno(), end - start, start)
        if len(found) != end - start:
            raise _changed(self.path)
        return found

    def _stamp(self) -> tuple[int, int]:
        now = os.fstat(self.file.fileno())
        return now.st_mtime_ns, now.st_size

    def _sum(self) -> int:
        found = 0
        for block in self.blocks():
            found = zlib.crc32(block, found)
        return found


class DatasetColumn(Column):
    """A column of a `datasets.Dataset`, which is memory-mapped; `a.b` reaches into a structure. Nothing is empty."""

    def __init__(self, dataset: Any, name: str, origin: str) -> None:
        head = name if name in dataset.column_names else name.split(".")[0]
        self.dataset, self.head, self.name = dataset.select_columns([head]), head, name
        self.origin = origin

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Sequence[int]) -> list[str]:
        if not len(rows):
            return []
        try:
            found = self.dataset[rows if isinstance(rows, range) else list(rows)][self.head]
        except UnicodeDecodeError as error:
            raise _not_text(self.origin, self.name, rows) from error
        return [one_line(self._value(each)) for each in found]

    def _value(self, found: Any) -> str | None:
        try:
            value: str | None = value_at({self.head: found}, self.name)
        except KeyError:  # the schema has the name, so a structure on the way is null
            return None
        return value


def tsv_column(path: Path, name: str) -> TextColumn:
    """A column of a TSV file whose first line names the columns. Nothing is quoted in it."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        place = file.readline().rstrip("\r\n").split("\t").index(name)
    return TextColumn(path, skip=1, pick=lambda line: line.split("\t")[place])


def json_column(path: Path, name: str) -> TextColumn:
    """A key of the objects in a JSON lines file; `a.b` reaches into an inner object."""
    return TextColumn(path, pick=lambda line: value_at(json.loads(line), name))


def dataset_columns(dataset: Any, names: Mapping[str, str], origin: str) -> dict[str, Column]:
    """The columns called so of a data set, by side; `origin` is what it is called in a fault."""
    return {side: DatasetColumn(dataset, name, origin) for side, name in names.items()}


def one_line(text: str | None) -> str:
    """A text as one line: a pair is a line on each side, wherever it came from. Nothing is an empty line."""
    return (text or "").replace("\r\n", " ").replace("\n", " ")


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")


def _starts(blocks: Iterator[bytes]) -> np.ndarray:
    """Where each line starts, and the end."""
    head, at, found = b"", 0, []
    for block in blocks:
        head = head if len(head) >= len(BOM) else head + block[: len(BOM)]
        found.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10) + (at + 1))
        at += len(block)
    first = len(BOM) if head.startswith(BOM) else 0
    starts = np.concatenate([np.array([first], dtype=np.int64), *found])
    return starts if starts[-1] == at else np.append(starts, at)


def _changed(path: Path) -> DataError:
    message = "this file has been changed while it was in use"
    return DataError([Fault(str(path), 0, 0, "changed", "", message, "restore it, and leave it alone until the end")])


def _not_text(origin: str, name: str, rows: Sequence[int]) -> DataError:
    message = f"the column `{name}` is not UTF-8 in rows {rows[0] + 1:,} to {rows[-1] + 1:,}"
    return DataError([Fault(origin, 0, 0, "encoding", "", message, "write the file again, as UTF-8")])
