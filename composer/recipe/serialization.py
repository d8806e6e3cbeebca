"""Recipe objects: what the classes of `composer.recipe.classes` share, from objects to YAML and from YAML to objects.

Only what was given is written: a setting that was left out is not its default. Each form in Python has its form in
YAML: `Dropout()` is `dropout`, `Dropout(0.1)` is `dropout: 0.1`, `Dropout(rate=0.1)` is `dropout: {rate: 0.1}`. Plain
lists, mappings and texts may be anywhere inside. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from composer.atomic_io import atomic_write, os_errors_as_run_errors
from composer.errors import Fault, KeyPath, RecipeError, RunError, format_path
from composer.recipe import schema_generator
from composer.recipe.recipe import Recipe, load_node
from composer.recipe.schema_reader import RECIPE_NAME, VARIABLE_TEXT
from composer.recipe.validation import schema_faults
from composer.recipe.yaml_reader import MAX_DEPTH, dump, parse, to_data
from composer.recipe.yaml_reader import read as read_yaml
from composer.suggest import did_you_mean

PYTHON_SOURCE = "<python>"
"""What the YAML of objects is called in faults."""


class Unset(enum.Enum):
    """The value of a setting that was not given: it is not written, and the recipe's default holds."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET = Unset.UNSET


@dataclass(frozen=True)
class Var:
    """A value of the recipe's `vars`, `$name`. It can be used wherever a value can; in an f-string it is `${name}`.

    `braced` is True for one that was read as `${name}`, which is written like this again.
    """

    name: str
    braced: bool = dataclasses.field(default=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Var({self.name!r}{', braced=True' if self.braced else ''})"

    def __str__(self) -> str:
        return f"{self}" if self.braced else f"${self.name}"

    def __format__(self, _: str) -> str:
        return f"${{{self.name}}}"


class RecipeObject:
    """A part of a recipe: a section, or a block, an optimizer, ... whose name is `word` ("" for a section).

    `others` is the field that holds keys whose names are not known before, or "".
    """

    word: ClassVar[str] = ""
    others: ClassVar[str] = ""
    _is_short = False  # whether its first setting was given without its name
    _has_braces = False  # whether it was read from `NAME: {}`, which is written like this again

    def __init_subclass__(cls, word: str = "", others: str = "") -> None:
        cls.word, cls.others = word, others

    if not TYPE_CHECKING:  # type checkers see the constructor of the dataclass

        def __new__(cls, *args: Any, **settings: Any) -> Self:
            names = [field.name for field in fields_of(cls).values()]
            for name in settings:
                if name not in names:
                    raise TypeError(f"{cls.__name__} has no setting `{name}`{did_you_mean(name, names)}")
            made = super().__new__(cls)
            object.__setattr__(made, "_is_short", bool(args))
            return made

    def plain(self) -> Any:
        """Return it as plain data, as YAML would be read. Raise RecipeError if it holds anything that is not data."""
        return _to_data(self, ())

    def yaml(self) -> str:
        """Return it as YAML. Raise RecipeError if it holds anything that is not data."""
        return dump(self.plain()).removesuffix("...\n")  # the mark behind a bare word

    def __repr__(self) -> str:
        from rich.pretty import pretty_repr  # imported late: few need it

        return pretty_repr(self, max_width=96, max_depth=2 * MAX_DEPTH)

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of the settings that are not their defaults; no name for a positional one."""
        for field in fields_of(self).values():
            setting = getattr(self, field.name)
            if setting is not field.default and not (field.default == setting and setting is not UNSET):
                yield "" if not field.kw_only and self._is_short else field.name, setting


class RecipeObjectRoot(RecipeObject):
    """A whole recipe in Python."""

    def recipe(
        self, folder: str | Path = ".", overrides: Sequence[str] = (), data_dir: str | Path | None = None
    ) -> Recipe:
        """Return the recipe, validated and with its defaults, as `composer.load` returns it from a file.

        `folder` is where it would lie: its bases and data files are looked up from there. `overrides` are `key=value`
        settings laid over it. Raise RecipeError with every fault; its lines are those of the YAML.
        """
        # its file would be called as its runs are, if it has a plain name
        name = self.plain().get("name")
        stem = name if isinstance(name, str) and re.fullmatch(RECIPE_NAME, name) else "recipe"
        return load_node(Path(folder) / f"{stem}.yaml", parse(self.yaml(), PYTHON_SOURCE), overrides, data_dir)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write it as YAML, and return the path. Comments of a file that it was read from are lost.

        Raises RunError if the file exists and `overwrite` is False, or if it cannot be written.
        """
        file, text = Path(path), self.yaml()
        if file.exists() and not overwrite:
            raise RunError.of("this file exists already", "choose another name, or pass `overwrite=True`", str(file))
        with os_errors_as_run_errors(file, "this file cannot be written", "name another"):
            atomic_write(file, text.encode())
        return file


def fields_of(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of an object or a class by their keys in a recipe: `from_` is `from`."""
    return {field.name.rstrip("_"): field for field in dataclasses.fields(kind)}


@cache
def first_field(kind: Any) -> str:
    """Return the key of the setting that may be given without its name, or ""."""
    return next((key for key, field in fields_of(kind).items() if not field.kw_only), "")


# ------------------------------------------------------------------------------------------- from objects to data


def _to_data(value: Any, path: KeyPath) -> Any:
    if len(path) > MAX_DEPTH:
        message = f"this is nested deeper than {MAX_DEPTH} levels"
        raise _not_data_error(path, message, "give stacks names, and `Use` them")
    if isinstance(value, RecipeObject):
        return _object_data(value, path)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _not_data_error(path, f"a key is text, and this is {key!r}", f"write {str(key)!r}")
        return {key: _to_data(item, (*path, key)) for key, item in value.items() if item is not UNSET}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_to_data(item, (*path, index)) for index, item in enumerate(value)]
    return _scalar(value, path)


def _object_data(value: RecipeObject, path: KeyPath) -> Any:
    inner = (*path, value.word) if value.word else path
    present = {key: getattr(value, field.name) for key, field in fields_of(value).items()}
    settings = {key: _to_data(setting, (*inner, key)) for key, setting in present.items() if setting is not UNSET}
    if value.others:
        settings |= settings.pop(value.others, {})
    kind: Any = type(value)
    first = first_field(kind)
    data: Any = settings
    if value._is_short and set(settings) == {first} and not isinstance(settings[first], dict):
        data = settings[first]
    if not value.word:
        return data
    return value.word if settings == {} and not value._has_braces else {value.word: data}


def _scalar(value: Any, path: KeyPath) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Var):
        return str(value)
    if isinstance(value, numbers.Integral):  # NumPy's, for instance
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, str):  # a subclass: its own `__str__` may return anything
        return str.__str__(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # an array of one number, or one truth value
        return _scalar(value.item(), path)
    if isinstance(value, type) and issubclass(value, RecipeObject):
        raise _not_data_error(path, f"`{value.__name__}` is a class", f"write `{value.__name__}(...)`")
    hint = "give a text, a number, a boolean, a list, a mapping, or a class of composer.recipe.classes"
    raise _not_data_error(path, f"a recipe cannot hold a {type(value).__name__}", hint)


def _not_data_error(path: KeyPath, message: str, hint: str) -> RecipeError:
    return RecipeError([Fault(PYTHON_SOURCE, 0, 0, "type", format_path(path), message, hint)])


# ------------------------------------------------------------------------------------------- from data to objects


def read_recipe(path: str | Path, kind: Any) -> Any:
    """Return the objects of a recipe's file, as it is written: with `vars` and `extends`.

    What fits no class stays plain data. Raise RecipeError if the file is no recipe at all.
    """
    root = read_yaml(Path(path), str(path))
    if root.value.keys() - fields_of(kind).keys():
        raise RecipeError(fault for fault in schema_faults(root, schema_generator.load()) if fault.code == "unknown")
    return _construct(kind, {"recipe": UNSET, **to_data(root)})


def from_data(data: Any, hint: Any) -> Any:
    """Return plain data as the objects that an annotation allows; what fits none of them stays as it is."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    if isinstance(data, dict):
        return _from_mapping(data, kinds)
    if isinstance(data, str) and re.fullmatch(VARIABLE_TEXT, data):
        return Var(data.strip("${}"), braced=data.startswith("${"))
    choice = _choices(kinds).get(data) if isinstance(data, str) else None
    if choice is not None and not _required(choice):
        return choice()
    items = [typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is Sequence]
    if isinstance(data, list) and items:
        return [from_data(item, items[0]) for item in data]
    short = [] if data is None else [kind for kind in _sections(kinds) if first_field(kind)]
    return _construct_choice(short[0], data, data) if short else data


def _classes(kinds: Sequence[Any]) -> list[Any]:
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RecipeObject)]


def _sections(kinds: Sequence[Any]) -> list[Any]:
    """Return the sections among them, whose keys are in the mapping itself."""
    return [kind for kind in _classes(kinds) if not kind.word and dataclasses.is_dataclass(kind)]


def _choices(kinds: Sequence[Any]) -> dict[str, Any]:
    """Return the classes among which a word chooses."""
    return {choice.word: choice for kind in _classes(kinds) for choice in kind.__subclasses__() if choice.word}


def _from_mapping(data: dict[str, Any], kinds: Sequence[Any]) -> Any:
    choices = _choices(kinds)
    if len(data) == 1 and (word := next(iter(data))) in choices:
        return _construct_choice(choices[word], data[word], data)
    for section in _sections(kinds):
        if _fits(section, data):
            return _construct(section, data)
    values = next((typing.get_args(kind)[1] for kind in kinds if typing.get_origin(kind) is Mapping), Any)
    return {key: from_data(value, values) for key, value in data.items()}


def _construct_choice(kind: Any, settings: Any, otherwise: Any) -> Any:
    """Return the object with these settings, or with this first one; `otherwise` if it can have neither."""
    if isinstance(settings, dict):
        return _construct(kind, settings) if _fits(kind, settings) else otherwise
    first = first_field(kind)
    if settings is None or not first or _required(kind) - {first}:
        return otherwise
    return kind(from_data(settings, type_hints(kind)[first]))


def _fits(kind: Any, data: Mapping[str, Any]) -> bool:
    return _required(kind) <= set(data) and (bool(kind.others) or set(data) <= set(type_hints(kind)))


def _construct(kind: Any, data: Mapping[str, Any]) -> Any:
    hints, fields = type_hints(kind), fields_of(kind)
    settings = {fields[key].name: from_data(value, hints[key]) for key, value in data.items() if key in hints}
    rest = {key: value for key, value in data.items() if key not in hints}
    if kind.others and rest:
        settings[kind.others] = rest
    made = kind(**settings)
    object.__setattr__(made, "_has_braces", not data)
    return made


def _required(kind: Any) -> set[str]:
    return {key for key, field in fields_of(kind).items() if field.default is dataclasses.MISSING}


@cache
def type_hints(kind: Any) -> dict[str, Any]:
    """Return the types of the settings of a class, by their keys in a recipe."""
    hints = typing.get_type_hints(kind)
    return {key: hints[field.name] for key, field in fields_of(kind).items() if field.name != kind.others}
