"""The words of a recipe in Python: `block.residual([block.norm("rms")])`.

All is of the schema, and no torch is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from composer.recipe import choices, own_blocks
from composer.recipe.registry import CHOICES
from composer.recipe.schema_generator import load
from composer.recipe.schema_reader import Schema, describe, no_setting
from composer.recipe.section import BlockSpec, python_name
from composer.suggest import did_you_mean

Named = TypeVar("Named", covariant=True)
Make = Callable[[str, dict[str, Any]], Named]
"""What makes something of its word and its settings."""


class Words(Generic[Named]):
    """A function for every word of a table of the schema; `noun` is what one of them is called."""

    def __init__(self, table: str, noun: str, make: Make[Named]) -> None:
        self._prefix, self._noun, self._make = f"{table}.", noun, make

    def __getattr__(self, word: str) -> Callable[..., Named]:
        if word.startswith("_"):  # what `copy` and `pickle` look for, before there is anything here
            raise AttributeError(word)
        entry = load()["$defs"].get(self._prefix + word)
        if entry is None:
            raise AttributeError(
                f"no {self._noun} is called `{word}`{did_you_mean(word, dir(self))}"
            )
        return _function(word, entry, self._make)

    def __dir__(self) -> list[str]:
        names = load()["$defs"]
        return sorted(
            name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)
        )


class BlockWords(Words[BlockSpec]):
    """A function for every block: `block.rnn("gru", bidirectional=True)`.

    And the decorator `@block("shift")`.
    """

    def __call__(self, word: Any = "") -> object:
        """Register a Block class in this process: `@composer.block("shift")`."""
        return own_blocks.block(word)


def _block(word: str, settings: dict[str, Any]) -> BlockSpec:
    return BlockSpec(word, {name.rstrip("_"): value for name, value in settings.items()})


def _choice(table: str) -> Words[Any]:
    """Return the functions that make the objects of a table of `CHOICES`."""
    choice = CHOICES[table]

    def make(word: str, settings: Mapping[str, Any]) -> object:
        return choice.constructors()[word](**settings)

    return Words(table, choice.noun, make)


class Choose:
    """Everything else that a recipe chooses: `choose.optimizer.adam(learning_rate=1e-3)`."""

    optimizer: Words[choices.Optimizer] = _choice("optimizers")
    schedule: Words[choices.Schedule] = _choice("schedules")
    initialization: Words[choices.Initialization] = _choice("initializations")
    decoding: Words[choices.Decoder] = _choice("decoders")
    task: Words[choices.Task] = _choice("tasks")
    tokenizer: Words[choices.Tokenizer] = _choice("tokenizers")
    embedding: Words[choices.EmbeddingKind] = _choice("embeddings")
    output: Words[choices.OutputKind] = _choice("outputs")

    def __dir__(self) -> list[str]:
        return sorted(self.__annotations__)


block = BlockWords("block", "block", _block)
choose = Choose()


def _function(word: str, entry: Schema, make: Make[Named]) -> Callable[..., Named]:
    """Return the function of a word, with its settings as keywords; the first may be positional."""
    keys = {python_name(key): key for key in entry["properties"]}
    signature = inspect.Signature([_parameter(name, key, entry) for name, key in keys.items()])

    def function(*first: Any, **settings: Any) -> Named:
        for name in settings:
            if name not in keys:
                raise TypeError(no_setting(word, name, keys))
        return make(word, signature.bind(*first, **settings).arguments)

    function.__name__ = function.__qualname__ = word
    function.__doc__ = "\n".join(
        [entry["description"], "", "Settings:", *map(_line, keys, entry["properties"].values())]
    )
    vars(function)["__signature__"] = signature
    return function


def _parameter(name: str, key: str, entry: Schema) -> inspect.Parameter:
    is_first, is_required = key == entry.get("x-first"), key in entry["required"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_first else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if is_required else entry["properties"][key].get("default")
    return inspect.Parameter(name, kind, default=default)


def _line(name: str, setting: Schema) -> str:
    meaning = setting.get("description", "").removesuffix(".")
    return (
        f"    {name}: {meaning + '. ' if meaning else ''}It takes"
        f" {describe(setting).replace('`', '')}."
    )
