"""Blocks in Python, `block.residual([block.norm("rms")])`: all is of the schema, and no torch is imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from composer.recipe import own_blocks
from composer.recipe.schema_generator import load
from composer.recipe.schema_reader import Schema, describe
from composer.recipe.section import BlockSpec, python_name
from composer.suggest import did_you_mean

PREFIX = "block."


class BlockWords:
    """A function for every block: `block.rnn("gru", bidirectional=True)`. And the decorator `@block("shift")`."""

    def __call__(self, word: Any = "") -> object:
        """Make a Block class a block of this process, for every recipe: `@composer.block("shift")`."""
        return own_blocks.block(word)

    def __getattr__(self, word: str) -> Callable[..., BlockSpec]:
        entry = load()["$defs"].get(PREFIX + word)
        if entry is None:
            raise AttributeError(f"no block is called `{word}`{did_you_mean(word, dir(self))}")
        return _function(word, entry)

    def __dir__(self) -> list[str]:
        return sorted(name.removeprefix(PREFIX) for name in load()["$defs"] if name.startswith(PREFIX))


block = BlockWords()


def _function(word: str, entry: Schema) -> Callable[..., BlockSpec]:
    """Return the function whose keyword arguments are the settings of a block; the first may be given by position."""
    keys = {python_name(key): key for key in entry["properties"]}
    signature = inspect.Signature([_parameter(name, key, entry) for name, key in keys.items()])

    def make(*first: Any, **settings: Any) -> BlockSpec:
        for name in settings.keys() - keys:
            raise TypeError(f"{word} has no setting `{name}`{did_you_mean(name, keys)}")
        bound = signature.bind(*first, **settings).arguments
        return BlockSpec(word, {keys[name]: value for name, value in bound.items()})

    make.__name__ = make.__qualname__ = word
    make.__doc__ = "\n".join([entry["description"], "", "Settings:", *map(_line, keys, entry["properties"].values())])
    vars(make)["__signature__"] = signature
    return make


def _parameter(name: str, key: str, entry: Schema) -> inspect.Parameter:
    is_first, is_required = key == entry.get("x-first"), key in entry["required"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_first else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if is_required else entry["properties"][key].get("default")
    return inspect.Parameter(name, kind, default=default)


def _line(name: str, setting: Schema) -> str:
    meaning = setting.get("description", "")
    return f"    {name}: {meaning + ' ' if meaning else ''}It takes {describe(setting).replace('`', '')}."
