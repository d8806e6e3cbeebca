"""Errors of users: file, line, column, what is wrong, and what to write instead."""

from __future__ import annotations

import errno
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

from rich.cells import cell_len

MAX_MESSAGE = 2000  # characters: a name in a message may be as long as the file
MAX_LISTED = 5  # items of a list in a message
MAX_RENDERED = 20  # faults of one file that are printed
MAX_EXPLAINED = 1_000  # faults of one file that are explained, since each takes a millisecond
MAX_LIBRARY_MESSAGE = 300  # characters of a library's own message
OURS = tuple(str(Path(__file__).parents[1] / package) for package in ("blocks", "composer"))
WINDOW = 120  # characters of a long line that are shown around the fault


KeyPath = tuple[str | int, ...]
"""A path to a value: keys and list indices, as `("model", "encoder", 0)`."""


class Mark(NamedTuple):
    """A source location.

    `line` and `column` count from 1; `text` is the line, `length` the number of characters meant.
    """

    file: str
    line: int
    column: int
    length: int
    text: str


class Edit(NamedTuple):
    """A change of a file's text that applies a fix.

    Lines and columns count from 1; `end` is not included.
    """

    file: str
    path: str
    start: tuple[int, int]
    end: tuple[int, int]
    replacement: str


@dataclass(frozen=True, order=True)
class Fault:
    """One error of a user, or a warning.

    `line` and `column` count from 1; `line` 0 means that it has no place.

    `path` is the place as it is written in the recipe (`model.encoder[1].rnn.cell`), `excerpt` the
    line at fault, `length` the number of characters to underline, `edit` the fix as a change of the
    text, where a program can make it. What has a `warning` trains, and probably not as was meant.
    """

    file: str
    line: int
    column: int
    code: str
    path: str
    message: str
    hint: str
    excerpt: str = field(default="", compare=False)
    length: int = field(default=1, compare=False)
    severity: Literal["error", "warning"] = field(default="error", compare=False)
    edit: Edit | None = field(default=None, compare=False)

    def as_warning(self) -> Fault:
        """Return the same as a warning."""
        return replace(self, severity="warning")

    def as_dict(self) -> dict[str, object]:
        """Return the fault as `check --json` prints it; a warning has `severity` beside."""
        keys = ["file", "line", "column", "code", "path", "message", "hint"]
        edit = self.edit._asdict() if self.edit else None
        fault = {key: getattr(self, key) for key in keys} | {"edit": edit}
        return fault | ({"severity": self.severity} if self.severity == "warning" else {})

    def render(self) -> str:
        """Return the fault as text, without a line break at its end."""
        file = _one_line(self.file)
        place = f"{file}:{self.line}:{self.column}: " if self.line else f"{file}: " if file else ""
        lines = [f"{place}{self.severity}[{self.code}]: {_one_line(self.message)}"]
        if self.path:
            lines.append(f"   at {_one_line(self.path)}")
        if self.excerpt:
            lines.extend(self._underlined())
        if self.hint:
            lines.append(f"   fix: {_one_line(self.hint)}")
        return "\n".join(lines)

    def _underlined(self) -> list[str]:
        text, column, length = _window(self.excerpt, self.column - 1, self.length)
        number = str(self.line)
        before, marked = text[:column], text[column : column + length]
        carets = "^" * max(1, cell_len(marked))
        return [
            f"   {number} | {text}",
            f"   {' ' * len(number)} | {' ' * cell_len(before)}{carets}",
        ]


class ComposerError(Exception):
    """Base of all errors that a user can fix.

    `faults` are sorted by file, line and column, without duplicates.
    """

    status = 2
    """Exit status of a command that ends with it: refused."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = sorted(set(faults))
        super().__init__(self.faults)

    def render(self) -> str:
        """Return the first faults of each file, and their number, as the command line prints."""
        lines = []
        for _, faults in groupby(self.faults, attrgetter("file")):
            lines += _first_faults(list(faults))
        return "\n".join([*lines, count_faults(self.faults)])

    def __str__(self) -> str:
        return self.render()


class RecipeError(ComposerError):
    """A recipe that cannot be read, or is inconsistent."""


class DataError(ComposerError):
    """Data of a recipe that cannot be used."""


class RunError(ComposerError):
    """A run that cannot be started, resumed or opened."""

    code: ClassVar[str] = "run"

    @classmethod
    def of(cls, message: str, hint: str = "", file: str = "") -> Self:
        """Return the error for one fault that has no place in a recipe."""
        return cls([Fault(str(file), 0, 0, cls.code, "", message, hint)])


class FolderLocked(RunError):
    """A folder that another process is writing."""

    code = "locked"


class RunFailed(RunError):
    """A run that had started and cannot continue."""

    status = 1


def fault_at(
    mark: Mark, code: str, path: str, message: str, hint: str = "", edit: Edit | None = None
) -> Fault:
    """Return a fault at a source location."""
    texts = (_shorten(path), _shorten(message), _shorten(hint))
    return Fault(mark.file, mark.line, mark.column, code, *texts, mark.text, mark.length, edit=edit)


def error_at(mark: Mark, code: str, path: str, message: str, hint: str = "") -> RecipeError:
    """Return the error for one fault at a source location."""
    return RecipeError([fault_at(mark, code, path, message, hint)])


def _first_faults(faults: Sequence[Fault]) -> list[str]:
    """Return the first faults of one file as text, and how many more it has."""
    more = len(faults) - MAX_RENDERED
    end = f"... and {more:,} more" + (f" in {_one_line(faults[0].file)}" if faults[0].file else "")
    return [*(fault.render() for fault in faults[:MAX_RENDERED]), *([end] if more > 0 else [])]


def _shorten(text: str) -> str:
    """Return a text on one line, without its middle if it is very long."""
    line = " ".join(text.split())
    return (
        line
        if len(line) <= MAX_MESSAGE
        else f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 4 :]}"
    )


def count_faults(faults: Iterable[Fault]) -> str:
    """Return the numbers of errors and warnings: `2 errors, 1 warning`."""
    counts = Counter(fault.severity for fault in faults)
    parts = []
    for severity, count in sorted(counts.items()):
        parts.append(f"{count} {severity}{'' if count == 1 else 's'}")
    return ", ".join(parts)


def format_path(path: Iterable[str | int]) -> str:
    """Return a path as people write it: `model.encoder[1].rnn`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def os_error_reason(error: OSError) -> str:
    """Return why the system refused something, in its words."""
    return (error.strerror or str(error)).lower()


def os_error_hint(error: OSError) -> str:
    """Return the fix for a file that cannot be written."""
    return OS_ERROR_HINTS.get(
        error.errno or 0, "check the path, and whether the disk is full or damaged"
    )


def shorten_list(items: Sequence[str]) -> str:
    """Join the first few items of a list for a message, and say how many more there are."""
    more = f"; and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    return "; ".join(items[:MAX_LISTED]) + more


def one_line_error(error: BaseException) -> str:
    """Return the message of a library's error on one line, cut where it is long."""
    return (" ".join(str(error).split()) or type(error).__name__)[:MAX_LIBRARY_MESSAGE]


BlockCodeErrors = (Exception, SystemExit)
"""What the code of somebody's block may raise: anything, and `sys.exit` is no end of ours."""


def error_of_code(error: Exception | SystemExit) -> str:
    """Return type and message of an exception from a block's code, with its line if foreign."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(OURS) and "/torch/" not in frame.filename:
            place = f" ({Path(frame.filename).name}, line {frame.lineno})"
    return f"{type(error).__name__}: {error}{place}"


OS_ERROR_HINTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions"),
    errno.EROFS: "have it made writable",
    errno.ENOENT: "put the folder back where it was",
    errno.EBADF: "open it for the command, as `>FILE` does",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files with `ulimit -n`"),
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EISDIR: "name a file: this is a folder",
    errno.ENOTDIR: "check the path: a part of it is a file",
}
"""What to do where a file cannot be written."""


def _one_line(text: str) -> str:
    return _printable(" ".join(text.split()))


def _printable(text: str) -> str:
    # a control character of the recipe must not reach the terminal
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def _window(text: str, column: int, length: int) -> tuple[str, int, int]:
    """Return the part of a long line around the fault, with the fault's column and length in it."""
    text = text.rstrip()
    length = min(length, max(1, len(text) - column))
    if len(text) <= WINDOW:
        return _printable(text), column, length
    start = max(0, min(column - WINDOW // 2, len(text) - WINDOW))
    part = text[start : start + WINDOW]
    head, tail = "..." if start else "", "..." if start + WINDOW < len(text) else ""
    return (
        head + _printable(part) + tail,
        column - start + len(head),
        min(length, WINDOW - (column - start)),
    )
