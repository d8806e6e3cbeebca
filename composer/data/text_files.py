"""Data files: where they are looked up, and what can be wrong with the bytes in them. Quick on big files."""

from __future__ import annotations

import codecs
import difflib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from composer.errors import DataError, Fault

READ_BYTES = 1 << 22
BOM = b"\xef\xbb\xbf"
MAGIC = {
    b"\x1f\x8b": ("it looks like gzip", "unpack it with `gunzip`"),
    b"\x28\xb5\x2f\xfd": ("it looks like zstd", "unpack it with `unzstd`"),
    b"\xff\xfe": ("it looks like UTF-16", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    b"\xfe\xff": ("it looks like UTF-16", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    b"PK\x03\x04": ("it looks like a zip archive", "unpack it"),
}


class Problem(NamedTuple):
    """What is wrong, and with which key of a split: a side, or `file`."""

    key: str
    code: str
    message: str
    hint: str


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The first file of that name in the folders, in their order."""
    places = (folder / name for folder in folders)
    return next((place for place in places if _exists(place)), None)


def missing_file(key: str, name: str, folders: Sequence[Path]) -> Problem:
    """That there is no such file, where it was looked for, and what was probably meant."""
    searched = " and ".join(dict.fromkeys(f"`{folder}`" for folder in folders))
    close = next((found for folder in folders if (found := suggest_file(name, folder))), None)
    question = f"; did you mean `{close}`?" if close else ""
    hint = f"write `{close}`" if close else "put the file there, or say `--data DIR`"
    return Problem(key, "file", f"no file `{name}` in {searched}{question}", hint)


def suggest_file(name: str, folder: Path) -> str | None:
    """The file that `name` in `folder` was probably meant to be: every part of the way is the name or close to it."""
    parts: list[str] = []
    place = folder
    for part in Path(name).parts:
        listed = [part] if _exists(place / part) else _listed(place)
        same = [each for each in listed if each.casefold() == part.casefold()]
        close = same or difflib.get_close_matches(part, listed, n=1, cutoff=0.6)
        if not close:
            return None
        parts.append(close[0])
        place /= close[0]
    return Path(*parts).as_posix() if place.is_file() else None


def check_readable(key: str, path: Path) -> Problem | None:
    """Why the file cannot be read at all: a directory, a pipe, no permission, no text."""
    if path.is_dir():
        return Problem(key, "file", f"`{path}` is a directory", "name a file")
    if not path.is_file():
        return Problem(key, "file", f"`{path}` is not an ordinary file", "name an ordinary file")
    try:
        with path.open("rb") as file:
            first = file.read(len(BOM) + 1)
    except OSError as error:
        return Problem(key, "file", f"`{path}` cannot be read: {error.strerror}", "make it readable")
    return Problem(key, "empty", f"`{path}` is empty", "give it at least one line") if first in (b"", BOM) else None


def check_utf8(key: str, path: Path) -> Problem | None:
    """Where the file stops being UTF-8, by line and byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return _where_not_text(key, path)
    return None


def count_lines(path: Path) -> int:
    """How many lines there are; the last one may lack its line break."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def _where_not_text(key: str, path: Path) -> Problem | None:
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return _not_utf8(key, path, number, error, offset)
            offset += len(line)
    return None


def _not_utf8(key: str, path: Path, number: int, error: UnicodeDecodeError, offset: int) -> Problem:
    with path.open("rb") as file:
        start = file.read(4)
    seems, hint = next(
        (told for magic, told in MAGIC.items() if start.startswith(magic)),
        ("", "convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1"),
    )
    byte = error.object[error.start]
    place = f"line {number}, byte {error.start + 1} of the line (offset {offset + error.start})"
    message = f"`{path}` is not UTF-8 at {place}: 0x{byte:02x}{'; ' if seems else ''}{seems}"
    return Problem(key, "encoding", message, hint)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return False


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder))[:10_000]
    except OSError:
        return []


CHUNK_LINES = 10_000  # lines that are read at once when all are wanted
INDEX_BYTES = 1 << 26


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
        for start in range(0, len(self), CHUNK_LINES):
            yield from self[start : start + CHUNK_LINES]


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
        while block := os.pread(self.file.fileno(), INDEX_BYTES, at):
            yield block
            at += len(block)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`. Raises DataError where the file is not what it was."""
        found = os.pread(self.file.fileno(), end - start, start)
        if self._stamp() != self.stamp:
            stamp, now = self._stamp(), self._sum()
            if now != self.sum:
                raise _file_changed(self.path)
            self.stamp = stamp  # touched, or written as it was
            found = os.pread(self.file.fileno(), end - start, start)
        if len(found) != end - start:
            raise _file_changed(self.path)
        return found

    def _stamp(self) -> tuple[int, int]:
        now = os.fstat(self.file.fileno())
        return now.st_mtime_ns, now.st_size

    def _sum(self) -> int:
        found = 0
        for block in self.blocks():
            found = zlib.crc32(block, found)
        return found


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


def _file_changed(path: Path) -> DataError:
    message = "this file has been changed while it was in use"
    return DataError([Fault(str(path), 0, 0, "changed", "", message, "restore it, and leave it alone until the end")])
