"""Recipes in Python as plain data, which a recipe's file could hold.

Only what differs from its default is written.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, fields
from types import FunctionType
from typing import Any

from composer.errors import Fault, KeyPath, RecipeError, format_path
from composer.recipe.schema_generator import load
from composer.recipe.section import BlockSpec, Section, SidedSection, hint_of, sections_in
from composer.recipe.yaml_reader import MAX_DEPTH

PYTHON_SOURCE = "<python>"
"""What the YAML of a recipe in Python is called in faults."""
ACCEPTED = (
    "give a text, a number, a boolean, a list, a mapping, a block, a section or one of"
    " `composer.choose`"
)
"""What a recipe in Python can hold."""


def to_plain(value: Any, path: KeyPath = ()) -> Any:
    """Return a section, a block or what is in one as plain data; `path` is its place.

    Raises RecipeError if it holds what no recipe can.
    """
    if len(path) > MAX_DEPTH:
        fix = "give stacks names, and `block.use` them"
        raise _no_data(path, f"this is nested deeper than {MAX_DEPTH} levels", fix)
    if isinstance(value, Section):
        return _section(value, path)
    if isinstance(value, BlockSpec):
        return _block(value, path)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _no_data(path, f"a key is text, and this is {key!r}", f"write {str(key)!r}")
        return {key: to_plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_plain(item, (*path, index)) for index, item in enumerate(value)]
    return _scalar(value, path)


def _section(section: Section, path: KeyPath) -> Any:
    word = getattr(section, "word", "")  # of what is chosen
    here = (*path, word) if word else path
    data: dict[str, Any] = {}
    for setting in (setting for setting in fields(section) if setting.init):
        # a choice as it was written
        key, value = setting.name.rstrip("_"), vars(section)[setting.name]
        if setting.name == "encoders" and isinstance(section, SidedSection):
            data |= to_plain(value, here)
            continue
        if isinstance(value, Section):
            _check_class(value, sections_in(hint_of(section, setting.name)), (*here, key))
        plain = to_plain(value, (*here, key))
        if not _is_default(plain, setting.default):
            data[key] = plain
    if not word:
        return data
    return {word: data} if data else word


def _check_class(section: Section, kinds: tuple[type[Section], ...], path: KeyPath) -> None:
    """Refuse a section of another class: with defaults alone it could be taken for any.

    Raises RecipeError.
    """
    if not isinstance(section, kinds):
        names = " or ".join(f"`{kind.__name__}`" for kind in kinds)
        fix = f"give an object of the class {names}" if kinds else "give plain data"
        raise _no_data(path, f"`{type(section).__name__}(...)` does not belong here", fix)


def _is_default(plain: Any, default: Any) -> bool:
    if default is MISSING:
        return False
    if default == ():  # an empty list, or an empty mapping
        return plain in ([], {})
    return repr(plain) == repr(to_plain(default))  # 1 is not 1.0, nor True


def _block(block: BlockSpec, path: KeyPath) -> Any:
    """Return a block as a recipe writes it; a lone list without its setting's name."""
    settings = to_plain(block.settings, (*path, block.word))
    first = load()["$defs"].get(f"block.{block.word}", {}).get("x-first")
    if set(settings) == {first} and isinstance(settings[first], list):
        return {block.word: settings[first]}
    return {block.word: settings} if settings else block.word


def _scalar(value: Any, path: KeyPath) -> object:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's, for instance
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, str):  # a subclass: its own `__str__` may return anything
        return str.__str__(value)
    # an array of one number, or one truth value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _scalar(value.item(), path)
    if isinstance(value, type | FunctionType):
        name, is_ours = value.__name__, str(value.__module__).partition(".")[0] == "composer"
        if is_ours:
            raise _no_data(path, f"`{name}` is not called", f"write `{name}(...)`")
        raise _no_data(path, f"a recipe cannot hold `{name}`, which is not of `composer`", ACCEPTED)
    message = f"a recipe cannot hold a {type(value).__name__}"
    is_in_order = isinstance(value, Iterable) and not isinstance(value, bytes | Set)
    raise _no_data(path, message, "write `list(...)`" if is_in_order else ACCEPTED)


def _no_data(path: KeyPath, message: str, fix: str) -> RecipeError:
    return RecipeError([Fault(PYTHON_SOURCE, 0, 0, "type", format_path(path), message, fix)])
