"""Arithmetic on binary numbers: binary_addition, binary_multiplication, increment.

A number is written from its least significant digit, each digit a word, with zeros up to its number of digits: of four
digits, six is "0 1 1 0" (Kaiser & Sutskever 2015, section 3). Every digit is drawn evenly.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence

from composer.data.tasks.draws import Key, Length, Lines, Seed, Size, Split, asked, draw_lengths, lengths_of

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
        ask = asked(split, epoch, endless, seed, train, val, test)

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
