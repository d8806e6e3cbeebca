"""Programs over memory cells, for `nram`: ram_access, ram_increment, ram_copy (Kurach et al. 2016, section 5.1).

A source is a tape, all its cells in order, each an integer below the number of cells; `integers: {below: N}` reads it.
The target is the tape as the program leaves it. An array has no 0 in it, and 0 in the cells that nothing is said of.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from blocks.core.contract import Bounds
from composer.data.tasks.draws import (
    Ask,
    Key,
    Length,
    Lengths,
    Lines,
    Seed,
    Size,
    Split,
    TaskError,
    asked,
    draw_lengths,
    lengths_of,
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
        ask = asked(split, epoch, endless, seed, train, val, test)
        lengths = lengths_of(min_length, max_length, test_lengths)
        _must_fit(ask, lengths, cells, program.needed)
        keys = draw_lengths(ask, lengths, lambda numbers, length: program.any_key(numbers, length, cells))
        pairs = [program.run(key) for key in keys]
        return Lines([_tape(before, cells) for before, _ in pairs], [_tape(after, cells) for _, after in pairs])

    task.__name__ = task.__qualname__ = name
    _, _, settings = (inspect.getdoc(task) or "").partition("\n\n")
    task.__doc__ = f"{first_lines}\n\n{settings}\n"
    return task


def _must_fit(ask: Ask, lengths: Lengths, cells: int, needed: Callable[[int], int]) -> None:
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
