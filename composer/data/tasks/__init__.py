"""Generated tasks, which need no files: `TASKS` by name, and how their pairs are drawn.

A task is a class with its `word` in any module of this folder. To add one, write it, and let
`seqcomposer schema --write` add it to the schema. A pair belongs to test, val or train by a hash of
its source, so the splits are disjoint by construction, whatever their sizes, seeds, epochs and
ranges. Importing this imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, ClassVar, NamedTuple

from blocks.core.settings import Bounds, Distinct
from composer.recipe.choices import NumPairs, Task

Length = Annotated[int, Bounds(minimum=1, maximum=100_000)]
"""Length of a sequence, or number of digits."""
Lengths = Annotated[Sequence[Length], Distinct()]
SHORTEST = "{items} of the shortest {row}"
LONGEST = "{items} of the longest training and validation {row}"
TESTED = (
    "{items} of the test {row}s, to ask for longer ones than were trained; null: as in training"
)
Shortest = Annotated[Length, SHORTEST]
Longest = Annotated[Length, LONGEST]
Key = tuple[int, ...]
"""The numbers that a source is made from; equal keys are equal sources."""


class Lines(NamedTuple):
    """The two sides of a split, line by line."""

    source: list[str]
    target: list[str]

    @classmethod
    def of(cls, sources: Iterable[Iterable[object]], targets: Iterable[Iterable[object]]) -> Lines:
        """Return lines of words with single spaces between."""
        return cls(
            [" ".join(map(str, row)) for row in sources],
            [" ".join(map(str, row)) for row in targets],
        )


class TaskError(ValueError):
    """Settings with which a task cannot be generated; `setting` is at fault. It knows no YAML."""

    def __init__(self, setting: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.setting, self.message, self.fix = setting, message, fix


class Draws(NamedTuple):
    """Random draws of the pairs of one split: their number, seed and epoch, and a task's lengths.

    `shortest` to `longest` are the lengths of training and validation, `test_lengths` those of the
    test; without these the test is as training.
    """

    split: str
    pairs: int
    seed: int
    epoch: int
    shortest: int = 1
    longest: int = 1
    test_lengths: Sequence[int] = ()

    def generator(self, *about: object) -> random.Random:
        """Return random numbers that depend on the split, seed, epoch and `about` alone."""
        epoch = ["epoch", self.epoch] if self.epoch else []
        return random.Random(
            " ".join(str(part) for part in (self.split, self.seed, *epoch, *about))
        )

    def keys(self, make: Callable[[random.Random], Key], *about: object) -> list[Key]:
        """Draw keys of the split; those of val and test all differ. Raises TaskError."""
        numbers = self.generator(*about)
        keys: list[Key] = []
        seen: set[Key] = set()
        # a task with too few different keys would never end
        for _ in range(100 * self.pairs + 10_000):
            key = make(numbers)
            if key in seen or split_of(key) != self.split:
                continue
            keys.append(key)
            if self.split != "train":
                seen.add(key)
            if len(keys) == self.pairs:
                return keys
        which = f" of {' '.join(map(str, about))}" if about else ""
        message = f"only {len(keys)} of the {self.pairs} {self.split} pairs{which} could be found"
        raise TaskError(self.split, message, "ask for fewer pairs, or make the task larger")

    def keys_by_length(self, make: Callable[[random.Random, int], Key]) -> list[Key]:
        """Draw keys of evenly drawn lengths; in the test, all pairs of each test length."""
        if self.split != "test" or not self.test_lengths:
            return self.keys(
                lambda numbers: make(numbers, numbers.randint(self.shortest, self.longest))
            )

        def keys_of(length: int) -> list[Key]:
            return self.keys(lambda numbers: make(numbers, length), "length", length)

        return [*chain.from_iterable(map(keys_of, self.test_lengths))]


def split_of(key: Sequence[int]) -> str:
    """Return the split of a pair: 5 % of all keys are test, 5 % val, the others train."""
    text = " ".join(map(str, key))
    percent = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return "test" if percent < 5 else "val" if percent < 10 else "train"


TASKS: dict[str, type[Task]] = {}
"""Every generated task by its word in a recipe."""


class DrawnTask(Task):
    """Task whose pairs are drawn at random."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "word" in vars(cls):
            TASKS[cls.word] = cls

    @abstractmethod
    def lines(self, draws: Draws) -> Lines:
        """Return the lines of a split. Raises TaskError."""

    def generate(self, split: str, epoch: int = 0) -> Lines:
        """Return the lines of a split; of an endless task those of an epoch."""
        return self.lines(self.draws(split, epoch if self.endless and split == "train" else 0))

    def draws(self, split: str, epoch: int) -> Draws:
        """Return the draws of a split."""
        return Draws(split, getattr(self, split), self.seed, epoch)


class SequenceTask(DrawnTask):
    """Task with sources of several lengths: a `row` is a source, and `items` are its parts."""

    items: ClassVar[str]
    row: ClassVar[str] = "sequence"
    min_length: Shortest = 1
    max_length: Longest = 20
    test_lengths: Annotated[Lengths | None, TESTED] = None
    test: Annotated[NumPairs, "test {pairs}, of each test length"] = 1_000

    def draws(self, split: str, epoch: int) -> Draws:
        """Return the draws of a split. Raises TaskError."""
        shortest, longest = self.min_length, self.max_length
        if shortest > longest:
            message = f"the shortest ({shortest}) is longer than the longest ({longest})"
            raise TaskError("min_length", message, f"write `min_length: {longest}` or less")
        draws = super().draws(split, epoch)
        return draws._replace(
            shortest=shortest, longest=longest, test_lengths=self.test_lengths or ()
        )


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
