"""run.json as it is handed on: what decides a result, and nothing of the machine's folders and users."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.recipe.node import strings_in

PRIVATE = frozenset(("host", "hostname", "user", "username", "pid", "cwd"))
_PLACE = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|\.\.[\\/]).*", re.DOTALL)


def portable_record(record: Mapping[str, Any]) -> bytes:
    """The text of run.json for others; the same again of what it gives."""
    places = sorted({each.rstrip("\\/") for each in strings_in(record) if is_place(each)}, key=len, reverse=True)
    told = without_places(dict(record), [each for each in places if each])
    if isinstance(told.get("data"), dict) and "folders" in told["data"]:
        told["data"]["folders"] = []  # a pull finds none of them
    return (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode()


def is_place(text: str) -> bool:
    """Whether a text is a path of some machine."""
    return _PLACE.fullmatch(text) is not None


def places_in(dataset: Mapping[str, Any]) -> list[str]:
    """The paths in the section `data` of a recipe that are those of some machine."""
    data = {key: each for key, each in dataset.items() if key != "tokenizer"}  # `/` is a mark there
    return sorted(set(filter(is_place, strings_in(data))))


def without_places(value: Any, places: Sequence[str]) -> Any:
    """Plain data in which a path of a machine is the last of its names; `places` are also looked for inside texts."""
    if isinstance(value, dict):
        return {key: without_places(each, places) for key, each in value.items() if key not in PRIVATE}
    if isinstance(value, list):
        return [without_places(each, places) for each in value]
    return _without(value, places) if isinstance(value, str) else value


def _without(text: str, places: Sequence[str]) -> str:
    if is_place(text):
        return last(text)
    for place in places:
        text = re.sub(rf"(?<![\w/\\]){re.escape(place)}(?!\w)", lambda found: last(found[0]), text)
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def last(place: str) -> str:
    """The last name of a path of any system: where it lies is nobody's business."""
    return re.split(r"[\\/]", place.rstrip("\\/"))[-1].lstrip("~")
