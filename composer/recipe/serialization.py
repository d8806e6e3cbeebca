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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from composer.atomic_io import atomic_write
from composer.errors import Fault, RecipeError, RunError, did_you_mean, format_path, os_error_reason
from composer.recipe import schema
from composer.recipe.inheritance import extend_text
from composer.recipe.interpolation import substitute
from composer.recipe.json_schema import RECIPE_NAME
from composer.recipe.node import Node
from composer.recipe.overrides import apply_overrides
from composer.recipe.recipe import Recipe, first_setting, from_node
from composer.recipe.yaml_reader import MAX_DEPTH, dump, parse

SHOWN = "<python>"
"""What the YAML of objects is called in faults."""
WIDE = 96
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
    """`${name}`: a value of the recipe's `vars`. It can stand wherever a value can."""

    name: str

    def __repr__(self) -> str:
        return f"Var({self.name!r})"

    def __str__(self) -> str:
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
        return _plain(self, ())

    def yaml(self) -> str:
        """It as YAML. Raises RecipeError where there is something that is no data."""
        return dump(self.plain()).removesuffix("...\n")  # the mark behind a bare word

    def __repr__(self) -> str:
        return _shown(self, 0)


class RecipeObjectRoot(RecipeObject):
    """What a whole recipe can do."""

    def recipe(
        self, folder: str | Path = ".", overrides: Sequence[str] = (), data_dir: str | Path | None = None
    ) -> Recipe:
        """The recipe, validated and with its defaults, as `composer.load` returns it from a file.

        `folder` is where it would lie: what it extends and its data files are looked up from there. `overrides` are
        `key=value` settings laid over it. Raises RecipeError with every fault; the line is that of its YAML.
        """
        rules = schema.load()
        own = parse(self.yaml(), SHOWN)
        file = Path(folder) / f"{_stem(own)}.yaml"
        laid = apply_overrides(extend_text(own, file), overrides, lambda place: first_setting(rules, place))
        return from_node(file, substitute(laid), rules, data_dir)

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


def _stem(own: Node) -> str:
    """What a recipe's file would be called: as its runs are, where it says that plainly."""
    name = own.value.get("name")
    plain_name = name is not None and isinstance(name.value, str) and _NAME.fullmatch(name.value)
    return name.value if name is not None and plain_name else "recipe"


# ------------------------------------------------------------------------------------------- from objects to data


def _plain(value: Any, path: Steps) -> Any:
    if len(path) > MAX_DEPTH:
        raise _no_data(path, f"this is nested deeper than {MAX_DEPTH} levels", "use stacks with names, `Use`")
    if isinstance(value, RecipeObject):
        return _written(value, path)
    if isinstance(value, Mapping):
        return {_key(key, path): _plain(each, (*path, key)) for key, each in value.items() if each is not UNSET}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(each, (*path, at)) for at, each in enumerate(value)]
    return _scalar(value, path)


def _written(value: RecipeObject, path: Steps) -> Any:
    inner = (*path, value.word) if value.word else path
    settings = {key: _plain(each, (*inner, key)) for key, each in given(value)}
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


def given(value: RecipeObject) -> Iterator[tuple[str, Any]]:
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
        raise _no_data(path, f"a key is text, and this is {key!r}", f"write {str(key)!r}")
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
        raise _no_data(path, f"`{value.__name__}` is a class", f"write `{value.__name__}(...)`")
    raise _no_data(
        path,
        f"a recipe cannot hold a {type(value).__name__}",
        "give a text, a number, a truth value, a list, a mapping, or a class of composer.recipe.classes",
    )


def _no_data(path: Steps, message: str, hint: str) -> RecipeError:
    return RecipeError([Fault(SHOWN, 0, 0, "type", format_path(path), message, hint)])


# ------------------------------------------------------------------------------------------- as Python


def _shown(value: Any, indent: int, depth: int = 0) -> str:
    """Python that makes an equal value, over several lines where one is too long; `...` where it is too deep."""
    line = _in_line(value, depth)
    opening, parts, closing = _parts(value)
    if len(line) + indent <= WIDE or not parts or depth > 2 * MAX_DEPTH:
        return line
    inner = indent + 4
    lines = [f"{' ' * inner}{name}{_shown(each, inner, depth + 1)},\n" for name, each in parts]
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"


def _in_line(value: Any, depth: int) -> str:
    opening, parts, closing = _parts(value)
    if parts and depth > 2 * MAX_DEPTH:
        return f"{opening}...{closing}"
    return opening + ", ".join(f"{name}{_in_line(each, depth + 1)}" for name, each in parts) + closing


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
