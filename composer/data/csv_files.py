"""CSV by RFC 4180: an index of its rows, its faults, and columns that stay in the file."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from composer.data.cache_entries import cached_array
from composer.data.columns import TextColumn
from composer.data.text_files import READ_BYTES, file_identity, open_text
from composer.text_lines import one_line

if TYPE_CHECKING:
    from _csv import Reader

FIELD = re.compile(r'(?:"(?:[^"]++|"")*+"|[^",\n]*+)')
ROW = re.compile(rf"{FIELD.pattern}(?:,{FIELD.pattern})*+[\r\n]*")
SHOWN = 40
"""Characters of a field that a fault shows."""
MEND = 'put quotes around the whole field and write each quote inside it twice, as in `"5"" disk"`'


class CsvError(ValueError):
    """A file is no CSV by RFC 4180. `line` is where that begins, counted from 1."""

    def __init__(self, line: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.line, self.message, self.fix = line, message, fix


class Row(NamedTuple):
    """A row and the lines of the file that it has: `first`, counted from 1, to `last`."""

    first: int
    last: int
    fields: list[str]


class CsvIndex(NamedTuple):
    """The rows of a file with its header, (rows,) int64 each.

    lines: The line where each row begins, from 1. The other columns count its lines, its fields,
    and the fields with line breaks.
    """

    lines: np.ndarray
    heights: np.ndarray
    fields: np.ndarray
    broken: np.ndarray


class CsvColumn(TextColumn):
    """Column of a checked file of CSV, whose fields may have line breaks."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, 1, name)
        index = csv_index(path)
        self.row_lines, self.field = index.lines, csv_header(path).index(name)
        self.starts = np.append(self.starts[index.lines - 1], self.starts[-1])

    def line_of(self, row: int) -> int:
        return int(self.row_lines[row + self.skip])

    def split(self, text: str) -> list[str]:
        rows = csv_reader(io.StringIO(text, newline="\n"))
        return [one_line(fields[self.field]) for fields in rows if fields]


def csv_header(path: Path) -> list[str]:
    """Return the first row of a file, [] of one without rows. Raises CsvError."""
    with open_text(path) as file:
        return next((row.fields for row in csv_rows(file)), [])


def csv_index(path: Path) -> CsvIndex:
    """Return the rows of a UTF-8 file; of a large file from the cache. Raises CsvError."""
    if path.stat().st_size > READ_BYTES:
        return CsvIndex(
            *cached_array("rows", file_identity(path), lambda: index_rows(path), are_rows).T
        )
    return CsvIndex(*index_rows(path).T)


def are_rows(rows: np.ndarray) -> bool:
    """True if these can be the columns of a `CsvIndex`. rows: (rows, 4) int64"""
    if (
        rows.dtype != np.int64
        or rows.ndim != 2
        or rows.shape[1] != len(CsvIndex._fields)
        or (rows < 0).any()
    ):
        return False
    lines, heights, *_ = CsvIndex(*rows.T)
    ascend = (np.diff(lines) >= heights[:-1]).all() and (heights >= 1).all()
    return bool(ascend) and lines[:1].tolist() in ([], [1])


def index_rows(path: Path) -> np.ndarray:
    """Return the columns of a file's `CsvIndex`, anew. -> (rows, 4) int64. Raises CsvError."""
    numbers: list[int] = []
    with open_text(path) as file:
        for first, last, fields in csv_rows(file):
            broken = sum("\n" in field for field in fields) if last > first else 0
            numbers += (first, last - first + 1, len(fields), broken)
    return np.array(numbers, dtype=np.int64).reshape(-1, 4)


def csv_rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of lines of CSV, without blank ones. Raises CsvError at the first bad row.

    Python's reader, strict or not, takes a quote inside a field without quotes as it stands. RFC
    4180 has none there, and a row in which a field was not quoted as its writer meant would be cut
    at the wrong commas.
    """
    own: list[str] = []

    def recorded() -> Iterator[str]:
        for line in lines:
            own.append(line)
            yield line

    reader, first = csv_reader(recorded()), 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise find_fault("".join(own), first) or _fault_of_line(
                own[-1], reader.line_num, error
            ) from error
        if fields is None:
            return
        if not ROW.fullmatch("".join(own)) and (fault := find_fault("".join(own), first)):
            raise fault
        if fields:
            yield Row(first, reader.line_num, fields)
        first = reader.line_num + 1
        own.clear()


def csv_reader(lines: Iterable[str]) -> Reader:
    """Return a CSV reader where only commas and quotes have a meaning, for fields of any length."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    return csv.reader(lines, strict=True)


def find_fault(text: str, first: int) -> CsvError | None:
    """Return the fault of quotes in a row that begins in line `first`, at the line of its field.

    text: The row, or all that was read in search of its end.
    """
    at = 0
    while field := FIELD.match(text, at):
        end = text[field.end() : field.end() + 1]
        if end == '"' or (field[0].startswith('"') and end not in ("", ",", "\r", "\n")):
            return _fault_of_field(text, at, field.end(), first)
        if end != ",":
            return None
        at = field.end() + 1
    return None


def _fault_of_line(line: str, number: int, error: csv.Error) -> CsvError:
    """Return the fault of a line whose quotes are as they should be."""
    if "\r" in line.rstrip("\r\n"):
        fix = "write line feeds in their place, or quotes around the field"
        return CsvError(
            number, "a carriage return without a line feed stands outside of quotes", fix
        )
    return CsvError(
        number, f"this is no CSV: {error}", "mend this line, or save the table as JSON lines"
    )


def _fault_of_field(text: str, start: int, end: int, first: int) -> CsvError:
    """Return the fault of the field of a row that begins at `start` and should end at `end`."""
    line, closes = (first + text.count("\n", 0, at) for at in (start, end))
    shown = text[start : start + SHOWN].splitlines()[0]
    fix = MEND
    if end == start:
        message = "a quote opens here and is never closed"
        fix = f"close it where the field ends, or {MEND}"
    elif text[start] == '"':
        where = f" in line {closes:,}" if closes > line else ""
        message = f"a quote opens a field here, and text follows where it is closed{where}"
    else:
        message = "a quote stands inside a field without quotes around it"
    return CsvError(line, f"{message}: `{shown}`", fix)
