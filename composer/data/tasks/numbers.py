"""number_words: numbers in words, from one language to another. The one door to num2words."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Literal, NamedTuple

from num2words import num2words

from blocks.core.contract import Bounds
from composer.data.tasks.draws import (
    Key,
    Length,
    Lengths,
    Lines,
    Request,
    Seed,
    Size,
    Split,
    TaskError,
    draw,
    draw_lengths,
    lengths_of,
    request,
)

Maximum = Annotated[int, Bounds(minimum=99, maximum=999_999)]
"""The largest number of a task."""
Language = Literal["da", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "pl", "pt", "sv", "tr"]


def number_words(
    split: Split,
    epoch: int = 0,
    *,
    maximum: Maximum = 999_999,
    source: Language = "en",
    target: Language = "de",
    train: Size = 30_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = False,
) -> Lines:
    """Number words, from English to German if not said: "four hundred and twenty-one", "vierhunderteinundzwanzig".

    Test and validation numbers are all different and drawn evenly from 0 to `maximum`. One training number in five is
    drawn by its number of digits first, so that short numbers are seen too.

    Settings:
        maximum: the largest number, 99 to 999999
        source: the language that is read: da, de, en, es, fi, fr, hu, it, nl, pl, pt, sv or tr
        target: the language that is written, one of the same
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    digits = len(str(maximum))

    def evenly(numbers: random.Random) -> Key:
        return (numbers.randint(0, maximum),)

    def short_ones_too(numbers: random.Random) -> Key:
        if numbers.random() < 0.8:
            return evenly(numbers)
        length = numbers.randint(1, digits)
        return (numbers.randint(0 if length == 1 else 10 ** (length - 1), min(maximum, 10**length - 1)),)

    ask = request(split, epoch, endless, seed, train, val, test)
    numbers = [number for (number,) in draw(ask, short_ones_too if split == "train" else evenly)]
    return Lines([in_words(number, source) for number in numbers], [in_words(number, target) for number in numbers])


def in_words(number: int, language: str) -> str:
    """A number from 0 to 999,999 as num2words writes it."""
    by_pieces = {"en": english, "de": german}.get(language)
    return _words(number, language) if by_pieces is None else by_pieces(number)


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


Written = Callable[[Sequence[int]], tuple[str, str]]


def _binary_task(name: str, first_lines: str, numbers: int, written: Written) -> Callable[..., Lines]:
    """A task over so many binary numbers of equal length; `written` makes the two lines of all their digits."""

    def task(
        split: Split,
        epoch: int = 0,
        *,
        min_length: Length = 1,
        max_length: Length = 20,
        test_lengths: list[Length] | None = None,
        train: Size = 20_000,
        val: Size = 500,
        test: Size = 1_000,
        seed: Seed = 1,
        endless: bool = True,
    ) -> Lines:
        """What the task does is said by its maker.

        Settings:
            min_length: digits of the shortest number
            max_length: digits of the longest training and validation number
            test_lengths: digits of the test numbers, to ask for longer ones than were trained; null: as in training
            train: training pairs of an epoch
            val: validation pairs
            test: test pairs, of each test length
            seed: what the draws start from
            endless: whether every epoch has new training pairs
        """
        ask = request(split, epoch, endless, seed, train, val, test)

        def any_digits(draws: random.Random, length: int) -> Key:
            return tuple(draws.choices((0, 1), k=numbers * length))

        keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_digits)
        pairs = [written(key) for key in keys]
        return Lines([source for source, _ in pairs], [target for _, target in pairs])

    task.__name__ = task.__qualname__ = name
    _, _, settings = (inspect.getdoc(task) or "").partition("\n\n")
    task.__doc__ = f"{first_lines}\n\n{settings}\n"
    return task


def _added(key: Sequence[int]) -> tuple[str, str]:
    one, other = _halves(key)
    return f"{_line(one)} + {_line(other)}", _line(digits(number(one) + number(other), len(one) + 1))


def _multiplied(key: Sequence[int]) -> tuple[str, str]:
    one, other = _halves(key)
    return f"{_line(one)} * {_line(other)}", _line(digits(number(one) * number(other), 2 * len(one)))


def _incremented(key: Sequence[int]) -> tuple[str, str]:
    return _line(key), _line(digits(number(key) + 1, len(key) + 1))


def _halves(key: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    return key[: len(key) // 2], key[len(key) // 2 :]


def _line(told: Sequence[int]) -> str:
    return " ".join(map(str, told))


def number(told: Sequence[int]) -> int:
    """What digits say, the least significant first."""
    return int("".join(map(str, reversed(told))), 2)


def digits(value: int, count: int) -> list[int]:
    """A number in so many digits, the least significant first."""
    return [int(digit) for digit in reversed(f"{value:0{count}b}")]


binary_addition = _binary_task(
    "binary_addition",
    'Two binary numbers of k digits, the least significant first, and their sum of k + 1 digits: "1 1 + 1 0" is '
    '"0 0 1".',
    2,
    _added,
)
binary_multiplication = _binary_task(
    "binary_multiplication",
    'Two binary numbers of k digits, the least significant first, and their product of 2k digits: "1 1 * 1 1" is '
    '"1 0 0 1".',
    2,
    _multiplied,
)
increment = _binary_task(
    "increment",
    'A binary number of k digits, the least significant first, and the one after it in k + 1 digits: "1 1 0" is '
    '"0 0 1 0". The answer is longer than the question.',
    1,
    _incremented,
)


Cells = Annotated[int, Bounds(minimum=4, maximum=1000)]
"""How many cells a tape has, and how many integers there are."""


class Program(NamedTuple):
    """One task: what may stand in its tapes, and what becomes of them."""

    needed: Callable[[int], int]  # cells of an array of this length
    any_key: Callable[[random.Random, int, int], Key]  # by length and cells
    run: Callable[
        [Key], tuple[Sequence[int], Sequence[int]]
    ]  # the tape before and after, the zeros at its end left out


def _cells_task(name: str, first_lines: str, program: Program) -> Callable[..., Lines]:
    """A task over tapes; the target is the tape as the program leaves it."""

    def task(
        split: Split,
        epoch: int = 0,
        *,
        cells: Cells = 20,
        min_length: Length = 1,
        max_length: Length = 8,
        test_lengths: list[Length] | None = None,
        train: Size = 20_000,
        val: Size = 500,
        test: Size = 1_000,
        seed: Seed = 1,
        endless: bool = True,
    ) -> Lines:
        """What the task does is said by its maker.

        Settings:
            cells: cells of a tape, and integers that there are
            min_length: integers of the shortest array
            max_length: integers of the longest training and validation array
            test_lengths: integers of the test arrays, to ask for longer ones than were trained; null: as in training
            train: training pairs of an epoch
            val: validation pairs
            test: test pairs, of each test length
            seed: what the draws start from
            endless: whether every epoch has new training pairs
        """
        ask = request(split, epoch, endless, seed, train, val, test)
        lengths = lengths_of(min_length, max_length, test_lengths)
        _must_fit(ask, lengths, cells, program.needed)
        keys = draw_lengths(ask, lengths, lambda numbers, length: program.any_key(numbers, length, cells))
        pairs = [program.run(key) for key in keys]
        return Lines([_tape(before, cells) for before, _ in pairs], [_tape(after, cells) for _, after in pairs])

    task.__name__ = task.__qualname__ = name
    _, _, settings = (inspect.getdoc(task) or "").partition("\n\n")
    task.__doc__ = f"{first_lines}\n\n{settings}\n"
    return task


def _must_fit(ask: Request, lengths: Lengths, cells: int, needed: Callable[[int], int]) -> None:
    tested = ask.split == "test" and lengths.tested
    longest = max(lengths.tested) if tested else lengths.longest
    if needed(longest) > cells:
        message = f"an array of {longest} needs {needed(longest)} cells, and there are {cells}"
        raise TaskError(
            "test_lengths" if tested else "max_length", message, f"write `cells: {needed(longest)}` or more"
        )


def _tape(values: Sequence[int], cells: int) -> str:
    return " ".join(map(str, [*values, *[0] * (cells - len(values))]))


def _array(numbers: random.Random, length: int, below: int) -> list[int]:
    return numbers.choices(range(1, below), k=length)


ram_access = _cells_task(
    "ram_access",
    'An index k and an array that ends with 0: cell 0 becomes the array\'s element k, from 0. "1 7 9 4 0" becomes\n'
    '"9 7 9 4 0".',
    Program(
        lambda length: length + 2,
        lambda numbers, length, cells: (numbers.randrange(length), *_array(numbers, length, cells)),
        lambda key: (key, (key[1 + key[0]], *key[1:])),
    ),
)
ram_increment = _cells_task(
    "ram_increment",
    'An array that ends with 0: each element becomes one more. "3 1 4 0 0 0" becomes "4 2 5 0 0 0".',
    Program(
        lambda length: length + 1,
        lambda numbers, length, cells: tuple(_array(numbers, length, cells - 1)),
        lambda key: (key, [value + 1 for value in key]),
    ),
)
ram_copy = _cells_task(
    "ram_copy",
    "The number of the first cell behind the array, and the array, which is written there once more:\n"
    '"3 5 2 0 0" becomes "3 5 2 5 2".',
    Program(
        lambda length: 2 * length + 1,
        lambda numbers, length, cells: tuple(_array(numbers, length, cells)),
        lambda key: ((len(key) + 1, *key), (len(key) + 1, *key, *key)),
    ),
)
