"""Sequences of binary vectors, for the tokenizer `bits` (Graves et al. 2014, section 4).

A vector is a word of its digits, "01101001", and every digit is drawn evenly. A number behind a
vector, "01101001@-0.37", is a channel of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated

from blocks.core.settings import Bounds, Distinct, PositiveProportion
from composer.data.tasks import (
    LONGEST,
    SHORTEST,
    TESTED,
    Draws,
    Key,
    Length,
    Lengths,
    Lines,
    Longest,
    SequenceTask,
    TaskError,
)
from composer.data.tokenizer_kinds import LEVELS

Digits = Annotated[int, Bounds(minimum=1, maximum=12), "digits of a vector, 1 to 12"]
Repeats = Annotated[int, Bounds(minimum=1, maximum=100)]
"""Repetitions of a sequence."""
NumPriorities = Annotated[int, Bounds(minimum=1, maximum=201)]
"""Number of vectors that can have different priorities."""


class VectorCopy(SequenceTask):
    """Copy vectors of binary digits: "01 11" is "01 11". (Graves et al. 2014, section 4.1.)"""

    word = "vector_copy"
    items = "vectors"
    bits: Digits = 8

    def lines(self, draws: Draws) -> Lines:
        keys = draws.keys_by_length(
            lambda numbers, length: tuple(numbers.choices(range(2**self.bits), k=length))
        )
        lines = [join_vectors(key, self.bits) for key in keys]
        return Lines(lines, lines)


class RepeatCopy(SequenceTask):
    """Repeat vectors as the number behind says: "01 11 00@-0.50" is "01 11 01 11", 4 at most.

    The number is count / `max_repeats` - 1, which says 2 `max_repeats` by 1.00 (Graves et al. 2014,
    section 4.2, make mean 0 and variance 1 of it by another such line). It stands behind a vector
    of zeros.

    Settings:
        min_repeats: the least repetitions
        max_repeats: the most repetitions in training and validation, 1 to 100
        test_repeats: repetitions in the test, with each of the lengths, at most twice the most;
            null: as in training
    """

    word = "repeat_copy"
    items = "vectors"
    bits: Digits = 8
    min_repeats: Repeats = 1
    max_repeats: Repeats = 10
    test_repeats: Lengths | None = None
    max_length: Longest = 10

    def lines(self, draws: Draws) -> Lines:
        tested = self.test_repeats or ()
        self._check_repeats(max(tested, default=0))
        if draws.split == "test" and tested:
            keys = []
            for times in tested:
                keys += draws.keys_by_length(partial(self._random_pair, times=times))
        else:
            keys = draws.keys_by_length(self._random_pair)
        rows = [(times, join_vectors(key, self.bits)) for times, *key in keys]
        sources = [
            f"{line} {0:0{self.bits}b}{channel(times / self.max_repeats - 1)}"
            for times, line in rows
        ]
        return Lines(sources, [" ".join([line] * times) for times, line in rows])

    def _check_repeats(self, tested: int) -> None:
        if self.min_repeats > self.max_repeats:
            message = f"the least ({self.min_repeats}) is more than the most ({self.max_repeats})"
            raise TaskError(
                "min_repeats", message, f"write `min_repeats: {self.max_repeats}` or less"
            )
        if tested > (most := 2 * self.max_repeats):
            message = (
                f"no number means {tested} repetitions: the largest number, 1.00, means {most}"
            )
            raise TaskError(
                "test_repeats", message, f"ask for at most {most}, or raise `max_repeats`"
            )

    def _random_pair(self, numbers: random.Random, length: int, times: int = 0) -> Key:
        times = times or numbers.randint(self.min_repeats, self.max_repeats)
        return times, *numbers.choices(range(2**self.bits), k=length)


class AssociativeRecall(SequenceTask):
    """Recall the item after the one in question: "; 01 11 ; 10 00 ? 01 11" is "10 00".

    All items of a line are different, and the last is never asked for. (Graves et al. 2014, section
    4.3.) The tokenizer needs `marks: [";", "?"]`.

    Settings:
        vectors: vectors of an item
        min_length: items of the shortest line, 2 or more
    """

    word = "associative_recall"
    items = "items"
    row = "line"
    bits: Digits = 6
    vectors: Length = 3
    min_length: Length = 2
    max_length: Longest = 6

    def lines(self, draws: Draws) -> Lines:
        different = 2 ** (self.bits * self.vectors)
        self._check_items(different)

        def random_items(numbers: random.Random, length: int) -> Key:
            return numbers.randrange(length - 1), *numbers.sample(range(different), length)

        def item(index: int) -> str:
            vectors = (index >> self.bits * at & 2**self.bits - 1 for at in range(self.vectors))
            return join_vectors(vectors, self.bits)

        sources, targets = list[str](), list[str]()
        for which, *key in draws.keys_by_length(random_items):
            items = [item(index) for index in key]
            listed = " ".join(f"; {text}" for text in items)
            sources.append(f"{listed} ? {items[which]}")
            targets.append(items[which + 1])
        return Lines(sources, targets)

    def _check_items(self, different: int) -> None:
        tested = self.test_lengths or ()
        for setting, shortest in (
            ("min_length", self.min_length),
            ("test_lengths", min(tested, default=2)),
        ):
            if shortest < 2:
                raise TaskError(
                    setting, "one item has none after it", f"write `{setting}` of 2 or more"
                )
        if max([self.max_length, *tested]) > different:
            message = (
                f"of {self.vectors} vectors of {self.bits} digits there are only {different}"
                " different items"
            )
            raise TaskError("vectors", message, "raise `vectors` or `bits`, or ask for fewer items")


class PrioritySort(SequenceTask):
    """Sort vectors by priority, and keep the highest: "01@-0.20 11@0.90 10@0.00" is "11 10".

    The priorities of a line are different hundredths from -1.00 to 1.00, evenly drawn. (Graves et
    al. 2014, section 4.5: the 16 highest of 20.) The tokenizer needs `numbers: true`.

    Settings:
        share: the part of the vectors that is given back, 0 < share <= 1, rounded, and at least one
    """

    word = "priority_sort"
    items = "vectors"
    bits: Digits = 8
    share: PositiveProportion = 0.8
    min_length: Annotated[NumPriorities, SHORTEST] = 20
    max_length: Annotated[NumPriorities, LONGEST] = 20
    test_lengths: Annotated[Annotated[Sequence[NumPriorities], Distinct()] | None, TESTED] = None

    def lines(self, draws: Draws) -> Lines:
        def random_vectors(numbers: random.Random, length: int) -> Key:
            return *numbers.choices(range(2**self.bits), k=length), *numbers.sample(LEVELS, length)

        keys = draws.keys_by_length(random_vectors)
        sources, targets = list[str](), list[str]()
        for key in keys:
            vectors, levels = key[: len(key) // 2], key[len(key) // 2 :]
            row = [*zip(levels, vectors, strict=True)]
            words = [f"{vector:0{self.bits}b}{channel(level / 100)}" for level, vector in row]
            highest = sorted(row, reverse=True)[: max(1, round(self.share * len(row)))]
            sources.append(" ".join(words))
            targets.append(join_vectors((vector for _, vector in highest), self.bits))
        return Lines(sources, targets)


def join_vectors(vectors: Iterable[int], bits: int) -> str:
    """Return vectors as words, the most significant digit first."""
    return " ".join(f"{vector:0{bits}b}" for vector in vectors)


def channel(value: float) -> str:
    """Return the number behind a vector, with two decimals; zero has no sign."""
    return f"@{round(value, 2) + 0.0:.2f}"
