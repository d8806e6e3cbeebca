"""Do to a recipe what its faults say: of each fix the first one, where a program can follow it.

A recipe that is refused is repaired until it is accepted, or what is left says nothing that could be done blindly, such
as `give every line its counterpart`. A fault that is still there after its fix shows that the fix is none.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

import composer
from benchmarks.random_settings import definitions
from composer.errors import Fault

ROUNDS = 12
FIX = re.compile(r"remove (?:`(?P<name>[\w.]+)`|it\b)|(?P<verb>write|add) `(?P<value>[^`]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]+\b|\.\.\.|:$|^- ")
"""What a fix leaves to its reader, or says of another place."""


class FixFailed(Exception):
    """A fault says what to do, and is still there when it is done."""


def repair(file: Path) -> list[Fault]:
    """Repair a recipe of JSON in its file; return the faults that are left. Raises FixFailed."""
    done: dict[str, str] = {}
    for _ in range(ROUNDS):
        if not (faults := composer.check(file)):
            return []
        for fault in faults:
            if f"{fault.path}: {fault.message}" in done:
                raise FixFailed(f"{fault.render()}\nis still there after: {done[f'{fault.path}: {fault.message}']}")
        recipe = json.loads(file.read_text(encoding="utf-8"))
        # one at a time: what another fix has changed may be what this one speaks of
        fixed = next((fault for fault in faults if follow(recipe, fault)), None)
        if fixed is None:
            return faults
        if "[" not in fixed.path or not (fixed.code == "empty" or "remove it" in fixed.hint):
            # else another item may now be at its place
            done[f"{fixed.path}: {fixed.message}"] = fixed.hint
        file.write_text(json.dumps(recipe, indent=1, ensure_ascii=False), encoding="utf-8")
    return faults


def follow(recipe: dict[str, Any], fault: Fault) -> bool:
    """Change a recipe as a fault says; return whether that is possible."""
    path = parse_path(fault.path)
    if fault.code == "empty" and inside(recipe, path) and at(recipe, path) == {}:  # its only setting was removed
        return remove(recipe, path)
    for match in FIX.finditer(fault.hint) if path else ():
        if match["value"] is None:
            place = find(recipe, path, match["name"].split(".")) if match["name"] else path
            if place is not None and remove(recipe, place):
                return True
        elif not PLACEHOLDER.search(value := match["value"]) and write(
            recipe, path, yaml.safe_load(value), is_new=match["verb"] == "add"
        ):
            return True
    return False


def parse_path(text: str) -> list[str | int]:
    """Return the keys and indices of a path as faults have it."""
    return [int(index) if index else key for index, key in re.findall(r"\[(\d+)\]|([^.\[\]]+)", text)]


def find(recipe: dict[str, Any], path: Sequence[str | int], names: Sequence[str]) -> list[str | int] | None:
    """Return the path of a name beside, in or above a place; else from the recipe's root, or where it stands once."""
    for length in range(len(path), -1, -1):
        if inside(recipe, place := [*path[:length], *names]):
            return place
    places = [place for place in walk(recipe) if place[-1] == names[-1]]
    return places[0] if len(places) == 1 else None


def inside(recipe: Any, path: Sequence[str | int]) -> bool:
    """Return whether something is written at a path."""
    for key in path:
        if not ((isinstance(recipe, dict) and key in recipe) or (isinstance(recipe, list) and isinstance(key, int))):
            return False
        recipe = recipe[key]
    return True


def walk(value: Any, path: tuple[str | int, ...] = ()) -> list[list[str | int]]:
    """Return the paths of all that is in a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ([*path, key], *walk(inner, (*path, key)))]


def remove(recipe: Any, path: Sequence[str | int]) -> bool:
    """Remove what is at a path, if it is there."""
    if not path or not inside(recipe, path):
        return False
    del at(recipe, path[:-1])[path[-1]]
    return True


def write(recipe: dict[str, Any], path: Sequence[str | int], value: Any, is_new: bool) -> bool:
    """Write a value in place of another, or a key with its value in place of another, or as a new one beside."""
    if not isinstance(value, dict):
        return inside(recipe, path) and put(recipe, path, value)
    (name, inner), *others = value.items()
    if f"block.{name}" in definitions():  # in place of a block
        return False
    place = find(recipe, path, [name]) or ([*path[:-1], name] if is_new and inside(recipe, path[:-1]) else None)
    return not others and place is not None and put(recipe, place, inner)


def put(recipe: Any, path: Sequence[str | int], value: Any) -> bool:
    at(recipe, path[:-1])[path[-1]] = value
    return True


def at(recipe: Any, path: Sequence[str | int]) -> Any:
    """Return what is at a path."""
    return reduce(operator.getitem, path, recipe)
