"""What the classes of `composer.recipe.classes` are made of: objects that are written as YAML, losslessly.

Only what was given is written: a setting that was left out is not its default. What stands where it stands in YAML
decides its form: `Dropout()` is `dropout`, `Dropout(0.1)` is `dropout: 0.1`, `Dropout(rate=0.1)` is
`dropout: {rate: 0.1}`. Plain lists, mappings and texts may stand anywhere inside. Nothing here imports torch.
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

from composer.atomic_io import atomic_write
from composer.errors import Fault, RecipeError, RunError, did_you_mean, format_path, os_error_reason
from composer.recipe import schema
from composer.recipe.json_schema import RECIPE_NAME, VARIABLE_TEXT
from composer.recipe.node import to_data
from composer.recipe.recipe import Recipe, load_text
from composer.recipe.validation import schema_faults
from composer.recipe.yaml_reader import MAX_DEPTH, dump
from composer.recipe.yaml_reader import read as read_source

PYTHON_SOURCE = "<python>"
"""What the YAML of objects is called in faults."""
LINE_WIDTH = 96
"""Characters of one line of what `repr` shows."""

Steps = tuple[str | int, ...]
_NAME = re.compile(RECIPE_NAME)


class Unset(enum.Enum):
    """What a setting is that was not given: it is not written, and the recipe's default holds."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET = Unset.UNSET


@dataclass(frozen=True)
class Var:
    """A value of the recipe's `vars`, `$name`. It can stand wherever a value can; in an f-string it is `${name}`.

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
    """A part of a recipe. `word` is what it is called among several of which one is chosen, "" of a section.

    `others` is the setting that holds further keys, whose names are not known before.
    """

    word: ClassVar[str] = ""
    others: ClassVar[str] = ""

    def __init_subclass__(cls, word: str = "", others: str = "") -> None:
        cls.word, cls.others = word, others

    if not TYPE_CHECKING:  # type checkers see the constructor of the dataclass

        def __new__(cls, *given: Any, **settings: Any) -> Self:
            known = [each.name for each in fields_of(cls)]
            for name in settings:
                if name not in known:
                    raise TypeError(f"{cls.__name__} has no setting `{name}`{did_you_mean(name, known)}")
            made = super().__new__(cls)
            object.__setattr__(made, "_short", bool(given))
            return made

    def plain(self) -> Any:
        """It as plain data, as YAML would be read. Raises RecipeError where there is something that is no data."""
        return _to_data(self, ())

    def yaml(self) -> str:
        """It as YAML. Raises RecipeError where there is something that is no data."""
        return dump(self.plain()).removesuffix("...\n")  # the mark behind a bare word

    def __repr__(self) -> str:
        return _source_code(self, 0)


class RecipeObjectRoot(RecipeObject):
    """What a whole recipe can do."""

    def recipe(
        self, folder: str | Path = ".", overrides: Sequence[str] = (), data_dir: str | Path | None = None
    ) -> Recipe:
        """The recipe, validated and with its defaults, as `composer.load` returns it from a file.

        `folder` is where it would lie: what it extends and its data files are looked up from there. `overrides` are
        `key=value` settings laid over it. Raises RecipeError with every fault; the line is that of its YAML.
        """
        # its file would be called as its runs are, if it has a plain name
        name = self.plain().get("name")
        stem = name if isinstance(name, str) and _NAME.fullmatch(name) else "recipe"
        return load_text(self.yaml(), Path(folder) / f"{stem}.yaml", overrides, data_dir, PYTHON_SOURCE)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Writes it as YAML, and returns the path. Comments of a file that it was read from are not kept.

        Raises RunError where the file is there and may not be lost, or cannot be written.
        """
        file, text = Path(path), self.yaml()
        if file.exists() and not overwrite:
            raise RunError.of("this file is there already", "name another, or say `overwrite=True`", str(file))
        try:
            atomic_write(file, text.encode())
        except OSError as error:
            raise RunError.of(
                f"this file cannot be written: {os_error_reason(error)}", "name another", str(file)
            ) from None
        return file


# ------------------------------------------------------------------------------------------- from objects to data


def _to_data(value: Any, path: Steps) -> Any:
    if len(path) > MAX_DEPTH:
        raise _not_data_error(path, f"this is nested deeper than {MAX_DEPTH} levels", "use stacks with names, `Use`")
    if isinstance(value, RecipeObject):
        return _object_data(value, path)
    if isinstance(value, Mapping):
        return {_key(key, path): _to_data(each, (*path, key)) for key, each in value.items() if each is not UNSET}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_to_data(each, (*path, at)) for at, each in enumerate(value)]
    return _scalar(value, path)


def _object_data(value: RecipeObject, path: Steps) -> Any:
    inner = (*path, value.word) if value.word else path
    settings = {key: _to_data(each, (*inner, key)) for key, each in set_fields(value)}
    if value.others:
        settings |= settings.pop(value.others, {})
    kind: Any = type(value)
    first = first_field(kind)
    written: Any = settings
    if _is_short(value) and set(settings) == {first} and not isinstance(settings[first], dict):
        written = settings[first]
    if not value.word:
        return written
    return value.word if settings == {} and not vars(value).get("_spelt") else {value.word: written}


def _is_short(value: RecipeObject) -> bool:
    return bool(vars(value).get("_short"))


def set_fields(value: RecipeObject) -> Iterator[tuple[str, Any]]:
    """The settings that were given, by their keys in a recipe."""
    for each in fields_of(value):
        setting = getattr(value, each.name)
        if setting is not UNSET:
            yield key_of(each.name), setting


def fields_of(written: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of an object or a class; every subclass of Written is a dataclass."""
    return dataclasses.fields(written)


def key_of(name: str) -> str:
    """What a field is called in a recipe: `from_` is `from`."""
    return name.rstrip("_")


@cache
def first_field(kind: Any) -> str:
    """The setting that may be given without its name, or ""."""
    found = fields_of(kind)
    return next((key_of(each.name) for each in found if not each.kw_only), "")


def _key(key: Any, path: Steps) -> str:
    if not isinstance(key, str):
        raise _not_data_error(path, f"a key is text, and this is {key!r}", f"write {str(key)!r}")
    return key


def _scalar(value: Any, path: Steps) -> Any:
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
    if isinstance(value, str):
        return str.__str__(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # what holds one number, or one truth value
        return _scalar(value.item(), path)
    if isinstance(value, type) and issubclass(value, RecipeObject):
        raise _not_data_error(path, f"`{value.__name__}` is a class", f"write `{value.__name__}(...)`")
    raise _not_data_error(
        path,
        f"a recipe cannot hold a {type(value).__name__}",
        "give a text, a number, a truth value, a list, a mapping, or a class of composer.recipe.classes",
    )


def _not_data_error(path: Steps, message: str, hint: str) -> RecipeError:
    return RecipeError([Fault(PYTHON_SOURCE, 0, 0, "type", format_path(path), message, hint)])


# ------------------------------------------------------------------------------------------- as Python


def _source_code(value: Any, indent: int, depth: int = 0) -> str:
    """Python that makes an equal value, over several lines where one is too long; `...` where it is too deep."""
    line = _one_line(value, depth)
    opening, parts, closing = _parts(value)
    if len(line) + indent <= LINE_WIDTH or not parts or depth > 2 * MAX_DEPTH:
        return line
    inner = indent + 4
    lines = [f"{' ' * inner}{name}{_source_code(each, inner, depth + 1)},\n" for name, each in parts]
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"


def _one_line(value: Any, depth: int) -> str:
    opening, parts, closing = _parts(value)
    if parts and depth > 2 * MAX_DEPTH:
        return f"{opening}...{closing}"
    return opening + ", ".join(f"{name}{_one_line(each, depth + 1)}" for name, each in parts) + closing


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    if isinstance(value, RecipeObject):
        return f"{type(value).__name__}(", _arguments(value), ")"
    if isinstance(value, Mapping):
        return "{", [(f"{key!r}: ", each) for key, each in value.items()], "}"
    if isinstance(value, list):
        return "[", [("", each) for each in value], "]"
    return repr(value), [], ""


def _arguments(value: RecipeObject) -> list[tuple[str, Any]]:
    found = []
    for each in fields_of(value):
        setting = getattr(value, each.name)
        if setting is not each.default and not (each.default == setting and setting is not UNSET):
            alone = not each.kw_only and _is_short(value)
            found.append(("" if alone else f"{each.name}=", setting))
    return found


_VARIABLE_NAME = re.compile(VARIABLE_TEXT)


def read_recipe(path: str | Path, kind: Any) -> Any:
    """The objects of a recipe's file, as it is written: with `vars` and `extends`. What fits no class stays plain data.

    Raises RecipeError where the file is no recipe at all.
    """
    root = read_source(Path(path), str(path))
    known = {key_of(each.name) for each in fields_of(kind)}
    if set(root.value) - known:
        raise RecipeError(fault for fault in schema_faults(root, schema.load()) if fault.code == "unknown")
    return _construct(kind, {"recipe": UNSET, **to_data(root)})


def from_data(data: Any, hint: Any) -> Any:
    """Plain data as the objects that an annotation speaks of; what fits none of them stays as it is."""
    kinds = list(_union_members(hint))
    if isinstance(data, str):
        return _from_text(data, kinds)
    if isinstance(data, dict):
        return _from_mapping(data, kinds)
    if isinstance(data, list):
        items = [typing.get_args(each)[0] for each in kinds if typing.get_origin(each) is Sequence]
        return [from_data(each, items[0]) for each in data] if items else _from_scalar(data, kinds)
    return data if data is None else _from_scalar(data, kinds)


def _from_scalar(data: Any, kinds: Sequence[Any]) -> Any:
    short = [each for each in _sections(kinds) if first_field(each)]
    return _construct_choice(short[0], data) if short else data


def _union_members(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _union_members(each)
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


def _from_text(text: str, kinds: Sequence[Any]) -> Any:
    if _VARIABLE_NAME.fullmatch(text):
        return Var(text.strip("${}"), braced=text.startswith("${"))
    chosen = _choices(kinds).get(text)
    if chosen is not None and not _required(chosen):
        return chosen()
    return _from_scalar(text, kinds)


def _from_mapping(data: dict[str, Any], kinds: Sequence[Any]) -> Any:
    choices = _choices(kinds)
    if len(data) == 1 and (word := next(iter(data))) in choices:
        return _construct_choice(choices[word], data[word], data)
    for section in _sections(kinds):
        if _fits(section, data):
            return _construct(section, data)
    values = next((typing.get_args(each)[1] for each in kinds if typing.get_origin(each) is Mapping), Any)
    return {key: from_data(each, values) for key, each in data.items()}


def _construct_choice(kind: Any, settings: Any, otherwise: Any = None) -> Any:
    """The object with these settings, or with this first one; as it was written where it can be neither."""
    otherwise = settings if otherwise is None else otherwise
    if isinstance(settings, dict):
        return _construct(kind, settings) if _fits(kind, settings) else otherwise
    first = first_field(kind)
    if settings is None or not first or _required(kind) - {first}:
        return otherwise
    return kind(from_data(settings, type_hints(kind)[first]))


def _fits(kind: Any, data: Mapping[str, Any]) -> bool:
    return _required(kind) <= set(data) and (bool(kind.others) or set(data) <= set(type_hints(kind)))


def _construct(kind: Any, data: Mapping[str, Any]) -> Any:
    known = type_hints(kind)
    names = {key_of(each.name): each.name for each in fields_of(kind)}
    settings = {names[key]: from_data(each, known[key]) for key, each in data.items() if key in known}
    if kind.others:
        settings |= {kind.others: rest} if (rest := {key: data[key] for key in data if key not in known}) else {}
    made = kind(**settings)
    object.__setattr__(made, "_spelt", not data)  # `copy: {}` is another text than `copy`
    return made


def _required(kind: Any) -> set[str]:
    missing = dataclasses.MISSING
    return {key_of(each.name) for each in fields_of(kind) if each.default is missing}


@cache
def type_hints(kind: Any) -> dict[str, Any]:
    """The types of the settings of a class, by their keys in a recipe."""
    found = typing.get_type_hints(kind)
    names = [each.name for each in fields_of(kind)]
    return {key_of(name): found[name] for name in names if name != kind.others}
