"""Text files, plain or packed: lookup, opening, and checks of their encoding."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import shlex
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from composer.atomic_io import file_stamp
from composer.data.cache_entries import cached_array
from composer.errors import Fault, KeyPath, format_path
from composer.recipe.schema_reader import REFERENCE
from composer.suggest import suggest_file

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

READ_BYTES = 1 << 22
"""Bytes that are read at once."""
PACKED = {".gz": "gzip", ".zst": "zstd"}
UNPACKING_ERRORS = (OSError, EOFError, zlib.error)
"""Errors of unpacking a damaged file."""
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
LATIN_HINT = "convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1"


class Problem(NamedTuple):
    """A fault of a data file.

    key: The key of the split that names the file, or a column: a side, or `file`.

    is_name: The fault is the name of a column that the file does not have. line: The file's own
    line at fault, else 0.
    """

    code: str
    message: str
    hint: str
    key: str = "file"
    is_name: bool = False
    line: int = 0

    def at(self, recipe: Recipe, path: KeyPath) -> Fault:
        """Return the fault at a recipe's path to the split."""
        keys: KeyPath = (self.key,) if self.key else ()
        if self.key.startswith(REFERENCE):  # target-2 is the second of a list
            keys = ("target", int(self.key.removeprefix(REFERENCE)) - 1)
        return recipe.fault(self.code, (*path, *keys), self.message, self.hint)

    def in_file(self, path: Path | str) -> Fault:
        """Return the fault in the file itself: at its line, or where no recipe names it."""
        return Fault(
            str(path), self.line, min(self.line, 1), self.code, "", self.message, self.hint
        )


def name_faults(
    recipe: Recipe, place: KeyPath, lacking: Sequence[tuple[KeyPath, str, Problem]], count: int
) -> list[Fault]:
    """Return faults of a column's name at one place of the recipe, for `count` files.

    It is at fault itself if none of them has it, else the files that lack it are. lacking: where
    the recipe names those, their names, and the problem of each.
    """
    if lacking and len(lacking) == count:
        _, name, problem = lacking[0]
        if recipe.locate(place).is_written:
            hint = problem.hint
        else:
            hint = f"as `{format_path(place)}` {problem.hint}"
        return [recipe.fault(problem.code, place, f"`{name}`: {problem.message}", hint)]
    fix = "name this column as in the other files, or remove the file"
    return [
        recipe.fault(problem.code, key, f"`{name}`: {problem.message}", fix)
        for key, name, problem in lacking
    ]


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the first file of that name in the folders, in their order."""
    # `Path.exists` raises an error for a name that is too long or has a NUL, `os.path.exists` says
    # False
    return next((folder / name for folder in folders if os.path.exists(folder / name)), None)


def missing_file(
    name: str,
    folders: Sequence[Path],
    suffixes: Sequence[str] = ("",),
    taken: Collection[Path] = (),
) -> Problem:
    """Return the problem of a file that is in none of the folders, with the closest name.

    suffixes, taken: A name that was meant ends in one of these, and is of none of those files.
    """
    where = " in " + " and ".join(dict.fromkeys(f"`{folder}`" for folder in folders))
    close = None if glob.has_magic(name) else closest_file(name, folders, suffixes, taken)
    question = f"; did you mean `{close}`?" if close else ""
    fix = "put the file there, or pass `--data DIR`"
    if [*folders] == [Path()]:  # the user named this very file
        where, fix = "", "check its name"
    if name.startswith(("~", "$")):
        fix = "write the path out: `~` and `$HOME` are not expanded here"
    if close:
        fix = f"write `{close}`"
    return Problem("file", f"no file `{name}`{where}{question}", fix)


def closest_file(
    name: str,
    folders: Sequence[Path],
    suffixes: Sequence[str] = ("",),
    taken: Collection[Path] = (),
) -> str | None:
    """Return the file closest to a name that is in none of the folders, see `missing_file`."""
    for folder in folders:
        if path := suggest_file(name, folder, suffixes, taken):
            return path
    return None


def matching_files(name: str, folders: Sequence[Path]) -> list[Path]:
    """Return the file of a name, or those of a pattern, in the first folder that has any."""
    if (path := find_file(name, folders)) is not None:
        return [path]
    if not glob.has_magic(name):
        return []
    for folder in folders:
        if matches := glob.glob(name, root_dir=folder, recursive=True):
            return sorted(folder / match for match in matches)
    return []


def named_files(settings: object, folders: Sequence[Path]) -> set[Path]:
    """Return existing files that settings name anywhere, as absolute paths."""
    if isinstance(settings, str):
        return {path.absolute() for path in matching_files(settings, folders)}
    parts: Iterable[object] = ()
    if isinstance(settings, Mapping):
        parts = settings.values()
    elif isinstance(settings, list):
        parts = settings
    return set[Path]().union(*(named_files(part, folders) for part in parts))


def suffix_of(path: Path) -> tuple[str, str]:
    """Return the suffix of a file, that of what is packed in it, and `gzip`, `zstd` or ""."""
    packed = PACKED.get(path.suffix.lower(), "")
    return (Path(path.stem) if packed else path).suffix.lower(), packed


def open_bytes(path: Path) -> Any:
    """Open a file for reading, unpacked."""
    _, packed = suffix_of(path)
    if packed == "gzip":
        return gzip.open(path)
    if packed:
        import pyarrow  # late: it takes long to import, and has the only decoder of zstd

        # of a name it would expand `~`
        raw: Any = pyarrow.input_stream(path.open("rb"), compression="zstd")
        return io.BufferedReader(raw)
    return path.open("rb")


def open_text(path: Path) -> io.TextIOWrapper:
    """Open a file as UTF-8, unpacked. Only a line feed ends a line."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="\n")


def file_identity(path: Path) -> list[Any]:
    """Return a key of a file and the way it is read, which its name decides."""
    return [str(path.resolve()), *suffix_of(path), *file_stamp(path)]


def check_readable(path: Path) -> Problem | None:
    """Return the problem of a file that cannot be read at all, such as a directory or a pipe."""
    if path.is_dir():
        return Problem("file", f"`{path}` is a directory", "name a file")
    if not path.is_file():
        return Problem("file", f"`{path}` is not an ordinary file", "name an ordinary file")
    try:
        with path.open("rb") as file:
            start = file.read(len(BOM) + 1)
    except OSError as error:
        return Problem("file", f"`{path}` cannot be read: {error.strerror}", "make it readable")
    if start in (b"", BOM):
        return Problem("empty", f"`{path}` is empty", "give it at least one line")
    return None


def check_utf8(path: Path) -> Problem | None:
    """Return the line and byte where a file stops being UTF-8; None for UTF-8."""
    try:
        line_starts(path)
    except UnicodeDecodeError:
        return _locate_bad_byte(path)
    return None


def line_starts(path: Path) -> np.ndarray:
    """Return the offsets of all lines, unpacked, and of the end; of a large file from the cache.

    A file counts as unchanged while its stamp is the same. Raises UnicodeDecodeError where it is
    not UTF-8.
    """
    if path.stat().st_size > READ_BYTES:
        return cached_array("starts", file_identity(path), lambda: _line_starts(path), are_starts)
    return _line_starts(path)


def are_starts(starts: np.ndarray) -> bool:
    """True if these can be offsets of lines. starts: (lines + 1,) int64"""
    ascends = bool((np.diff(starts) >= 0).all())
    return starts.dtype == np.int64 and starts.ndim == 1 and starts[0] in (0, len(BOM)) and ascends


def _line_starts(path: Path) -> np.ndarray:
    # decoding by large blocks is many times faster than by lines, which are only needed to place a
    # fault
    decoder, head, at, breaks = codecs.getincrementaldecoder("utf-8")(), b"", 0, []
    with open_bytes(path) as file:
        while block := file.read(READ_BYTES):
            decoder.decode(block)
            head = head if len(head) >= len(BOM) else head + block[: len(BOM)]
            breaks.append(
                np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + (at + 1)
            )
            at += len(block)
    decoder.decode(b"", final=True)
    starts = np.concatenate(
        [np.array([len(BOM) if head.startswith(BOM) else 0], dtype=np.int64), *breaks]
    )
    return starts if starts[-1] == at else np.append(starts, at)


def check_text(path: Path) -> Problem | None:
    """Return the problem of a file that cannot be unpacked, is not UTF-8, or has no line feeds."""
    try:
        return check_utf8(path) or check_breaks(path)
    except UNPACKING_ERRORS as error:
        if not suffix_of(path)[1]:
            raise
        return Problem(
            "file", f"`{path}` cannot be unpacked to its end: {error}", "get the file again"
        )


def _locate_bad_byte(path: Path) -> Problem | None:
    offset = 0
    with open_bytes(path) as file:
        start = file.read(1024)
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return _encoding_problem(path, start, number, offset, error)
            offset += len(line)
    return None


def _encoding_problem(
    path: Path, start: bytes, number: int, offset: int, error: UnicodeDecodeError
) -> Problem:
    """Return the problem of a byte in line `number`, which begins at `offset`."""
    kind, hint = "", LATIN_HINT
    if b"\0" in start:
        kind, hint = "it does not look like text", "name a text file"
    kind, hint = magic_kind(start) or (kind, hint)
    place = f"line {number}, byte {error.start + 1} of the line (offset {offset + error.start})"
    byte = f"0x{error.object[error.start]:02x}"
    message = f"`{path}` is not UTF-8 at {place}: {byte}{kind and f'; {kind}'}"
    return Problem("encoding", message, hint)


def magic_kind(start: bytes) -> tuple[str, str] | None:
    """Return the kind of a file that begins with these bytes, and a fix; None if unknown."""
    for magic, kind in MAGIC.items():
        if start.startswith(magic):
            return kind
    return None


def check_breaks(path: Path) -> Problem | None:
    """Return the problem of a file whose lines end with CR alone: all of it would be one line.

    Raises one of UNPACKING_ERRORS where it cannot be unpacked.
    """
    with open_bytes(path) as file:
        start = file.read(READ_BYTES)
    if b"\n" in start or start.count(b"\r") < 2:
        return None
    hint = f"convert it with `tr '\\r' '\\n' < {shlex.quote(str(path))} > NEW`"
    return Problem(
        "lines", f"the lines of `{path}` end with CR alone, so all of it is one line", hint
    )


def check_texts(
    names: Mapping[str, str], folders: Sequence[Path], taken: Collection[Path] = ()
) -> list[Problem]:
    """Return the problems of each of some line-aligned files, else those of their numbers of lines.

    taken: files that others are, so that none that is missing is meant to be one of them.
    """
    problems, counts = [], {}
    taken = {*taken, *named_files(names, folders)}
    for side, name in names.items():
        path = find_file(name, folders)
        if path is None:
            problems.append(missing_file(name, folders, taken=taken)._replace(key=side))
        elif problem := check_readable(path) or check_text(path):
            problems.append(problem._replace(key=side))
        else:
            counts[side] = count_lines(path)
    if problems:
        return problems
    first = next(iter(counts))
    start = f"`{names[first]}` has {counts[first]:,} lines"
    for side, count in counts.items():
        if count != counts[first]:
            message = f"{start} and `{names[side]}` has {count:,}"
            problems.append(Problem("lines", message, "give every line its counterpart", side))
    return problems


def count_lines(path: Path) -> int:
    """Return the number of lines; the last one may lack its line feed."""
    return len(line_starts(path)) - 1
