"""Columns of lines that stay in their files, and are read on demand."""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from composer.atomic_io import file_stamp
from composer.data.text_files import (
    READ_BYTES,
    UNPACKING_ERRORS,
    Problem,
    check_texts,
    count_lines,
    file_identity,
    line_starts,
    open_text,
    suffix_of,
)
from composer.errors import DataError, Fault
from composer.recipe.schema_reader import REFERENCE
from composer.text_lines import lines_of, one_line, without_break

Item = TypeVar("Item")
CHUNK_LINES = 10_000
"""Lines that are read at once when a whole column is iterated."""
SPARSE = 16
"""A subset with fewer than one line in so many reads these alone, else the whole column."""


def chunks_of(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of CHUNK_LINES."""
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK_LINES)):
        yield chunk


class Column(Sequence[str]):
    """Lines that stay on disk: an index reads one line, a slice several, and `len` is fast.

    Its lines are those of the file `path`, if there is one, after the first `skip`.
    """

    path: Path | None = None
    skip: int = 0

    def read(self, rows: Sequence[int]) -> list[str]:
        """Return the lines with these numbers, each in [0, len)."""
        raise NotImplementedError

    def line_of(self, row: int) -> int:
        """Return the line of its file that a row is, or begins in, counted from 1."""
        return self.skip + row + 1

    def place(self, row: int) -> tuple[Path | None, int]:
        """Return the file that a row comes from, None without one, and its line there."""
        return self.path, self.line_of(row)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self.read(range(*at.indices(len(self))))
        return self.read([range(len(self))[at]])[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK_LINES):
            yield from self[start : start + CHUNK_LINES]


@dataclass(eq=False)
class FileColumn(Column):
    """Lines of a UTF-8 file.

    The last line may have no break. `skip` lines at the start are left out; `pick` takes the field
    `name` out of a line. `identity` is what the lines depend on.
    """

    path: Path
    skip: int = 0
    name: str = ""
    pick: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        self.stamp = file_stamp(self.path)
        self.identity = [*file_identity(self.path), self.skip, self.name]

    def line(self, text: str) -> str:
        """Return a line of the column from one of the file."""
        text = without_break(text)
        return one_line(self.pick(text)) if self.pick else text


class TextColumn(FileColumn):
    """Lines of a plain file, through an index of line starts. The file must not change meanwhile.

    It is not memory-mapped: if another process truncates a mapped file, this process dies by
    SIGBUS.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.file = self.path.open("rb")
        weakref.finalize(self, self.file.close)  # nobody closes a column
        self.version, self.crc = self._version(), self._crc()
        self.identity.append(self.crc)
        self.starts = line_starts(self.path)

    def __len__(self) -> int:
        return max(0, len(self.starts) - 1 - self.skip)

    def read(self, rows: Sequence[int]) -> list[str]:
        # neighbouring lines are one read
        if isinstance(rows, range) and rows.step == 1:
            spans = [rows]
        else:
            spans = [range(row, row + 1) for row in rows]
        lines: list[str] = []
        for span in filter(len, spans):
            first, last = self.starts[[span.start + self.skip, span.stop + self.skip]].tolist()
            lines += self.split(self._bytes(first, last).decode("utf-8"))
        return lines

    def split(self, text: str) -> list[str]:
        """Return the lines of the column in neighbouring rows of the file."""
        lines = lines_of(text)
        return [one_line(self.pick(line)) for line in lines] if self.pick else lines

    def sizes(self) -> np.ndarray:
        """Return the bytes of each line of the file, its end included. -> (lines,)"""
        return np.diff(self.starts[self.skip :])

    def _bytes(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`. Raises DataError if the file has changed."""
        data, version = os.pread(self.file.fileno(), end - start, start), self._version()
        # touched, or rewritten with the same content
        if version != self.version and self._crc() == self.crc:
            self.version, data = version, os.pread(self.file.fileno(), end - start, start)
        if version != self.version or len(data) != end - start:
            raise changed(self.path)
        return data

    def _version(self) -> tuple[int, int]:
        status = os.fstat(self.file.fileno())
        return status.st_mtime_ns, status.st_size

    def _crc(self) -> int:
        crc = at = 0
        while block := os.pread(self.file.fileno(), READ_BYTES, at):
            crc, at = zlib.crc32(block, crc), at + len(block)
        return crc


class PackedColumn(FileColumn):
    """Lines of a packed file, which is unpacked from its start whenever lines are read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.length = max(0, count_lines(self.path) - self.skip)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[str]:
        try:
            with open_text(self.path) as file:
                yield from map(self.line, islice(file, self.skip, None))
        except UNPACKING_ERRORS:
            raise changed(self.path) from None
        if file_stamp(self.path) != self.stamp:
            raise changed(self.path)

    def read(self, rows: Sequence[int]) -> list[str]:
        if file_stamp(self.path) != self.stamp:
            raise changed(self.path)
        wanted, first = set(rows), islice(self, max(rows, default=-1) + 1)
        lines = {number: line for number, line in enumerate(first) if number in wanted}
        return [lines[row] for row in rows]


def changed(path: Path) -> DataError:
    """Return the error of a file that is not what it was when it was opened."""
    message = "this file has been changed while it was in use"
    fix = "restore it, and do not change it while it is in use"
    return DataError([Fault(str(path), 0, 0, "changed", "", message, fix)])


def open_column(
    path: Path, skip: int = 0, name: str = "", pick: Callable[[str], str] | None = None
) -> FileColumn:
    """Open the lines of a text file, plain or packed."""
    kind = PackedColumn if suffix_of(path)[1] else TextColumn
    return kind(path, skip, name, pick)


class Concatenation(Column):
    """Lines of several columns, one after another."""

    def __init__(self, columns: Sequence[Sequence[str]]) -> None:
        self.columns, self.ends = columns, np.cumsum([len(column) for column in columns])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.columns)

    def read(self, rows: Sequence[int]) -> list[str]:
        numbers = np.asarray(rows, dtype=np.int64)
        column_of, lines = np.searchsorted(self.ends, numbers, side="right"), [""] * len(numbers)
        for at in np.unique(column_of).tolist():
            places = np.flatnonzero(column_of == at)
            own = RowSubset(
                self.columns[at], numbers[places] - int(self.ends[at]) + len(self.columns[at])
            )
            for place, line in zip(places, own[:], strict=True):
                lines[place] = line
        return lines


class RowSubset(Column):
    """Some lines of a column, by their numbers, in any order."""

    def __init__(self, column: Sequence[str], rows: np.ndarray) -> None:
        self.column, self.rows = column, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        if len(self.rows) < len(self.column) // SPARSE or (np.diff(self.rows) <= 0).any():
            return super().__iter__()
        is_wanted = np.zeros(len(self.column), dtype=bool)
        is_wanted[self.rows] = True
        return compress(self.column, is_wanted)

    def read(self, rows: Sequence[int]) -> list[str]:
        numbers = self.rows[np.asarray(rows, dtype=np.int64)]
        if not len(numbers):
            return []
        first, last = int(numbers.min()), int(numbers.max())
        if last - first <= 2 * len(numbers):  # one read of neighbours, the others dropped
            lines = self.column[first : last + 1]
            return [lines[number - first] for number in numbers]
        if isinstance(self.column, Column):
            return self.column.read(numbers.tolist())
        return [self.column[number] for number in numbers.tolist()]


def place_of(lines: Sequence[str], row: int, origin: str) -> str:
    """Return the file and line of a row, or `origin` and the row."""
    path, line = locate(lines, row)
    return f"line {line:,} of {f'`{path}`' if path else origin}"


def row_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the smallest signed type for the numbers of `count` rows: differences stay right."""
    return np.int32 if count < 1 << 31 else np.int64


def open_texts(files: Mapping[str, Path]) -> dict[str, FileColumn]:
    """Open line-aligned files of a user, by side. Raises DataError with the faults of all sides."""
    problems = check_texts({side: str(path) for side, path in files.items()}, [Path()])
    same: list[str] = []
    if not problems:
        sides = [side for side in files if side != "target"]
        same = [side for side in sides if files[side].samefile(files["target"])]
    if same and same[0].startswith(REFERENCE):
        problems = [
            Problem("file", "this file is named twice as a target", "name each once", same[0])
        ]
    elif same:
        columns = f"{{file: {files['target'].name}, source: COLUMN, target: COLUMN}}"
        fix = f"name two files; one with columns goes into a recipe: `train: {columns}`"
        problems = [Problem("file", "this file is the source and the target", fix, "target")]
    if problems:
        raise DataError(
            [Fault(str(files[it.key]), 1, 1, it.code, "", it.message, it.hint) for it in problems]
        )
    return {side: open_column(path) for side, path in files.items()}


class FileNames(Column):
    """Column whose lines name files, as paths from the folder of the table that has them."""

    def __init__(self, lines: Sequence[str], folder: Path) -> None:
        self.lines, self.folder = lines, folder

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[str]:
        return (str(self.folder / line) for line in self.lines)

    def read(self, rows: Sequence[int]) -> list[str]:
        return [str(self.folder / line) for line in RowSubset(self.lines, np.asarray(rows))[:]]


class SampledLines(list[str]):
    """Lines of a column, in memory, that know where they come from."""

    def __init__(self, column: Sequence[str], lines: Iterable[str]) -> None:
        super().__init__(lines)
        self.column = column


class NumberedLines(list[str]):
    """Some lines of a text, with their numbers there."""

    def __init__(self, lines: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(lines)
        self.numbers = numbers


def locate(lines: Sequence[str], row: int) -> tuple[Path | None, int]:
    """Return the file of a row, None without one, and the row's line there, counted from 1."""
    match lines:
        case NumberedLines():
            return None, lines.numbers[row]
        case SampledLines():
            return locate(lines.column, row)
        case RowSubset():
            return locate(lines.column, int(lines.rows[row]))
        case FileNames():
            return locate(lines.lines, row)
        case Concatenation():
            at = int(np.searchsorted(lines.ends, row, side="right"))
            return locate(lines.columns[at], row - int(lines.ends[at]) + len(lines.columns[at]))
        case Column():
            return lines.place(row)
    return None, row + 1
