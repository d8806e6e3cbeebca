"""Sequences of binary vectors, for the tokenizer `bits`: the tasks of Graves et al. 2014, section 4, but for N-grams.

A vector is a word of its digits, "01101001", and every digit is drawn evenly. A number behind a vector,
"01101001@-0.37", is a channel of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from typing import Annotated

from blocks.core.contract import Bounds, PositiveProportion
from composer.data.tasks import Draws, Key, Length, Lengths, Lines, TaskError, task
from composer.data.tokenizer_kinds import LEVELS

Digits = Annotated[int, Bounds(minimum=1, maximum=12), "digits of a vector, 1 to 12"]
Repeats = Annotated[int, Bounds(minimum=1, maximum=100)]
"""How often a sequence is repeated."""
NumPriorities = Annotated[int, Bounds(minimum=1, maximum=201)]
"""Number of vectors that can have different priorities."""


@task("vectors")
def vector_copy(draws: Draws, *, bits: Digits = 8) -> Lines:
    """Copy vectors of binary digits: "01 11" is "01 11". (Graves et al. 2014, section 4.1.)"""
    keys = draws.keys_by_length(lambda numbers, length: tuple(numbers.choices(range(2**bits), k=length)))
    lines = [join_vectors(key, bits) for key in keys]
    return Lines(lines, lines)


@task("vectors", max_length=10)
def repeat_copy(
    draws: Draws,
    *,
    bits: Digits = 8,
    min_repeats: Repeats = 1,
    max_repeats: Repeats = 10,
    test_repeats: Lengths | None = None,
) -> Lines:
    """Repeat vectors as often as the number behind them says: "01 11 00@-0.50" is "01 11 01 11", where 4 is the most.

    The number is count / `max_repeats` - 1, which says 2 `max_repeats` by 1.00 (Graves et al. 2014, section 4.2, make
    mean 0 and variance 1 of it by another such line). It stands behind a vector of zeros.

    Settings:
        min_repeats: the least repetitions
        max_repeats: the most repetitions in training and validation, 1 to 100
        test_repeats: repetitions in the test, with each of the lengths, at most twice the most; null: as in training
    """
    if min_repeats > max_repeats:
        message = f"the least ({min_repeats}) is more than the most ({max_repeats})"
        raise TaskError("min_repeats", message, f"write `min_repeats: {max_repeats}` or less")
    most, tested = 2 * max_repeats, test_repeats or ()
    if max(tested, default=0) > most:
        message = f"no number means {max(tested)} repetitions: the largest number, 1.00, means {most}"
        raise TaskError("test_repeats", message, f"ask for at most {most}, or raise `max_repeats`")

    def pair(numbers: random.Random, length: int, times: int = 0) -> Key:
        times = times or numbers.randint(min_repeats, max_repeats)
        return times, *numbers.choices(range(2**bits), k=length)

    if draws.split == "test" and tested:
        keys = [key for times in tested for key in draws.keys_by_length(partial(pair, times=times))]
    else:
        keys = draws.keys_by_length(pair)
    rows = [(times, join_vectors(key, bits)) for times, *key in keys]
    sources = [f"{line} {0:0{bits}b}{channel(times / max_repeats - 1)}" for times, line in rows]
    return Lines(sources, [" ".join([line] * times) for times, line in rows])


@task("items", "line")
def associative_recall(
    draws: Draws, *, bits: Digits = 6, vectors: Length = 3, min_length: Length = 2, max_length: Length = 6
) -> Lines:
    """Recall the item after the one in question, of items of a few vectors: "; 01 11 ; 10 00 ? 01 11" is "10 00".

    All items of a line are different, and the last is never asked for. (Graves et al. 2014, section 4.3.) The
    tokenizer needs `marks: [";", "?"]`.

    Settings:
        vectors: vectors of an item
        min_length: items of the shortest line, 2 or more
        max_length: items of the longest training and validation line
    """
    tested = draws.test_lengths
    for setting, shortest in (("min_length", min_length), ("test_lengths", min(tested, default=2))):
        if shortest < 2:
            raise TaskError(setting, "one item has none after it", f"write `{setting}` of 2 or more")
    different = 2 ** (bits * vectors)
    if max([max_length, *tested]) > different:
        message = f"of {vectors} vectors of {bits} digits there are only {different} different items"
        raise TaskError("vectors", message, "raise `vectors` or `bits`, or ask for fewer items")

    def random_items(numbers: random.Random, length: int) -> Key:
        return numbers.randrange(length - 1), *numbers.sample(range(different), length)

    def item(index: int) -> str:
        return join_vectors((index >> bits * at & 2**bits - 1 for at in range(vectors)), bits)

    pairs = [(which, [item(index) for index in key]) for which, *key in draws.keys_by_length(random_items)]
    sources = [f"{' '.join(f'; {text}' for text in items)} ? {items[which]}" for which, items in pairs]
    return Lines(sources, [items[which + 1] for which, items in pairs])


@task("vectors", length=NumPriorities, min_length=20)
def priority_sort(draws: Draws, *, bits: Digits = 8, share: PositiveProportion = 0.8) -> Lines:
    """Sort vectors by priority, and keep the highest: "01@-0.20 11@0.90 10@0.00" is "11 10".

    The priorities of a line are different hundredths from -1.00 to 1.00, evenly drawn. (Graves et al. 2014, section
    4.5: the 16 highest of 20.) The tokenizer needs `numbers: true`.

    Settings:
        share: the part of the vectors that is given back, 0 < share <= 1, rounded, and at least one
    """

    def random_vectors(numbers: random.Random, length: int) -> Key:
        return *numbers.choices(range(2**bits), k=length), *numbers.sample(LEVELS, length)

    keys = draws.keys_by_length(random_vectors)
    rows = [list(zip(key[len(key) // 2 :], key[: len(key) // 2], strict=True)) for key in keys]
    sources = [" ".join(f"{vector:0{bits}b}{channel(level / 100)}" for level, vector in row) for row in rows]
    highest = [sorted(row, reverse=True)[: max(1, round(share * len(row)))] for row in rows]
    return Lines(sources, [join_vectors((vector for _, vector in row), bits) for row in highest])


def join_vectors(vectors: Iterable[int], bits: int) -> str:
    """Return vectors as words, the most significant digit first."""
    return " ".join(f"{vector:0{bits}b}" for vector in vectors)


def channel(value: float) -> str:
    """Return the number behind a vector, with two decimals; zero has no sign."""
    return f"@{round(value, 2) + 0.0:.2f}"
