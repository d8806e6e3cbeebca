"""The schema's file, in which a repeated setting stands once and is referred to.

`{"$ref": "#/$defs/block.rnn/properties/cell"}` is the setting `cell` of the block `rnn`. Editors
follow such references; in memory every setting stands in its place.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from composer.errors import KeyPath
from composer.recipe.extends_and_overrides import shipped_folder
from composer.recipe.schema_reader import Schema

COLUMNS = 100
"""Longest line on which a whole list or mapping stands."""
SHORTEST = 60
"""Characters of the shortest setting that is worth a reference."""
IN_SETTINGS = "/properties/"
"""What is in every reference to a setting, and in no other."""


def schema_path() -> Path:
    """Return the path of the schema's file: in an installed package, or beside it in a clone."""
    return shipped_folder("schemas") / "recipe.schema.json"


@cache
def read_schema() -> Schema:
    """Return the schema in the file."""
    folded = json.loads(schema_path().read_text(encoding="utf-8"))
    schema: Schema = _unfold(folded, folded)
    return schema


def schema_text(schema: Schema) -> str:
    """Return a schema as the text of its file."""
    return _format(_fold(schema, (), {}), 0) + "\n"


def _fold(value: object, path: KeyPath, places: dict[str, str]) -> object:
    """Return a part of a schema with references to settings that stand before.

    places: of each, by its JSON.
    """
    if isinstance(value, list):
        return [_fold(item, (*path, index), places) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if path[-2:-1] == ("properties",) and "$ref" not in value:
        text = json.dumps(value)
        if text in places:
            return {"$ref": places[text]}
        if len(text) >= SHORTEST:
            places[text] = "/".join(["#", *map(str, path)])
    return {key: _fold(item, (*path, key), places) for key, item in value.items()}


def _unfold(value: object, root: Schema) -> Any:
    """Return a part of a schema with the settings that it refers to."""
    if isinstance(value, list):
        return [_unfold(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    place = value.get("$ref", "")
    if IN_SETTINGS in place:
        setting: Any = root
        for step in place.removeprefix("#/").split("/"):
            setting = setting[step]
        return _unfold(setting, root)
    return {key: _unfold(item, root) for key, item in value.items()}


def _format(value: object, depth: int) -> str:
    """Return JSON whose lists and mappings stand on one line where they fit, at this depth."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (list, dict)) or depth + len(line) <= COLUMNS:
        return line
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_format(item, depth + 1)}" for key, item in value.items()]
    else:
        items = [_format(item, depth + 1) for item in value]
    brackets = "{}" if isinstance(value, dict) else "[]"
    lines = ",\n".join(" " * (depth + 1) + item for item in items)
    return f"{brackets[0]}\n{lines}\n{' ' * depth}{brackets[1]}"
