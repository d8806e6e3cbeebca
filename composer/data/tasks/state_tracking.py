"""Generated tasks of a state kept while reading: an answer's word for each word of a source.

modular_sum: a state that every word changes. multi_query_recall: pairs, of which each is asked for
once.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Annotated

from blocks.core.settings import Bounds
from composer.data.tasks import Draws, Key, Lines, Longest, SequenceTask, Shortest, TaskError

Modulus = Annotated[int, Bounds(minimum=2, maximum=100)]
"""Divisor of sums."""
Names = Annotated[int, Bounds(minimum=2, maximum=10_000)]
"""Number of different keys, or of different values."""

NOT_ASKED = "."


class ModularSum(SequenceTask):
    """Give each sum so far modulo m: "1 0 1 1" is "1 1 0 1". With a modulus of 2 it is parity.

    Grazzi et al. 2024 (arXiv 2411.12537) ask for the last sum of a line alone.

    Settings:
        modulus: the number m that sums are divided by; the numbers are 0 to m - 1
    """

    word = "modular_sum"
    items = "numbers"
    modulus: Modulus = 2

    def lines(self, draws: Draws) -> Lines:
        keys = draws.keys_by_length(
            lambda numbers, length: tuple(numbers.choices(range(self.modulus), k=length))
        )
        return Lines.of(keys, map(self.sums, keys))

    def sums(self, key: Key) -> list[int]:
        """Return each sum so far."""
        return [total % self.modulus for total in accumulate(key)]


class MultiQueryRecall(SequenceTask):
    """Recall the value of each key: "k3 v7 k1 v2 k1 k3" is ". . . . v2 v7".

    Pairs of different keys and any values come first, then all the keys in another order.
    (Multi-query associative recall: Arora et al. 2023, arXiv 2312.04927, whose queries stand among
    the pairs.)

    Settings:
        keys: different keys, at least as many as the longest line has pairs
        values: different values
    """

    word = "multi_query_recall"
    items = "pairs"
    row = "line"
    keys: Names = 64
    values: Names = 64
    min_length: Shortest = 2
    max_length: Longest = 8

    def lines(self, draws: Draws) -> Lines:
        self._check_keys()
        sources, targets = list[list[str]](), list[list[str]]()
        for row in draws.keys_by_length(self._random_pairs):
            count = len(row) // 3
            value_of = dict(zip(row[:count], row[count : 2 * count], strict=True))
            queries = row[-count:]
            pairs = [f"k{key} v{value}" for key, value in value_of.items()]
            sources.append([*pairs, *(f"k{key}" for key in queries)])
            targets.append([*[NOT_ASKED] * 2 * count, *(f"v{value_of[key]}" for key in queries)])
        return Lines.of(sources, targets)

    def _check_keys(self) -> None:
        lengths = {
            "min_length": self.min_length,
            "max_length": self.max_length,
            "test_lengths": max(self.test_lengths or (1,)),
        }
        for setting, length in lengths.items():
            if length > self.keys:
                message = (
                    f"{length} pairs have {length} different keys, and there are only {self.keys}"
                )
                raise TaskError(
                    setting, message, f"write `keys: {length}` or more, or shorter lines"
                )

    def _random_pairs(self, numbers: random.Random, length: int) -> Key:
        chosen = numbers.sample(range(self.keys), length)
        return (
            *chosen,
            *numbers.choices(range(self.values), k=length),
            *numbers.sample(chosen, length),
        )
