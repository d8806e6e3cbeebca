"""How the pairs of a generated task are drawn: all of a split is a function of the settings, the seed and the epoch.

A pair belongs to test, val or train by a hash of its source, so the splits have nothing in common by construction,
whatever their sizes, seeds, epochs and ranges.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

from blocks.core.contract import Bounds

Split = Literal["train", "val", "test"]
Size = Annotated[int, Bounds(minimum=1, maximum=100_000_000)]
"""A number of pairs."""
Seed = Annotated[int, Bounds(minimum=0, maximum=4_294_967_295)]
"""What the draws start from."""
Length = Annotated[int, Bounds(minimum=1, maximum=100_000)]
"""How long a sequence or a number is."""
Symbols = Annotated[int, Bounds(minimum=2, maximum=702)]
"""How many different symbols there are."""

Key = tuple[int, ...]
"""What a source is made of; equal keys are equal sources."""


class Lines(NamedTuple):
    """The two sides of a split, line by line."""

    source: list[str]
    target: list[str]


class TaskError(ValueError):
    """A task cannot be generated so; `setting` is the setting at fault. It knows no YAML."""

    def __init__(self, setting: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.setting, self.message, self.fix = setting, message, fix


class Request(NamedTuple):
    """Which pairs are wanted: of which split, seed and epoch, and how many."""

    split: Split
    pairs: int
    seed: int
    epoch: int

    def generator(self, *about: object) -> random.Random:
        """Random numbers that are the same whenever the same is asked; others for whatever else they are about."""
        epoch = ["epoch", self.epoch] if self.epoch else []
        return random.Random(" ".join(str(each) for each in (self.split, self.seed, *epoch, *about)))


class Lengths(NamedTuple):
    """The shortest and the longest in training, and those that are tested; none of these: as in training."""

    shortest: int
    longest: int
    tested: Sequence[int]


def request(split: Split, epoch: int, endless: bool, seed: int, train: int, val: int, test: int) -> Request:
    """What is wanted. Only the training pairs of an endless task change from epoch to epoch."""
    pairs = {"train": train, "val": val, "test": test}[split]
    return Request(split, pairs, seed, epoch if endless and split == "train" else 0)


def lengths_of(min_length: int, max_length: int, test_lengths: Sequence[int] | None) -> Lengths:
    """The lengths of a task. Raises TaskError."""
    if min_length > max_length:
        message = f"the shortest ({min_length}) is longer than the longest ({max_length})"
        raise TaskError("min_length", message, f"write `min_length: {max_length}` or less")
    return Lengths(min_length, max_length, list(dict.fromkeys(test_lengths or ())))


def draw_lengths(ask: Request, lengths: Lengths, make: Callable[[random.Random, int], Key]) -> list[Key]:
    """Keys of evenly drawn lengths; of test lengths the pairs asked for of each, whatever the others are."""
    if ask.split != "test" or not lengths.tested:
        return draw(ask, lambda numbers: make(numbers, numbers.randint(lengths.shortest, lengths.longest)))
    return [key for length in lengths.tested for key in draw(ask, _always(make, length), "length", length)]


def _always(make: Callable[[random.Random, int], Key], length: int) -> Callable[[random.Random], Key]:
    return lambda numbers: make(numbers, length)


def draw(ask: Request, make: Callable[[random.Random], Key], *about: object) -> list[Key]:
    """Keys that belong to the split. Those of val and test are all different. Raises TaskError."""
    numbers = ask.generator(*about)
    kept: list[Key] = []
    seen: set[Key] = set()
    for _ in range(100 * ask.pairs + 10_000):
        key = make(numbers)
        if key in seen or split_of(key) != ask.split:
            continue
        kept.append(key)
        if ask.split != "train":
            seen.add(key)
        if len(kept) == ask.pairs:
            return kept
    where = f" of {' '.join(str(each) for each in about)}" if about else ""
    message = f"only {len(kept)} of the {ask.pairs} {ask.split} pairs{where} could be found"
    raise TaskError(ask.split, message, "ask for fewer pairs, or make the task larger")


def split_of(key: Sequence[int]) -> Split:
    """The split to which a pair belongs: 5 % of all keys test, 5 % val, the others train."""
    text = " ".join(map(str, key))
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return "test" if place < 5 else "val" if place < 10 else "train"


def symbol(index: int) -> str:
    """The name of a symbol: a to z, then aa, ab ..."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[index] if index < 26 else letters[index // 26 - 1] + letters[index % 26]
