"""Sections of a recipe as objects: `recipe.training.clip_norm`, built when first read.

Nothing is checked here: the schema and the checks have accepted the data before. Nothing here
imports torch.
"""

from __future__ import annotations

import keyword
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Self, TypeVar, Union

from blocks.core.settings import Kind
from composer.errors import KeyPath
from composer.recipe.registry import CHOICES
from composer.recipe.schema_reader import no_setting

SomeSection = TypeVar("SomeSection", bound="Section")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A mapping of a recipe with known keys, and its place there."""

    at: KeyPath = field(default=(), init=False, repr=False, compare=False)

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Refuse a setting that there is not. Raises TypeError."""
        names = [setting.name for setting in fields(cls) if setting.init]
        for name in settings:
            if name not in names:
                raise TypeError(no_setting(cls.__name__, name, names))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Make its lists tuples, which are immutable."""
        for name, value in vars(self).items():
            if isinstance(value, list):
                vars(self)[name] = tuple(value)

    def as_data(self) -> dict[str, Any]:
        """Return its keys and their values as plain data, which a recipe could write."""
        return {s.name.rstrip("_"): _as_data(getattr(self, s.name)) for s in fields(self) if s.init}


@dataclass(frozen=True, kw_only=True)
class SidedSection(Section):
    """A section that has, with several encoders, one key per encoder in the place of `source`."""

    encoders: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def as_data(self) -> dict[str, Any]:
        """Return its keys and their values as plain data, those of the encoders among them."""
        data = super().as_data()
        encoders = data.pop("encoders")
        return data | encoders

    def of_side(self, side: str) -> Any:
        """Return the settings of `target`, `source` or an encoder; None without any."""
        return getattr(self, side) if side in ("source", "target") else self.encoders.get(side)


@dataclass(frozen=True)
class BlockSpec:
    """A block of a stack: its word in a recipe, and its settings.

    Stacks among these are data, which a builder opens.

    path: Where it stands in a canonical recipe; its end is the word.
    """

    word: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    path: KeyPath = field(default=(), repr=False, compare=False)

    def as_data(self) -> dict[str, object]:
        """Return it as a mapping of its word to its settings."""
        return {self.word: _as_data(self.settings)}


Stack = Annotated[Sequence[BlockSpec], Kind("stack")]
"""Blocks, the first one first."""


def read_stack(entries: Sequence[Any], at: KeyPath) -> tuple[BlockSpec, ...]:
    """Return the blocks of a stack, single-key mappings or read before, which stands at a path."""
    blocks = []
    for index, entry in enumerate(entries):
        if isinstance(entry, BlockSpec):
            word, settings = entry.word, entry.settings
        else:
            ((word, settings),) = entry.items()
        blocks.append(BlockSpec(word, settings, (*at, index, word)))
    return tuple(blocks)


def output_names(value: Any) -> Iterator[str]:
    """Yield every name that `as` gives anywhere in a stack."""
    if isinstance(value, BlockSpec):
        value = value.settings
    if isinstance(value, Mapping):
        if isinstance(value.get("as"), str):
            yield value["as"]
        value = list(value.values())
    if isinstance(value, list | tuple):
        for child in value:
            yield from output_names(child)


def python_name(key: str) -> str:
    """Return the keyword argument of a setting: `from_` for `from`, which Python reserves."""
    return f"{key}_" if keyword.iskeyword(key) else key


def read_section(kind: type[SomeSection], settings: Mapping[str, Any], at: KeyPath) -> SomeSection:
    """Return the section at a path of a canonical recipe; missing settings get their defaults.

    Raises KeyError where a key is none of its settings.
    """
    hints = type_hints(kind)  # type: ignore[arg-type]  # every class is hashable
    names = {setting.name.rstrip("_"): setting.name for setting in fields(kind) if setting.init}
    values: dict[str, Any] = {}
    if issubclass(kind, SidedSection):
        del names["encoders"]  # whose names are keys themselves
        values["encoders"] = {}
    for key, item in settings.items():
        if key in names:
            values[names[key]] = _read(item, hints[names[key]], (*at, key))
        elif issubclass(kind, SidedSection):
            values["encoders"][key] = _read(item, hints["source"], (*at, key))
        else:
            raise KeyError(key)
    section = kind(**values)
    object.__setattr__(section, "at", at)
    return section


@cache
def type_hints(kind: type[Section]) -> dict[str, object]:
    """Return the annotations of a class's fields, with their bounds and kinds."""
    return typing.get_type_hints(kind, include_extras=True)


def hint_of(section: Section, name: str) -> object:
    """Return the annotation of a section's field."""
    return type_hints(type(section))[name]  # type: ignore[arg-type]  # every class is hashable


def _read(value: Any, hint: Any, at: KeyPath) -> Any:
    """Return a canonical value by its annotation: a section for a mapping, a tuple for a list."""
    if value is None:
        return None
    for kind in _kinds_in(hint):
        if kind == "stack":
            return read_stack(value, at)
        if kind.startswith("choice:"):
            return read_choice(kind.removeprefix("choice:"), value, at)
    if isinstance(value, Mapping):
        sections = sections_in(hint)
        if sections:
            return read_section(sections[0], value, at)
        values = typing.get_args(_of_origin(hint, Mapping))
        value_hint = values[1] if values else Any
        return {key: _read(item, value_hint, (*at, key)) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = typing.get_args(_of_origin(hint, Sequence))
        item_hint = items[0] if items else Any
        return tuple(_read(item, item_hint, (*at, index)) for index, item in enumerate(value))
    return value


def read_choice(table: str, value: Any, at: KeyPath = ()) -> Any:
    """Return the object for a choice: a word, or a word with settings."""
    ((word, settings),) = ({value: {}} if isinstance(value, str) else value).items()
    chosen: type[Section] = pkgutil.resolve_name(CHOICES[table].entries)[word]
    if not isinstance(settings, Mapping):
        from composer.recipe.schema_generator import load  # which describes sections

        settings = {load()["$defs"][f"{table}.{word}"]["x-first"]: settings}
    return read_section(chosen, settings, (*at, word))


class ChoiceField:
    """A field of a choice: given a word, or a word with settings, it becomes an object."""

    def __init__(self, word: str | None) -> None:
        self.word = word

    def __set_name__(self, owner: type[Section], name: str) -> None:
        self.name = name

    def __set__(self, section: Section, value: Any) -> None:
        vars(section)[self.name] = value

    def __get__(self, section: Section | None, owner: type[Section]) -> object:
        if section is None:
            return self.word  # the default of the dataclass
        # stays as it was written, for a check to say what is wrong with it
        value = vars(section)[self.name]
        if isinstance(value, str | Mapping):
            with suppress(LookupError, TypeError, ValueError):
                at = (*section.at, self.name.rstrip("_"))
                return _read(value, hint_of(section, self.name), at)
        return value


def _as_data(value: Any) -> object:
    if isinstance(value, BlockSpec):
        return value.as_data()
    if isinstance(value, Section):
        word = getattr(value, "word", None)  # of what is chosen
        return {word: value.as_data()} if word else value.as_data()
    if isinstance(value, Mapping):
        return {key: _as_data(item) for key, item in value.items()}
    return [*map(_as_data, value)] if isinstance(value, list | tuple) else value


def sections_in(hint: Any) -> tuple[type[Section], ...]:
    """Return the sections among the alternatives of an annotation."""
    kinds = (kind for kind in _alternatives(hint) if isinstance(kind, type))
    return tuple(kind for kind in kinds if issubclass(kind, Section))


def _of_origin(hint: Any, kind: type) -> object:
    """Return the mapping, or the sequence, among an annotation's alternatives; None without any."""
    for alternative in _alternatives(hint):
        origin = typing.get_origin(alternative)
        if isinstance(origin, type) and issubclass(origin, kind):
            return alternative
    return None


def _kinds_in(hint: Any) -> list[str]:
    """Return the names of the `Kind`s in an annotation and its alternatives."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        names: list[str] = []
        for alternative in typing.get_args(hint):
            names += _kinds_in(alternative)
        return names
    notes = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return [note.name for note in notes if isinstance(note, Kind)]


def _alternatives(hint: Any) -> tuple[object, ...]:
    if typing.get_origin(hint) is Annotated:
        return _alternatives(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, types.UnionType):
        inner: list[object] = []
        for alternative in typing.get_args(hint):
            inner += _alternatives(alternative)
        return tuple(inner)
    return (hint,)
