"""Text files: lookup, checks of their encoding, and columns of lines that are read from disk on demand."""

from __future__ import annotations

import codecs
import difflib
import os
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from composer.errors import DataError, Fault

READ_BYTES = 1 << 22
"""Bytes that are read at once."""
CHUNK_LINES = 10_000
"""Lines that are read at once when a whole column is iterated."""
USUAL_SHARE = 0.01
"""Share of lines that are trained on, too, in any text: short sentences repeat."""
BOM = b"\xef\xbb\xbf"
MAGIC = {
    b"\x1f\x8b": ("it looks like gzip", "unpack it with `gunzip`"),
    b"\x28\xb5\x2f\xfd": ("it looks like zstd", "unpack it with `unzstd`"),
    b"\xff\xfe": ("it looks like UTF-16", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    b"\xfe\xff": ("it looks like UTF-16", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    b"PK\x03\x04": ("it looks like a zip archive", "unpack it"),
    b"\x89PNG": ("it looks like a picture", "name a text file"),
    b"\xff\xd8\xff": ("it looks like a picture", "name a text file"),
    b"%PDF": ("it looks like a PDF", "save it as text, one sentence a line"),
}


class Problem(NamedTuple):
    """A fault of a data file. `key` is the key of the split that names the file: a side, or `file`."""

    key: str
    code: str
    message: str
    hint: str


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the first file of that name in the folders, in their order."""
    # `Path.exists` raises an error for a name that is too long or has a NUL, `os.path.exists` says False
    return next((folder / name for folder in folders if os.path.exists(folder / name)), None)


def missing_file(key: str, name: str, folders: Sequence[Path]) -> Problem:
    """Return the problem of a file that is in none of the folders, with the name that was probably meant."""
    where = " in " + " and ".join(dict.fromkeys(f"`{folder}`" for folder in folders))
    close = next((path for folder in folders if (path := suggest_file(name, folder))), None)
    question = f"; did you mean `{close}`?" if close else ""
    other = "put the file there, or pass `--data DIR`"
    if [*folders] == [Path()]:  # the user named this very file
        where, other = "", "check its name"
    return Problem(key, "file", f"no file `{name}`{where}{question}", f"write `{close}`" if close else other)


def suggest_file(name: str, folder: Path) -> str | None:
    """Return the file of `folder` that `name` was probably meant to be: each part of its path equal or similar."""
    parts: list[str] = []
    path = folder
    for part in Path(name).parts:
        entries = [part] if os.path.exists(path / part) else sorted(entry.name for entry in path.glob("*"))[:10_000]
        same = [entry for entry in entries if entry.casefold() == part.casefold()]
        close = same or difflib.get_close_matches(part, entries, n=1, cutoff=0.6)
        if not close:
            return None
        parts.append(close[0])
        path /= close[0]
    return Path(*parts).as_posix() if path.is_file() else None


def check_readable(key: str, path: Path) -> Problem | None:
    """Return why a file cannot be read at all: a directory, a pipe, no permission, no content."""
    if path.is_dir():
        return Problem(key, "file", f"`{path}` is a directory", "name a file")
    if not path.is_file():
        return Problem(key, "file", f"`{path}` is not an ordinary file", "name an ordinary file")
    try:
        with path.open("rb") as file:
            start = file.read(len(BOM) + 1)
    except OSError as error:
        return Problem(key, "file", f"`{path}` cannot be read: {error.strerror}", "make it readable")
    return Problem(key, "empty", f"`{path}` is empty", "give it at least one line") if start in (b"", BOM) else None


def check_utf8(key: str, path: Path) -> Problem | None:
    """Return where a file stops being UTF-8, by line and byte; None for UTF-8."""
    # decoding by large blocks is many times faster than by lines, which are only needed to place a fault
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return _locate_bad_byte(key, path)
    return None


def _locate_bad_byte(key: str, path: Path) -> Problem | None:
    offset = 0
    with path.open("rb") as file:
        start = file.read(1024)
        file.seek(0)
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                latin = ("", "convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1")
                other = ("it looks like no text", "name a text file") if b"\0" in start else latin
                format_, hint = next((text for magic, text in MAGIC.items() if start.startswith(magic)), other)
                position = f"line {number}, byte {error.start + 1} of the line (offset {offset + error.start})"
                byte = f"0x{line[error.start]:02x}"
                message = f"`{path}` is not UTF-8 at {position}: {'; '.join(filter(None, (byte, format_)))}"
                return Problem(key, "encoding", message, hint)
            offset += len(line)
    return None


def _check_breaks(key: str, path: Path) -> Problem | None:
    """Return the problem of a file whose lines end with CR alone: all of it would be one line."""
    with path.open("rb") as file:
        start = file.read(READ_BYTES)
    if b"\n" in start or start.count(b"\r") < 2:
        return None
    hint = f"convert it with `tr '\\r' '\\n' < {shlex.quote(str(path))} > NEW`"
    return Problem(key, "lines", f"the lines of `{path}` end with CR alone, so all of it is one line", hint)


def check_texts(names: Mapping[str, str], folders: Sequence[Path]) -> list[Problem]:
    """Return the problems of each of some line-aligned files, else those of their numbers of lines."""
    problems, counts = [], {}
    for side, name in names.items():
        path = find_file(name, folders)
        if path is None:
            problems.append(missing_file(side, name, folders))
        elif problem := check_readable(side, path) or check_utf8(side, path) or _check_breaks(side, path):
            problems.append(problem)
        else:
            counts[side] = count_lines(path)
    if problems:
        return problems
    first, *others = counts
    start = f"`{names[first]}` has {counts[first]:,} lines"
    return [
        Problem(side, "lines", f"{start} and `{names[side]}` has {counts[side]:,}", "give every line its counterpart")
        for side in others
        if counts[side] != counts[first]
    ]


def open_texts(files: Mapping[str, Path]) -> dict[str, TextColumn]:
    """Open line-aligned files that a user names, by side. Raises DataError with all faults: a source as target, too."""
    problems = check_texts({side: str(path) for side, path in files.items()}, [Path()])
    if not problems and any(path.samefile(files["target"]) for side, path in files.items() if side != "target"):
        columns = f"{{file: {files['target'].name}, source: COLUMN, target: COLUMN}}"
        fix = f"name two files; one with columns goes into a recipe: `train: {columns}`"
        problems = [Problem("target", "file", "this file is the source and the target", fix)]
    if problems:
        raise DataError([Fault(str(files[it.key]), 1, 1, it.code, "", it.message, it.hint) for it in problems])
    return {side: TextColumn(path) for side, path in files.items()}


def count_lines(path: Path) -> int:
    """Return the number of lines; the last one may lack its line feed."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


class Column(Sequence[str]):
    """Sequence of lines that stays on disk: an index reads a line, a slice a list of lines, and `len` is fast."""

    def read(self, rows: Sequence[int]) -> list[str]:
        """Return the lines with these numbers, each in [0, len)."""
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
        for start in range(0, len(self), CHUNK_LINES):
            yield from self[start : start + CHUNK_LINES]


class TextColumn(Column):
    """Lines of a UTF-8 file, through an index of where each line starts.

    Only `\\n` ends a line, with or without `\\r` before it; the last line may have none. `skip` lines at the start are
    left out; `pick` takes a field out of a line.
    """

    def __init__(self, path: Path, skip: int = 0, pick: Callable[[str], str] | None = None) -> None:
        self.bytes = StableFile(path)
        self.starts = _line_starts(self.bytes.blocks())
        self.skip, self.pick = skip, pick

    def __len__(self) -> int:
        return max(0, len(self.starts) - 1 - self.skip)

    def read(self, rows: Sequence[int]) -> list[str]:
        # neighbouring lines are one read
        spans = [rows] if isinstance(rows, range) and rows.step == 1 else [range(row, row + 1) for row in rows]
        lines: list[str] = []
        for span in filter(len, spans):
            first, *ends = self.starts[span.start + self.skip : span.stop + self.skip + 1].tolist()
            block = self.bytes.read(first, ends[-1])
            parts = (block[start - first : end - first] for start, end in pairwise([first, *ends]))
            lines += (part.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8") for part in parts)
        return [one_line(self.pick(line)) for line in lines] if self.pick else lines


class StableFile:
    """An open file whose bytes must not change while it is in use, which every read verifies.

    The file is not memory-mapped: if another process truncates a mapped file, this process dies by SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.open("rb")
        self.stamp, self.crc = self._stamp(), self._crc()

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes, block by block."""
        at = 0
        while block := os.pread(self.file.fileno(), READ_BYTES, at):
            yield block
            at += len(block)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`. Raises DataError if the file has changed since it was opened."""
        data, stamp = os.pread(self.file.fileno(), end - start, start), self._stamp()
        is_same = stamp == self.stamp or self._crc() == self.crc
        if is_same and stamp != self.stamp:  # touched, or rewritten with the same content
            self.stamp, data = stamp, os.pread(self.file.fileno(), end - start, start)
        if not is_same or len(data) != end - start:
            message = "this file has been changed while it was in use"
            fix = "restore it, and do not change it while it is in use"
            raise DataError([Fault(str(self.path), 0, 0, "changed", "", message, fix)])
        return data

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self.file.fileno())
        return status.st_mtime_ns, status.st_size

    def _crc(self) -> int:
        return reduce(lambda crc, block: zlib.crc32(block, crc), self.blocks(), 0)


class RowSubset(Column):
    """Some lines of a column, in their order."""

    def __init__(self, column: Sequence[str], rows: np.ndarray) -> None:
        self.column, self.rows = column, rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> list[str]:
        numbers = self.rows[np.asarray(rows, dtype=np.int64)]
        if not len(numbers):
            return []
        first, last = int(numbers.min()), int(numbers.max())
        if last - first > 2 * len(numbers):
            return [self.column[int(number)] for number in numbers]
        lines = self.column[first : last + 1]  # one read of neighbours, the others dropped
        return [lines[number - first] for number in numbers]


def split_rows(count: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the row numbers of train, val and test among `count` pairs; those held out are spread evenly.

    A function of the numbers alone, whatever the text is: a line that is added at the end moves few others.
    """
    held_out = sum(sizes.values())
    rows = (np.arange(held_out) * 2 + 1) * count // (2 * max(held_out, 1))
    tests = sizes.get("test", 0)
    is_test = np.zeros(held_out, dtype=bool)
    is_test[(np.arange(tests) * 2 + 1) * held_out // (2 * max(tests, 1))] = True
    is_train = np.ones(count, dtype=bool)
    is_train[rows] = False
    return {"train": np.flatnonzero(is_train), "val": rows[~is_test], "test": rows[is_test]}


def row_hashes(*columns: Sequence[str]) -> np.ndarray:
    """Return a hash of each row of line-aligned columns, the same within this process; 0 without text. -> (rows,)"""
    rows = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        rows = rows * 31 + np.fromiter((hash(line.strip()) for line in column), np.int64, len(column))
    return rows


def count_shared(rows: np.ndarray, train_rows: np.ndarray) -> int:
    """Return how many rows with text, by their hashes, are among those of training; 0 if that is a usual share."""
    shared = int((np.isin(rows, train_rows) & (rows != 0)).sum())
    return shared if shared > USUAL_SHARE * len(rows) else 0


def keep_once(files: Iterable[str]) -> str:
    """Return the shell command that writes a file, or line-aligned files, as `FILE.once` with each row once."""
    names = [shlex.quote(name) for name in files]
    if len(names) == 1:
        return f"awk '!seen[$0]++' {names[0]} > {names[0]}.once"
    columns = [f"cut -f{number} once.tsv > {name}.once" for number, name in enumerate(names, start=1)]
    return " && ".join([f"paste {' '.join(names)} | awk '!seen[$0]++' > once.tsv", *columns])


def one_line(text: str | None) -> str:
    """Return a text as one line, with spaces for line breaks; None is an empty line."""
    return (text or "").replace("\r\n", " ").replace("\n", " ")


def _line_starts(blocks: Iterator[bytes]) -> np.ndarray:
    """Return the offset of each line's first byte, and of the file's end."""
    head, at, breaks = b"", 0, []
    for block in blocks:
        head = head if len(head) >= len(BOM) else head + block[: len(BOM)]
        breaks.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + (at + 1))
        at += len(block)
    first = len(BOM) if head.startswith(BOM) else 0
    starts = np.concatenate([np.array([first], dtype=np.int64), *breaks])
    return starts if starts[-1] == at else np.append(starts, at)
