"""Sequences of binary vectors, for the tokenizer `bits`: the tasks of Graves et al. 2014, section 4, but for N-grams.

A vector is a word of its digits, "01101001", and every digit is drawn evenly. A number behind a vector,
"01101001@-0.37", is a channel of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated

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
    draw_lengths,
    lengths_of,
    request,
)

Digits = Annotated[int, Bounds(minimum=1, maximum=12)]
"""How many binary digits a vector has."""
Repeats = Annotated[int, Bounds(minimum=1, maximum=100)]
"""How often a sequence is repeated."""
Share = Annotated[float, Bounds(above=0.0, maximum=1.0)]
"""A part of a whole."""
Few = Annotated[int, Bounds(minimum=1, maximum=201)]
"""How many vectors can have numbers of their own."""

HUNDREDTHS = range(-100, 101)
"""The numbers that can stand behind a vector."""


def vector_copy(
    split: Split,
    epoch: int = 0,
    *,
    bits: Digits = 8,
    min_length: Length = 1,
    max_length: Length = 20,
    test_lengths: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Vectors of binary digits, given back as they are: "01 11" is "01 11". (Graves et al. 2014, section 4.1.)

    Settings:
        bits: digits of a vector, 1 to 12
        min_length: vectors of the shortest sequence
        max_length: vectors of the longest training and validation sequence
        test_lengths: vectors of the test sequences, to ask for longer ones than were trained; null: as in training
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    ask = request(split, epoch, endless, seed, train, val, test)

    def any_vectors(numbers: random.Random, length: int) -> Key:
        return tuple(numbers.choices(range(2**bits), k=length))

    keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_vectors)
    lines = [written(key, bits) for key in keys]
    return Lines(lines, lines)


def repeat_copy(
    split: Split,
    epoch: int = 0,
    *,
    bits: Digits = 8,
    min_length: Length = 1,
    max_length: Length = 10,
    min_repeats: Repeats = 1,
    max_repeats: Repeats = 10,
    test_lengths: list[Length] | None = None,
    test_repeats: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Vectors, given back as often as is said behind them: "01 11 00@-0.50" is "01 11 01 11", where 4 is the most.

    The number is count / `max_repeats` - 1, which says 2 `max_repeats` by 1.00 (Graves et al. 2014, section 4.2, make
    mean 0 and variance 1 of it by another such line). It stands behind a vector of zeros.

    Settings:
        bits: digits of a vector, 1 to 12
        min_length: vectors of the shortest sequence
        max_length: vectors of the longest training and validation sequence
        min_repeats: the least repetitions
        max_repeats: the most repetitions in training and validation, 1 to 100
        test_lengths: vectors of the test sequences, to ask for longer ones than were trained; null: as in training
        test_repeats: repetitions in the test, with each of the lengths, at most twice the most; null: as in training
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs, of each test length and number of repetitions
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    ask = request(split, epoch, endless, seed, train, val, test)
    lengths = lengths_of(min_length, max_length, test_lengths)
    repeats = _repeats(min_repeats, max_repeats, test_repeats)

    def any_pair(numbers: random.Random, length: int, times: int) -> Key:
        return times, *numbers.choices(range(2**bits), k=length)

    keys = _drawn_for_both(ask, lengths, repeats, any_pair)
    rows = [(times, written(key, bits)) for times, *key in keys]
    asking = [f"{line} {0:0{bits}b}{number(times / max_repeats - 1)}" for times, line in rows]
    return Lines(asking, [" ".join([line] * times) for times, line in rows])


def _repeats(least: int, most: int, tested: Sequence[int] | None) -> Lengths:
    """How often a sequence is repeated. Raises TaskError."""
    if least > most:
        message = f"the least ({least}) is more than the most ({most})"
        raise TaskError("min_repeats", message, f"write `min_repeats: {most}` or less")
    if tested and max(tested) > 2 * most:
        message = f"{max(tested)} repetitions cannot be said: the number for {2 * most} is 1.00, and none is above it"
        raise TaskError("test_repeats", message, f"ask for at most {2 * most}, or raise `max_repeats`")
    return Lengths(least, most, list(dict.fromkeys(tested or ())))


def _drawn_for_both(
    ask: Request, lengths: Lengths, repeats: Lengths, make: Callable[[random.Random, int, int], Key]
) -> list[Key]:
    """Keys of evenly drawn lengths and repetitions; of what is tested, the pairs asked for of each two."""
    if ask.split != "test" or not repeats.tested:
        least, most, _ = repeats
        return draw_lengths(ask, lengths, lambda numbers, length: make(numbers, length, numbers.randint(least, most)))
    found = (draw_lengths(ask, lengths, partial(_with, make, times)) for times in repeats.tested)
    return [key for keys in found for key in keys]


def _with(make: Callable[[random.Random, int, int], Key], times: int, numbers: random.Random, length: int) -> Key:
    return make(numbers, length, times)


def associative_recall(
    split: Split,
    epoch: int = 0,
    *,
    bits: Digits = 6,
    vectors: Length = 3,
    min_length: Length = 2,
    max_length: Length = 6,
    test_lengths: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Items of a few vectors, and one of them asked for: the answer is the one after it. "; 01 11 ; 10 00 ? 01 11" is
    "10 00".

    All items of a line are different, and the last is never asked for. (Graves et al. 2014, section 4.3.) The
    tokenizer needs `marks: [";", "?"]`.

    Settings:
        bits: digits of a vector, 1 to 12
        vectors: vectors of an item
        min_length: items of the shortest line, 2 or more
        max_length: items of the longest training and validation line
        test_lengths: items of the test lines, to ask for longer ones than were trained; null: as in training
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    ask = request(split, epoch, endless, seed, train, val, test)
    lengths = lengths_of(min_length, max_length, test_lengths)
    for setting, shortest in (("min_length", min_length), ("test_lengths", min(lengths.tested, default=2))):
        if shortest < 2:
            raise TaskError(setting, "one item has none after it", f"write `{setting}` of 2 or more")
    if max([max_length, *lengths.tested]) > 2 ** (bits * vectors):
        message = f"of {vectors} vectors of {bits} digits there are only {2 ** (bits * vectors)} different items"
        raise TaskError("vectors", message, "raise `vectors` or `bits`, or ask for fewer items")

    def any_items(numbers: random.Random, length: int) -> Key:
        return numbers.randrange(length - 1), *numbers.sample(range(2 ** (bits * vectors)), length)

    def item(index: int) -> str:
        return written((index >> bits * at & 2**bits - 1 for at in range(vectors)), bits)

    pairs = [(which, [item(each) for each in key]) for which, *key in draw_lengths(ask, lengths, any_items)]
    asking = [f"{' '.join(f'; {each}' for each in items)} ? {items[which]}" for which, items in pairs]
    return Lines(asking, [items[which + 1] for which, items in pairs])


def priority_sort(
    split: Split,
    epoch: int = 0,
    *,
    bits: Digits = 8,
    share: Share = 0.8,
    min_length: Few = 20,
    max_length: Few = 20,
    test_lengths: list[Few] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Vectors with priorities, and those of the highest priority in order: "01@-0.20 11@0.90 10@0.00" is "11 10".

    The priorities of a line are different hundredths from -1.00 to 1.00, evenly drawn. (Graves et al. 2014, section
    4.5: the 16 highest of 20.) The tokenizer needs `numbers: true`.

    Settings:
        bits: digits of a vector, 1 to 12
        share: the part of the vectors that is given back, 0 < share <= 1, rounded, and at least one
        min_length: vectors of the shortest sequence
        max_length: vectors of the longest training and validation sequence, at most 201
        test_lengths: vectors of the test sequences, to ask for longer ones than were trained; null: as in training
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    ask = request(split, epoch, endless, seed, train, val, test)

    def any_vectors(numbers: random.Random, length: int) -> Key:
        return *numbers.choices(range(2**bits), k=length), *numbers.sample(HUNDREDTHS, length)

    keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_vectors)
    rows = [list(zip(key[len(key) // 2 :], key[: len(key) // 2], strict=True)) for key in keys]
    asking = [" ".join(f"{vector:0{bits}b}{number(level / 100)}" for level, vector in row) for row in rows]
    highest = [sorted(row, reverse=True)[: max(1, round(share * len(row)))] for row in rows]
    return Lines(asking, [written((vector for _, vector in row), bits) for row in highest])


def written(vectors: Iterable[int], bits: int) -> str:
    """Vectors as words, the most significant digit first."""
    return " ".join(f"{vector:0{bits}b}" for vector in vectors)


def number(value: float) -> str:
    """A number as it stands behind a vector; a nought has no sign."""
    return f"@{round(value, 2) + 0.0:.2f}"
