"""Data files: where they are looked up, and what can be wrong with the bytes in them. Quick on big files."""

from __future__ import annotations

import codecs
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BLOCK = 1 << 22
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


def find(name: str, folders: Sequence[Path]) -> Path | None:
    """The first file of that name in the folders, in their order."""
    places = (folder / name for folder in folders)
    return next((place for place in places if _exists(place)), None)


def missing(key: str, name: str, folders: Sequence[Path]) -> Problem:
    """That there is no such file, where it was looked for, and what was probably meant."""
    searched = " and ".join(dict.fromkeys(f"`{folder}`" for folder in folders))
    close = next((found for folder in folders if (found := near(name, folder))), None)
    question = f"; did you mean `{close}`?" if close else ""
    hint = f"write `{close}`" if close else "put the file there, or say `--data DIR`"
    return Problem(key, "file", f"no file `{name}` in {searched}{question}", hint)


def near(name: str, folder: Path) -> str | None:
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


def unusable(key: str, path: Path) -> Problem | None:
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


def not_text(key: str, path: Path) -> Problem | None:
    """Where the file stops being UTF-8, by line and byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return _where_not_text(key, path)
    return None


def count_lines(path: Path) -> int:
    """How many lines there are; the last one may lack its line break."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
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
