"""Generated tasks of what a model keeps while it reads. Each word of a source has a word of the answer.

modular_sum: a state that every word changes. multi_query_recall: pairs, of which each is asked for once.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Annotated

from blocks.core.contract import Bounds
from composer.data.tasks import Draws, Key, Length, Lines, TaskError, task

Modulus = Annotated[int, Bounds(minimum=2, maximum=100)]
"""What sums are divided by."""
Names = Annotated[int, Bounds(minimum=2, maximum=10_000)]
"""Number of different keys, or of different values."""

NOT_ASKED = "."


@task("numbers")
def modular_sum(draws: Draws, *, modulus: Modulus = 2) -> Lines:
    """Add numbers, and give each sum so far modulo m: "1 0 1 1" is "1 1 0 1". With a modulus of 2 it is parity.

    Grazzi et al. 2024 (arXiv 2411.12537) ask for the last sum of a line alone.

    Settings:
        modulus: the number m that sums are divided by; the numbers are 0 to m - 1
    """
    keys = draws.keys_by_length(lambda numbers, length: tuple(numbers.choices(range(modulus), k=length)))
    return Lines.of(keys, ((total % modulus for total in accumulate(key)) for key in keys))


@task("pairs", "line", min_length=2, max_length=8)
def multi_query_recall(
    draws: Draws, *, keys: Names = 64, values: Names = 64, min_length: Length = 2, max_length: Length = 8
) -> Lines:
    """Recall the value of each key: "k3 v7 k1 v2 k1 k3" is ". . . . v2 v7".

    Pairs of different keys and any values come first, then all the keys in another order. (Multi-query associative
    recall: Arora et al. 2023, arXiv 2312.04927, whose queries stand among the pairs.)

    Settings:
        keys: different keys, at least as many as the longest line has pairs
        values: different values
        min_length: pairs of the shortest line
        max_length: pairs of the longest training and validation line
    """
    lengths = {"min_length": min_length, "max_length": max_length, "test_lengths": max(draws.test_lengths, default=1)}
    for setting, length in lengths.items():
        if length > keys:
            message = f"{length} pairs have {length} different keys, and there are only {keys}"
            raise TaskError(setting, message, f"write `keys: {length}` or more, or shorter lines")

    def random_pairs(numbers: random.Random, length: int) -> Key:
        chosen = numbers.sample(range(keys), length)
        return *chosen, *numbers.choices(range(values), k=length), *numbers.sample(chosen, length)

    sources, targets = list[list[str]](), list[list[str]]()
    for row in draws.keys_by_length(random_pairs):
        count = len(row) // 3
        value_of = dict(zip(row[:count], row[count : 2 * count], strict=True))
        queries = row[-count:]
        pairs = [word for key, value in value_of.items() for word in (f"k{key}", f"v{value}")]
        sources.append([*pairs, *(f"k{key}" for key in queries)])
        targets.append([*[NOT_ASKED] * 2 * count, *(f"v{value_of[key]}" for key in queries)])
    return Lines.of(sources, targets)
