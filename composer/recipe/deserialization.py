"""From plain data to the objects of `composer.recipe.classes`: what `composer.recipe.classes.read` makes of a file."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from composer.errors import RecipeError
from composer.recipe import schema
from composer.recipe.json_schema import VARIABLE_TEXT
from composer.recipe.node import plain
from composer.recipe.serialization import UNSET, RecipeObject, Var, fields_of, first_field, key_of
from composer.recipe.validation import schema_faults
from composer.recipe.yaml_reader import read as read_source

_VARIABLE = re.compile(VARIABLE_TEXT)


def read_recipe(path: str | Path, kind: Any) -> Any:
    """The objects of a recipe's file, as it is written: with `vars` and `extends`. What fits no class stays plain data.

    Raises RecipeError where the file is no recipe at all.
    """
    root = read_source(Path(path), str(path))
    known = {key_of(each.name) for each in fields_of(kind)}
    if set(root.value) - known:
        raise RecipeError(fault for fault in schema_faults(root, schema.load()) if fault.code == "unknown")
    return _made(kind, {"recipe": UNSET, **plain(root)})


def of_data(data: Any, hint: Any) -> Any:
    """Plain data as the objects that an annotation speaks of; what fits none of them stays as it is."""
    kinds = list(_alternatives(hint))
    if isinstance(data, str):
        return _of_text(data, kinds)
    if isinstance(data, dict):
        return _of_mapping(data, kinds)
    if isinstance(data, list):
        items = [typing.get_args(each)[0] for each in kinds if typing.get_origin(each) is Sequence]
        return [of_data(each, items[0]) for each in data] if items else _of_scalar(data, kinds)
    return data if data is None else _of_scalar(data, kinds)


def _of_scalar(data: Any, kinds: Sequence[Any]) -> Any:
    short = [each for each in _sections(kinds) if first_field(each)]
    return _made_of(short[0], data) if short else data


def _alternatives(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _alternatives(each)
    else:
        yield hint


def _sections(kinds: Sequence[Any]) -> list[Any]:
    """The sections among them, whose keys stand in the mapping itself."""
    classes = [each for each in kinds if isinstance(each, type) and issubclass(each, RecipeObject)]
    return [each for each in classes if not each.word and dataclasses.is_dataclass(each)]


def _choices(kinds: Sequence[Any]) -> dict[str, Any]:
    """The classes among which a word chooses."""
    classes = [each for each in kinds if isinstance(each, type) and issubclass(each, RecipeObject)]
    return {found.word: found for each in classes for found in each.__subclasses__() if found.word}


def _of_text(text: str, kinds: Sequence[Any]) -> Any:
    if _VARIABLE.fullmatch(text):
        return Var(text[2:-1])
    chosen = _choices(kinds).get(text)
    if chosen is not None and not _required(chosen):
        return chosen()
    return _of_scalar(text, kinds)


def _of_mapping(data: dict[str, Any], kinds: Sequence[Any]) -> Any:
    choices = _choices(kinds)
    if len(data) == 1 and (word := next(iter(data))) in choices:
        return _made_of(choices[word], data[word], data)
    for section in _sections(kinds):
        if _fits(section, data):
            return _made(section, data)
    values = next((typing.get_args(each)[1] for each in kinds if typing.get_origin(each) is Mapping), Any)
    return {key: of_data(each, values) for key, each in data.items()}


def _made_of(kind: Any, settings: Any, otherwise: Any = None) -> Any:
    """The object with these settings, or with this first one; as it was written where it can be neither."""
    otherwise = settings if otherwise is None else otherwise
    if isinstance(settings, dict):
        return _made(kind, settings) if _fits(kind, settings) else otherwise
    first = first_field(kind)
    if settings is None or not first or _required(kind) - {first}:
        return otherwise
    return kind(of_data(settings, hints(kind)[first]))


def _fits(kind: Any, data: Mapping[str, Any]) -> bool:
    return _required(kind) <= set(data) and (bool(kind.others) or set(data) <= set(hints(kind)))


def _made(kind: Any, data: Mapping[str, Any]) -> Any:
    known = hints(kind)
    names = {key_of(each.name): each.name for each in fields_of(kind)}
    settings = {names[key]: of_data(each, known[key]) for key, each in data.items() if key in known}
    if kind.others:
        settings |= {kind.others: rest} if (rest := {key: data[key] for key in data if key not in known}) else {}
    made = kind(**settings)
    object.__setattr__(made, "_spelt", not data)  # `copy: {}` is another text than `copy`
    return made


def _required(kind: Any) -> set[str]:
    missing = dataclasses.MISSING
    return {key_of(each.name) for each in fields_of(kind) if each.default is missing}


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The types of the settings of a class, by their keys in a recipe."""
    found = typing.get_type_hints(kind)
    names = [each.name for each in fields_of(kind)]
    return {key_of(name): found[name] for name in names if name != kind.others}
