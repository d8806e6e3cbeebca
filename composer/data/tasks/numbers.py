"""Tasks of numbers: binary arithmetic, programs over memory cells, and number words.

binary_addition, binary_multiplication, increment: a number is written from its least significant
digit, each digit a word, with zeros up to its number of digits: of four digits, six is "0 1 1 0"
(Kaiser & Sutskever 2015, section 3). Every digit is drawn evenly.

ram_access, ram_increment, ram_copy (Kurach et al. 2016, section 5.1), for `nram`: a source is a
tape, all its cells in order, each an integer below the number of cells; `integers: {below: N}`
reads it. The target is the tape as the program leaves it. An array has no 0 in it, and all other
cells are 0.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Annotated, ClassVar, Literal

from blocks.core.settings import Bounds
from composer.data.tasks import DrawnTask, Draws, Key, Lines, Longest, SequenceTask, TaskError
from composer.recipe.choices import Endless, NumTraining

Cells = Annotated[
    int, Bounds(minimum=4, maximum=1000), "cells of a tape, and integers that there are"
]
Maximum = Annotated[int, Bounds(minimum=99, maximum=999_999)]
"""Largest number of a task."""
Language = Literal["da", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "pl", "pt", "sv", "tr"]


class Increment(SequenceTask):
    """Add one to a binary number of k digits, lowest first, in k + 1: "1 1 0" is "0 0 1 0".

    The answer is longer than the question.
    """

    word = "increment"
    items = "digits"
    row = "number"

    def lines(self, draws: Draws) -> Lines:
        keys = draws.keys_by_length(
            lambda numbers, length: tuple(numbers.choices((0, 1), k=length))
        )
        return Lines.of(keys, [to_bits(from_bits(key) + 1, len(key) + 1) for key in keys])


class Arithmetic(SequenceTask):
    """Task of two binary numbers of k digits with a sign between."""

    items = "digits"
    row = "number"
    sign: ClassVar[str]

    @abstractmethod
    def result(self, left: int, right: int, digits: int) -> list[int]:
        """Return the digits of the result for two numbers of so many digits."""

    def lines(self, draws: Draws) -> Lines:
        keys = draws.keys_by_length(
            lambda numbers, length: tuple(numbers.choices((0, 1), k=2 * length))
        )
        sources, results = list[tuple[object, ...]](), list[list[int]]()
        for key in keys:
            digits = len(key) // 2
            left, right = key[:digits], key[digits:]
            sources.append((*left, self.sign, *right))
            results.append(self.result(from_bits(left), from_bits(right), digits))
        return Lines.of(sources, results)


class BinaryAddition(Arithmetic):
    """Add binary numbers of k digits, lowest first, in k + 1 digits: "1 1 + 1 0" is "0 0 1"."""

    word = "binary_addition"
    sign = "+"

    def result(self, left: int, right: int, digits: int) -> list[int]:
        return to_bits(left + right, digits + 1)


class BinaryMultiplication(Arithmetic):
    """Multiply binary numbers of k digits, lowest first, in 2k digits: "1 1 * 1 1" is "1 0 0 1"."""

    word = "binary_multiplication"
    sign = "*"

    def result(self, left: int, right: int, digits: int) -> list[int]:
        return to_bits(left * right, 2 * digits)


def from_bits(bits: Sequence[int]) -> int:
    """Return the number that these binary digits are, the least significant first."""
    return int("".join(map(str, reversed(bits))), 2)


def to_bits(value: int, count: int) -> list[int]:
    """Return a number in `count` binary digits, the least significant first."""
    return [int(digit) for digit in reversed(f"{value:0{count}b}")]


class MemoryTask(SequenceTask):
    """Task of the cells of a tape before and after a program has run."""

    items = "integers"
    row = "array"
    cells: Cells = 20
    max_length: Longest = 8

    def check_cells(self, draws: Draws, needed: Callable[[int], int]) -> None:
        """Raise TaskError if the longest array and the cells beside it do not fit on a tape."""
        tested = draws.test_lengths if draws.split == "test" else ()
        longest = max(tested, default=draws.longest)
        if needed(longest) > self.cells:
            message = (
                f"an array of {longest} needs {needed(longest)} cells, and there are {self.cells}"
            )
            setting = "test_lengths" if tested else "max_length"
            raise TaskError(setting, message, f"write `cells: {needed(longest)}` or more")

    def arrays(self, draws: Draws, below: int) -> list[Key]:
        """Draw arrays of integers from 1."""
        return draws.keys_by_length(
            lambda numbers, length: tuple(numbers.choices(range(1, below), k=length))
        )

    def tapes(self, before: Iterable[Sequence[int]], after: Iterable[Sequence[int]]) -> Lines:
        """Return the lines of tapes, whose other cells are 0."""

        def fill(values: Sequence[int]) -> list[int]:
            return [*values, *[0] * (self.cells - len(values))]

        return Lines.of(map(fill, before), map(fill, after))


class RamAccess(MemoryTask):
    """Read element k of an array, where k is cell 0: "1 7 9 4 0" becomes "9 7 9 4 0"."""

    word = "ram_access"

    def lines(self, draws: Draws) -> Lines:
        self.check_cells(draws, lambda length: length + 2)

        def random_array(numbers: random.Random, length: int) -> Key:
            return numbers.randrange(length), *numbers.choices(range(1, self.cells), k=length)

        keys = draws.keys_by_length(random_array)
        return self.tapes(keys, [(key[1 + key[0]], *key[1:]) for key in keys])


def increment(values: Sequence[int]) -> list[int]:
    """Return each value plus one."""
    return [value + 1 for value in values]


class RamIncrement(MemoryTask):
    """Add one to each element of an array that ends with 0. "3 1 4 0 0 0" becomes "4 2 5 0 0 0"."""

    word = "ram_increment"

    def lines(self, draws: Draws) -> Lines:
        self.check_cells(draws, lambda length: length + 1)
        keys = self.arrays(draws, self.cells - 1)
        return self.tapes(keys, map(increment, keys))


class RamCopy(MemoryTask):
    """Copy an array to the cell that cell 0 numbers, behind it: "3 5 2 0 0" is "3 5 2 5 2"."""

    word = "ram_copy"

    def lines(self, draws: Draws) -> Lines:
        self.check_cells(draws, lambda length: 2 * length + 1)
        keys = self.arrays(draws, self.cells)
        return self.tapes(
            [(len(key) + 1, *key) for key in keys], [(len(key) + 1, *key, *key) for key in keys]
        )


class NumberWords(DrawnTask):
    """Translate number words, by default "twenty-one" into the German "einundzwanzig".

    Test and validation numbers are all different and drawn evenly from 0 to `maximum`. One training
    number in five is drawn by its number of digits first, so that short numbers are seen too.

    Settings:
        maximum: the largest number, 99 to 999999
        source: the language that is read: da, de, en, es, fi, fr, hu, it, nl, pl, pt, sv or tr
        target: the language that is written, one of the same
    """

    word = "number_words"
    maximum: Maximum = 999_999
    source: Language = "en"
    target: Language = "de"
    train: NumTraining = 30_000
    endless: Endless = False

    def lines(self, draws: Draws) -> Lines:
        maximum = self.maximum
        digits = len(str(maximum))

        def evenly(numbers: random.Random) -> Key:
            return (numbers.randint(0, maximum),)

        def with_short_ones(numbers: random.Random) -> Key:
            if numbers.random() < 0.8:
                return evenly(numbers)
            length = numbers.randint(1, digits)
            return (
                numbers.randint(
                    0 if length == 1 else 10 ** (length - 1), min(maximum, 10**length - 1)
                ),
            )

        keys = draws.keys(with_short_ones if draws.split == "train" else evenly)
        values = [value for (value,) in keys]
        return Lines(
            [spell(value, self.source) for value in values],
            [spell(value, self.target) for value in values],
        )


def spell(number: int, language: str) -> str:
    """Return a number from 0 to 999,999 as num2words spells it."""
    thousands, rest = divmod(number, 1000)
    # num2words is slow; English and German are composed of cached parts, and these of those below
    # 100
    if not thousands or language not in ("en", "de"):
        return _words(number, language)
    tail = _words(rest, language) if rest else ""
    if language == "de":
        return f"{'ein' if thousands == 1 else _words(thousands, 'de')}tausend{tail}"
    joint = "" if not rest else ", " if rest >= 100 else " and "
    return f"{_words(thousands, 'en')} thousand{joint}{tail}"


@cache
def _words(number: int, language: str) -> str:
    hundreds, rest = divmod(number, 100)
    if 0 < hundreds < 10 and language in ("en", "de"):
        head, tail = _words(hundreds, language), _words(rest, language) if rest else ""
        if language == "de":
            return f"{'ein' if hundreds == 1 else head}hundert{tail}"
        return f"{head} hundred and {tail}" if rest else f"{head} hundred"
    from num2words import num2words  # no other task needs it

    return str(num2words(number, lang=language))
