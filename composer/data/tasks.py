"""Generated tasks: pairs that need no files. All of a split is a function of the settings and of `seed`.

A pair belongs to test, val or train by a hash of its source, so the splits have nothing in common by construction,
whatever their sizes, seeds and ranges.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Literal, NamedTuple

from num2words import num2words

from blocks.core.contract import Bounds, Count

Split = Literal["train", "val", "test"]
Size = Annotated[int, Bounds(minimum=1, maximum=100_000_000)]
"""A number of pairs."""
Seed = Annotated[int, Bounds(minimum=0, maximum=4_294_967_295)]
"""What the draws start from."""
Maximum = Annotated[int, Bounds(minimum=99, maximum=999_999)]
"""The largest number of a task."""
Symbols = Annotated[int, Bounds(minimum=2, maximum=702)]
"""How many different symbols there are."""

Draw = Callable[[random.Random], tuple[int, ...]]


class Lines(NamedTuple):
    """The two sides of a split, line by line."""

    source: list[str]
    target: list[str]


class TaskError(ValueError):
    """A task cannot be generated so; `setting` is the setting at fault. It knows no YAML."""

    def __init__(self, setting: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.setting, self.message, self.fix = setting, message, fix


def split_of(key: Sequence[int]) -> Split:
    """The split to which a pair belongs: 5 % of all keys test, 5 % val, the others train."""
    text = " ".join(str(each) for each in key)
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return "test" if place < 5 else "val" if place < 10 else "train"


def number_words(
    split: Split,
    *,
    maximum: Maximum = 999_999,
    train: Size = 30_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
) -> Lines:
    """Number words from English to German: "four hundred and twenty-one" is "vierhunderteinundzwanzig".

    Test and validation numbers are all different and drawn evenly from 0 to `maximum`. One training number in five is
    drawn by its number of digits first, so that short numbers are seen too.

    Settings:
        maximum: the largest number, 99 to 999999
        train: training pairs
        val: validation pairs
        test: test pairs
        seed: what the draws start from
    """
    digits = len(str(maximum))

    def evenly(draw: random.Random) -> tuple[int, ...]:
        return (draw.randint(0, maximum),)

    def short_ones_too(draw: random.Random) -> tuple[int, ...]:
        if draw.random() < 0.8:
            return evenly(draw)
        length = draw.randint(1, digits)
        return (draw.randint(0 if length == 1 else 10 ** (length - 1), min(maximum, 10**length - 1)),)

    count = {"train": train, "val": val, "test": test}[split]
    drawn = _draw(short_ones_too if split == "train" else evenly, split, count, seed, once=split != "train")
    numbers = [number for (number,) in drawn]
    return Lines([english(number) for number in numbers], [german(number) for number in numbers])


def _sequence_task(name: str, first_line: str, rearrange: Callable[[list[str]], list[str]]) -> Callable[..., Lines]:
    """A task over sequences of symbols; the target is the source, rearranged."""

    def task(
        split: Split, *, symbols: Symbols = 26, min_length: Count = 1, max_length: Count = 20,
        test_length: Count | None = None, train: Size = 20_000, val: Size = 500, test: Size = 1_000, seed: Seed = 1,
    ) -> Lines:  # fmt: skip
        """What the task does is said by its maker.

        Settings:
            symbols: different symbols, 2 to 702
            min_length: symbols of the shortest sequence
            max_length: symbols of the longest training and validation sequence
            test_length: symbols of every test sequence, to ask for longer ones than were trained; null: as in training
            train: training pairs
            val: validation pairs
            test: test pairs
            seed: what the draws start from
        """
        lengths = _lengths(split, min_length, max_length, test_length)

        def any_sequence(draw: random.Random) -> tuple[int, ...]:
            return tuple(draw.randrange(symbols) for _ in range(draw.randint(*lengths)))

        count = {"train": train, "val": val, "test": test}[split]
        rows = [[symbol(index) for index in row] for row in _draw(any_sequence, split, count, seed, once=False)]
        return Lines([" ".join(row) for row in rows], [" ".join(rearrange(row)) for row in rows])

    task.__name__ = task.__qualname__ = name
    _, _, settings = (inspect.getdoc(task) or "").partition("\n\n")
    task.__doc__ = f"{first_line}\n\n{settings}\n"
    return task


TASKS: dict[str, Callable[..., Lines]] = {
    "number_words": number_words,
    "copy": _sequence_task("copy", 'A sequence of symbols, given back as it is: "d a c" is "d a c".', list),
    "reverse": _sequence_task(
        "reverse", 'A sequence of symbols, given back from its end: "d a c" is "c a d".', lambda row: row[::-1]
    ),
    "sort": _sequence_task("sort", 'A sequence of symbols, in alphabetical order: "d a c" is "a c d".', sorted),
}
"""Every generated task by its word in a recipe."""


def english(number: int) -> str:
    """A number from 0 to 999,999 as num2words writes it in English, from cached pieces."""
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _words(rest, "en")
    joint = "" if not rest else ", " if rest >= 100 else " and "
    return f"{_words(thousands, 'en')} thousand{joint}{_words(rest, 'en') if rest else ''}"


def german(number: int) -> str:
    """A number from 0 to 999,999 as num2words writes it in German, from cached pieces."""
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _words(rest, "de")
    head = "ein" if thousands == 1 else _words(thousands, "de")
    return f"{head}tausend{_words(rest, 'de') if rest else ''}"


@cache
def _words(number: int, language: str) -> str:
    return str(num2words(number, lang=language))


def symbol(index: int) -> str:
    """The name of a symbol: a to z, then aa, ab ..."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[index] if index < 26 else letters[index // 26 - 1] + letters[index % 26]


def _lengths(split: Split, shortest: int, longest: int, test_length: int | None) -> tuple[int, int]:
    if shortest > longest:
        message = f"the shortest sequence ({shortest}) is longer than the longest ({longest})"
        raise TaskError("min_length", message, f"write `min_length: {longest}` or less")
    return (test_length, test_length) if split == "test" and test_length else (shortest, longest)


def _draw(make: Draw, split: Split, count: int, seed: int, once: bool) -> list[tuple[int, ...]]:
    """`count` draws that belong to the split, all different if `once`; raises TaskError if there are not enough."""
    draw = random.Random(f"{split} {seed}")
    kept: list[tuple[int, ...]] = []
    seen: set[tuple[int, ...]] = set()
    for _ in range(100 * count + 10_000):
        key = make(draw)
        if split_of(key) != split or key in seen:
            continue
        kept.append(key)
        if once:
            seen.add(key)
        if len(kept) == count:
            return kept
    message = f"only {len(kept)} of the {count} {split} pairs could be found"
    raise TaskError(split, message, "ask for fewer pairs, or make the task larger")
