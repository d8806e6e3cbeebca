"""Generated tasks, which need no files: `TASKS` by name, and how their pairs are drawn.

A task is a function with the decorator `task` in any module of this folder; nothing else is to be done to add one. All
of a split is a function of the settings, the seed and the epoch. A pair belongs to test, val or train by a hash of its
source, so the splits are disjoint by construction, whatever their sizes, seeds, epochs and ranges.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pkgutil
import random
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from blocks.core.contract import Bounds, Distinct
from composer.recipe.sections import Seed

Split = Literal["train", "val", "test"]
Size = Annotated[int, Bounds(minimum=1, maximum=100_000_000)]
"""Number of pairs."""
Length = Annotated[int, Bounds(minimum=1, maximum=100_000)]
"""Length of a sequence, or number of digits."""
Lengths = Annotated[list[Length], Distinct()]
Key = tuple[int, ...]
"""What a source is made of; equal keys are equal sources."""


class Lines(NamedTuple):
    """The two sides of a split, line by line."""

    source: list[str]
    target: list[str]

    @classmethod
    def of(cls, sources: Iterable[Iterable[object]], targets: Iterable[Iterable[object]]) -> Lines:
        """Return lines of words with single spaces between."""
        return cls([" ".join(map(str, row)) for row in sources], [" ".join(map(str, row)) for row in targets])


class TaskError(ValueError):
    """Settings with which a task cannot be generated; `setting` is the one at fault. It knows no YAML."""

    def __init__(self, setting: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.setting, self.message, self.fix = setting, message, fix


class Draws(NamedTuple):
    """Random draws of the pairs of one split: their number, seed and epoch, and the lengths of a task that has some.

    `shortest` to `longest` are the lengths of training and validation, `test_lengths` those of the test; without these
    the test is as training.
    """

    split: Split
    pairs: int
    seed: int
    epoch: int
    shortest: int
    longest: int
    test_lengths: Sequence[int]

    def generator(self, *about: object) -> random.Random:
        """Return random numbers that depend on the split, seed, epoch and `about` alone."""
        epoch = ["epoch", self.epoch] if self.epoch else []
        return random.Random(" ".join(str(part) for part in (self.split, self.seed, *epoch, *about)))

    def keys(self, make: Callable[[random.Random], Key], *about: object) -> list[Key]:
        """Draw keys that belong to the split. Those of val and test are all different. Raises TaskError."""
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
        """Draw keys of evenly drawn lengths; in the test, all pairs of each test length, whatever the others are."""
        if self.split != "test" or not self.test_lengths:
            return self.keys(lambda numbers: make(numbers, numbers.randint(self.shortest, self.longest)))

        def keys_of(length: int) -> list[Key]:
            return self.keys(lambda numbers: make(numbers, length), "length", length)

        return [key for length in self.test_lengths for key in keys_of(length)]


def split_of(key: Sequence[int]) -> Split:
    """Return the split of a pair: 5 % of all keys are test, 5 % val, the others train."""
    text = " ".join(map(str, key))
    percent = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return "test" if percent < 5 else "val" if percent < 10 else "train"


TASKS: dict[str, Callable[..., Lines]] = {}
"""Every generated task by its word in a recipe: `task(split, epoch, *, settings)`."""


def task(
    items: str, of: str = "sequence", *, pairs: str = "pairs", length: Any = Length, **defaults: Any
) -> Callable[[Callable[..., Lines]], Callable[..., Lines]]:
    """Register a function, `function(draws, *, settings) -> Lines`, as the task of its name.

    The settings that tasks have in common are added to its own: the lengths, counted in `items` of a sequence (none
    without `items`), the sizes of the splits in `pairs`, `seed` and `endless`. `defaults` are theirs where not the
    usual ones. A function that reads one of them declares and documents it itself.
    """
    tested = f"{items} of the test {of}s, to ask for longer ones than were trained; null: as in training"
    common: dict[str, tuple[Any, Any, str]] = {
        "min_length": (length, 1, f"{items} of the shortest {of}"),
        "max_length": (length, 20, f"{items} of the longest training and validation {of}"),
        "test_lengths": (Annotated[list[length], Distinct()] | None, None, tested),
        "train": (Size, 20_000, f"training {pairs} of an epoch"),
        "val": (Size, 500, f"validation {pairs}"),
        "test": (Size, 1_000, f"test {pairs}{', of each test length' if items else ''}"),
        "seed": (Seed, 1, "what the draws start from"),
        "endless": (bool, True, f"whether every epoch has new training {pairs}"),
    }

    def register(function: Callable[..., Lines]) -> Callable[..., Lines]:
        _, *own = inspect.signature(function).parameters.values()
        declared = {parameter.name for parameter in own}
        lengths = () if items else ("min_length", "max_length", "test_lengths")
        added = {name: entry for name, entry in common.items() if name not in (*declared, *lengths)}
        positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        first = [inspect.Parameter("split", positional), inspect.Parameter("epoch", positional, default=0)]
        last = [
            inspect.Parameter(name, keyword, default=defaults.get(name, default))
            for name, (_, default, _) in added.items()
        ]
        signature = inspect.Signature([*first, *own, *last], return_annotation=Lines)

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Lines:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values = bound.arguments
            return function(_draws(values), **{name: values[name] for name in declared})

        hints = typing.get_type_hints(function, include_extras=True)
        generate.__annotations__ = hints | {name: Annotated[hint, text] for name, (hint, _, text) in added.items()}
        vars(generate)["__signature__"] = signature  # what `inspect.signature` shows, and so the schema
        TASKS[function.__name__] = generate
        return generate

    return register


def _draws(values: dict[str, Any]) -> Draws:
    """Return the draws of a task called with these settings. Raises TaskError."""
    split: Split = values["split"]
    shortest, longest = values.get("min_length", 1), values.get("max_length", 1)
    if shortest > longest:
        message = f"the shortest ({shortest}) is longer than the longest ({longest})"
        raise TaskError("min_length", message, f"write `min_length: {longest}` or less")
    test_lengths = values.get("test_lengths") or ()
    # only the training pairs of an endless task change from epoch to epoch
    epoch = values["epoch"] if values["endless"] and split == "train" else 0
    return Draws(split, values[split], values["seed"], epoch, shortest, longest, test_lengths)


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
