"""Data as Python: stacks with the classes of their blocks and the settings that are not a default."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

from blocks.core.contract import Block, Kind
from composer.exporters.tree_shaking import WIDTH
from composer.model.builder import python_name
from composer.recipe.registry import blocks


class Code(NamedTuple):
    """A piece of Python that stands as it is."""

    text: str


def stack(written: Sequence[Mapping[str, Any]], called: Callable[[type[Block]], str]) -> list[Any]:
    """A frozen stack as pairs of a class and its settings. `called`: the name of a class in the script."""
    return [_entry(word, settings, called) for entry in written for word, settings in entry.items()]


def _entry(word: str, settings: Mapping[str, Any], called: Callable[[type[Block]], str]) -> tuple[Code, dict[str, Any]]:
    kind = blocks()[word]
    kinds, defaults = kinds_of(kind), inspect.signature(kind).parameters
    said = {}
    for key, value in settings.items():
        name = key if key == "as" else python_name(key)
        if value is None if key == "as" else same(value, defaults[name].default):
            continue
        said[name] = _value(value, kinds.get(name, ""), called)
    return Code(called(kind)), said


def _value(value: Any, kind: str, called: Callable[[type[Block]], str]) -> Any:
    if kind == "stack":
        return stack(value, called)
    if kind != "branches":
        return value
    if isinstance(value, dict):
        return {name: stack(each, called) for name, each in value.items()}
    return [stack(each, called) for each in value]


def same(value: Any, default: Any) -> bool:
    """Whether a setting says what its default says anyway; 1 is not 1.0, and True is neither."""
    return type(value) is type(default) and bool(value == default)


def kinds_of(kind: type[Block]) -> dict[str, str]:
    """The settings of a block that are more than a scalar, each with what it is."""
    hints = get_type_hints(kind.__init__, include_extras=True)
    found = {name: [each.name for each in parts(hint) if isinstance(each, Kind)] for name, hint in hints.items()}
    return {name: names[0] for name, names in found.items() if names}


def parts(hint: Any) -> list[Any]:
    """A type and all that it is made of, the remarks of `Annotated` included."""
    remarks = list(getattr(hint, "__metadata__", ()))
    return [hint, *remarks, *(part for each in get_args(hint) for part in parts(each))]


def blocks_in(written: Any) -> list[type[Block]]:
    """The classes of all blocks in what `stack` or a mapping of stacks has of a frozen recipe, each once."""
    found: dict[type[Block], None] = {}
    for entry in written:
        for word, settings in entry.items():
            found[blocks()[word]] = None
            kinds = kinds_of(blocks()[word])
            for key, value in settings.items():
                found |= dict.fromkeys(_inner(value, kinds.get(python_name(key), "")))
    return list(found)


def _inner(value: Any, kind: str) -> list[type[Block]]:
    if value is None or kind not in ("stack", "branches"):
        return []
    stacks = [value] if kind == "stack" else value.values() if isinstance(value, dict) else value
    return [each for one in stacks for each in blocks_in(one)]


# ------------------------------------------------------------------------------------------- as text


def shown(value: Any, indent: int = 0, before: int = 0, after: int = 0) -> str:
    """A value as a formatter writes it, `before` columns after the indent and with `after` columns behind it."""
    line = in_line(value)
    if indent + before + len(line) + after <= WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return line
    inside = indent + 4
    if isinstance(value, dict):
        items = [f"{in_line(key)}: {shown(each, inside, len(in_line(key)) + 2, 1)}" for key, each in value.items()]
    else:
        items = [shown(each, inside, 0, 1) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else "()"
    return "\n".join([first, *(f"{' ' * inside}{each}," for each in items), f"{' ' * indent}{last}"])


def in_line(value: Any) -> str:
    """A value on one line."""
    match value:
        case Code(text):
            return text
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return f"{{{', '.join(f'{in_line(key)}: {in_line(each)}' for key, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(in_line, value))}]"
        case tuple():
            return f"({', '.join(map(in_line, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
