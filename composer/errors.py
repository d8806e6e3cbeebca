"""A user's mistake, told with its place: file, line, column, what is wrong, and what to write instead."""

from __future__ import annotations

import difflib
import errno
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

MAX_LISTED = 5  # of many things that are told
MAX_LIBRARY_MESSAGE = 300  # characters of what a library says
WINDOW = 120  # an excerpt of a longer line is cut to about this many characters around the fault


@dataclass(frozen=True, order=True)
class Fault:
    """One mistake. `line` and `column` count from 1; `line` 0 means that it has no place in a file.

    `path` is the place as it is written in the recipe (`model.encoder[1].rnn.cell`), `excerpt` the line at fault,
    `length` the number of characters to underline.
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

    def as_dict(self) -> dict[str, str | int]:
        """The fault as `check --json` prints it."""
        keys = ("file", "line", "column", "code", "path", "message", "hint")
        return {key: getattr(self, key) for key in keys}

    def render(self) -> str:
        """The fault as text, without a line break at its end."""
        lines = [f"{self._place()}error[{self.code}]: {_one_line(self.message)}"]
        if self.path:
            lines.append(f"   at {_one_line(self.path)}")
        if self.excerpt:
            lines.extend(self._underlined())
        if self.hint:
            lines.append(f"   fix: {_one_line(self.hint)}")
        return "\n".join(lines)

    def _place(self) -> str:
        if self.line:
            return f"{_one_line(self.file)}:{self.line}:{self.column}: "
        return f"{_one_line(self.file)}: " if self.file else ""

    def _underlined(self) -> list[str]:
        text, column, length = _window(self.excerpt, self.column - 1, self.length)
        number = str(self.line)
        before, marked = text[:column], text[column : column + length]
        carets = "^" * max(1, _cells(marked))
        return [f"   {number} | {text}", f"   {' ' * len(number)} | {' ' * _cells(before)}{carets}"]


class ComposerError(Exception):
    """Every mistake a user can make. `faults` are in the order of file, line and column, each told once."""

    status = 2
    """The exit status of a command that ends with it: refused."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = sorted(set(faults))
        super().__init__(self.faults)

    def render(self) -> str:
        """All faults and their number, as the command line prints them."""
        count = len(self.faults)
        return "\n".join([*(fault.render() for fault in self.faults), f"{count} error{'' if count == 1 else 's'}"])

    def __str__(self) -> str:
        return self.render()


class RecipeError(ComposerError):
    """The recipe cannot be read, or does not hold together."""


class DataError(ComposerError):
    """The data that the recipe names cannot be used."""


class RunError(ComposerError):
    """A run cannot start, go on or be opened."""

    @classmethod
    def of(cls, message: str, hint: str = "", file: str = "") -> Self:
        """One fault that has no place in a recipe."""
        return cls([Fault(str(file), 0, 0, "run", "", message, hint)])


class RunFailed(RunError):
    """A run that had begun cannot go on."""

    status = 1


def format_path(path: Iterable[str | int]) -> str:
    """A path as a reader writes it: ("model", "encoder", 1, "rnn") is `model.encoder[1].rnn`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def os_error_reason(error: OSError) -> str:
    """Why the system refuses something, in its words."""
    return (error.strerror or str(error)).lower()


def os_error_hint(error: OSError) -> str:
    """What helps where a file cannot be written."""
    return OS_ERROR_HINTS.get(error.errno or 0, "make room")


def first_few(told: Sequence[str]) -> str:
    """The first of many things that are told, and how many more there are."""
    more = f"; and {len(told) - MAX_LISTED} more" if len(told) > MAX_LISTED else ""
    return "; ".join(told[:MAX_LISTED]) + more


def one_line_error(error: Exception) -> str:
    """What an error of a library says, on one line that is not too long."""
    return (" ".join(str(error).split()) or type(error).__name__)[:MAX_LIBRARY_MESSAGE]


OS_ERROR_HINTS = {
    errno.EACCES: "ask for the right to write there",
    errno.EPERM: "ask for the right to write there",
    errno.EROFS: "have it made writable",
    errno.ENOENT: "put the folder back where it was",
}
"""What helps where a file cannot be written; else there is no room."""
# what other systems call it
SYNONYMS = {
    "lr": "learning_rate",
    "warmup": "warmup_steps",
    "batch_size": "tokens_per_batch",
    "steps": "max_steps",
    "grad_clip": "clip_norm",
    "patience": "early_stopping",
    "fp16": "precision",
    "optim": "optimizer",
    "lr_scheduler": "schedule",
    "scheduler": "schedule",
    "d_model": "width",
    "hidden_size": "width",
    "dim": "width",
    "d_ff": "hidden",
    "p": "rate",
    "nhead": "heads",
    "n": "times",
    "beam_size": "size",
    "src": "source",
    "tgt": "target",
    "attention": "self_attention",
    "encoder_attention": "cross_attention",
    "ffn": "feed_forward",
    "mlp": "feed_forward",
    "lstm": "rnn",
    "gru": "rnn",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "layernorm": "norm",
    "rmsnorm": "norm",
    "dense": "linear",
    "positional_encoding": "positions",
    "cnn": "conv",
    "skip": "residual",
    "corpus": "data",
}


def closest_match(word: str, words: Iterable[str]) -> str:
    """Which of `words` was probably meant by `word`, or ""."""
    return _closest_match(word, tuple(words))


@lru_cache(maxsize=512)
def _closest_match(word: str, words: tuple[str, ...]) -> str:
    if SYNONYMS.get(word.lower()) in words:
        return SYNONYMS[word.lower()]
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.6)), "")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The question `did you mean ...?` for the end of a message, or ""."""
    close = closest_match(word, words)
    return f"; did you mean `{close}`?" if close else ""


def _one_line(text: str) -> str:
    return _printable(" ".join(text.split()))


def _printable(text: str) -> str:
    # a control character of the recipe must not reach the terminal
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in text
    )


def _window(text: str, column: int, length: int) -> tuple[str, int, int]:
    """The part of a long line around the fault, and where the fault is in it."""
    text = text.rstrip()
    length = min(length, max(1, len(text) - column))
    if len(text) <= WINDOW:
        return _printable(text), column, length
    start = max(0, min(column - WINDOW // 2, len(text) - WINDOW))
    part = text[start : start + WINDOW]
    head, tail = "..." if start else "", "..." if start + WINDOW < len(text) else ""
    return head + _printable(part) + tail, column - start + len(head), min(length, WINDOW - (column - start))


def _cells(text: str) -> int:
    """How many terminal cells a text takes: two for a wide character, none for a combining one."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
