"""Sequences of symbols whose target is the source, rearranged: copy, reverse, duplicate, sort, bigram_flip."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable

from composer.data.tasks.draws import (
    Key,
    Length,
    Lines,
    Seed,
    Size,
    Split,
    Symbols,
    asked,
    draw_lengths,
    lengths_of,
    symbol,
)


def _sequence_task(name: str, first_line: str, rearrange: Callable[[list[str]], list[str]]) -> Callable[..., Lines]:
    """A task over sequences of symbols; the target is the source, rearranged."""

    def task(
        split: Split,
        epoch: int = 0,
        *,
        symbols: Symbols = 26,
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
            symbols: different symbols, 2 to 702
            min_length: symbols of the shortest sequence
            max_length: symbols of the longest training and validation sequence
            test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training
            train: training pairs of an epoch
            val: validation pairs
            test: test pairs, of each test length
            seed: what the draws start from
            endless: whether every epoch has new training pairs
        """
        ask = asked(split, epoch, endless, seed, train, val, test)

        def any_sequence(numbers: random.Random, length: int) -> Key:
            return tuple(numbers.choices(range(symbols), k=length))

        keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_sequence)
        rows = [[symbol(index) for index in key] for key in keys]
        return Lines([" ".join(row) for row in rows], [" ".join(rearrange(row)) for row in rows])

    task.__name__ = task.__qualname__ = name
    _, _, settings = (inspect.getdoc(task) or "").partition("\n\n")
    task.__doc__ = f"{first_line}\n\n{settings}\n"
    return task


copy = _sequence_task("copy", 'A sequence of symbols, given back as it is: "d a c" is "d a c".', list)
reverse = _sequence_task(
    "reverse", 'A sequence of symbols, given back from its end: "d a c" is "c a d".', lambda row: row[::-1]
)
duplicate = _sequence_task(
    "duplicate", 'A sequence of symbols, given back twice: "d a c" is "d a c d a c".', lambda row: row * 2
)
sort = _sequence_task("sort", 'A sequence of symbols, in alphabetical order: "d a c" is "a c d".', sorted)
bigram_flip = _sequence_task(
    "bigram_flip",
    'A sequence of symbols with each two exchanged: "d a c b" is "a d b c"; one that is over stays. (Grefenstette et '
    "al. 2015, section 4.1.)",
    lambda row: [symbol for at in range(0, len(row), 2) for symbol in reversed(row[at : at + 2])],
)
