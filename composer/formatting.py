"""Numbers, sizes, durations and lists as people read them."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from rich.cells import cell_len

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

SHOWN_SECONDS = 2.0
"""Seconds after which a terminal shows how far something is."""
LISTED_LINES = 5
"""Numbers of lines that are listed."""
SI_PREFIXES = ("", "k", "M", "G", "T", "P")
BINARY_UNITS = ("B", "KiB", "MiB", "GiB")
EXPONENT_FROM = 1e7
"""Numbers that are too long for a table from here on."""
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters but tab and newline, separators of lines, changes of the direction of writing,
halves of surrogate
pairs, and the two that are no characters."""


def format_bound(text: str, at_most: bool) -> str:
    """Return a size, marked where it is an upper bound."""
    return f"at most {text}" if at_most else text


def count_noun(count: int | str, noun: str) -> str:
    """Return a count with its noun, which is regular: 1 trial, 2 trials."""
    number = count if isinstance(count, str) else f"{count:,}"
    return f"{number} {noun}{'' if number == '1' else 's'}"


def format_lines(numbers: Sequence[int]) -> str:
    """Return the numbers of some lines as words, the first few of many."""
    listed = ", ".join(f"{number:,}" for number in numbers[:LISTED_LINES])
    more = f" and {len(numbers) - LISTED_LINES:,} more" if len(numbers) > LISTED_LINES else ""
    return f"line{'s' if len(numbers) > 1 else ''} {listed}{more}"


def count_each(words: Iterable[str]) -> str:
    """Return the number of each word: `2 killed, 1 failed`; "" without any."""
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items())


def si(number: float) -> str:
    """Return a number in about three digits with an SI prefix: 12.3M."""
    for prefix in SI_PREFIXES:
        if abs(number) < 999.5 or prefix == SI_PREFIXES[-1]:  # 999.6 is 1k in three digits
            break
        number /= 1000
    return f"{number:.3g}{prefix}" if prefix or number % 1 else f"{number:.0f}"


def format_bytes(number: int) -> str:
    """Return a number of bytes in binary units: 1.5 MiB."""
    size = float(number)
    for unit in BINARY_UNITS:
        if size < 1024 or unit == BINARY_UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Write a duration as h:mm:ss or m:ss."""
    total = int(seconds + 0.5)
    hours, minutes = divmod(total // 60, 60)
    return f"{hours}:{minutes:02}:{total % 60:02}" if hours else f"{minutes}:{total % 60:02}"


def format_number(value: object) -> str:
    """Return a number with separators; "" for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def significant(value: float, digits: int) -> str:
    """Write a number with so many significant digits: 0.1900, 1.300, 24310.

    A large one has an exponent: 1.000e+08.
    """
    if abs(value) >= EXPONENT_FROM:
        return f"{value:.{digits - 1}e}"
    is_whole = abs(value) >= 10**digits - 0.5  # 9999.6 is 10000
    return f"{value:.0f}" if is_whole else f"{value:#.{digits}g}".rstrip(".")


def strip_control_characters(text: str) -> str:
    """Return a text with U+FFFD in place of every CONTROL_CHARACTER.

    All that a terminal or a page gets goes through this.
    """
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


def make_console(**options: Any) -> Console:
    """Return a rich console that prints no CONTROL_CHARACTERS but those of rich itself."""
    from rich.console import Console  # imported late: `--help` needs none

    class PrintableConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield (
                    segment
                    if segment.control
                    else segment._replace(text=strip_control_characters(segment.text))
                )

    return PrintableConsole(**options)


@contextmanager
def show_progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows on stderr how many more are done.

    It shows so only on a terminal, and only where it takes long.

    total: How many there are; None where that is not known.
    """
    from rich.progress import Progress  # imported late, as above

    began = time.monotonic()
    with Progress(console=make_console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)

        def advance(count: int) -> None:
            bar.advance(task, count)
            if time.monotonic() - began > SHOWN_SECONDS and bar.console.is_terminal:
                bar.refresh()

        yield advance


class UnfailingStream:
    """Text stream that ignores a closed pipe and a full disk.

    Letters that its encoding lacks become `?`.
    """

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            try:
                return self.file.write(text)
            except UnicodeEncodeError:
                encoding = getattr(self.file, "encoding", None) or "ascii"
                return self.file.write(text.encode(encoding, "replace").decode(encoding))
        self.discard()
        return 0

    def flush(self) -> None:
        try:
            self.file.flush()
        except OSError:
            self.discard()

    def discard(self) -> None:
        """Redirect buffered text to the null device, or the interpreter fails over it at exit."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def to_json(data: object, indent: int | None = 1) -> str:
    """Return data as JSON, on one line without `indent`.

    CONTROL_CHARACTERS are escaped; NaN and infinities, which JSON lacks, are null.
    """
    text = json.dumps(null_where_not_finite(data), ensure_ascii=False, indent=indent)
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def null_where_not_finite(data: object) -> Any:
    """Return data with None for NaN and infinities, which JSON lacks."""
    return map_scalars(
        data, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf
    )


def map_scalars(data: object, change: Callable[[object], object]) -> Any:
    """Return plain data with every scalar changed."""
    if isinstance(data, Mapping):
        return {key: map_scalars(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [map_scalars(value, change) for value in data]
    return change(data)


def align_columns(rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> list[str]:
    """Return rows as lines with aligned columns: texts to the left, numbers to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = []
        for cell, width, at_left in zip(row, widths, is_text, strict=True):
            blanks = " " * (width - cell_len(cell))
            padded.append(cell + blanks if at_left else blanks + cell)
        lines.append("  ".join(padded).rstrip())
    return lines
