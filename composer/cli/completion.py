"""Shell completion of blocks, settings, recipes and run folders: `seqcomposer --install-completion` turns it on."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from composer import api
from composer.recipe.schema_reader import dereference

Completions = list[tuple[str, str]]
"""What may be typed, and its meaning."""


def complete_block(incomplete: str) -> Completions:
    """Return the blocks whose names begin so."""
    return [(name, block["description"]) for name, block in api.blocks().items() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> Completions:
    """Return the settings of a recipe at the path that is typed: `training.max_steps=` for `training.max_st`."""
    rules = api.schema()
    *path, last = incomplete.split(".")
    schema = rules
    for word in path:
        schema = _settings(rules, schema).get(word, {})
    prefix = "".join(f"{word}." for word in path)
    return [
        (f"{prefix}{key}{'.' if _settings(rules, setting) else '='}", setting.get("description", ""))
        for key, setting in _settings(rules, schema).items()
        if key.startswith(last)
    ]


def _settings(rules: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a section, or the words of a choice."""
    known = dereference(rules["$defs"], schema)
    if table := known.get("x-choice"):
        words = (key for key in rules["$defs"] if key.startswith(f"{table}."))
        return {key.removeprefix(f"{table}."): rules["$defs"][key] for key in words}
    settings: dict[str, Any] = known.get("properties", {})
    return settings


def complete_recipe(incomplete: str) -> Completions:
    """Return the YAML files and folders whose paths begin so; without any, settings."""
    begin = glob.escape(incomplete)
    paths = sorted([*glob.glob(f"{begin}*.yaml"), *glob.glob(f"{begin}*/")])
    return [(path, "") for path in paths] or complete_key(incomplete)


def complete_run(incomplete: str) -> Completions:
    """Return the run folders whose paths begin so, in other folders too; without any, folders or settings."""
    begin = glob.escape(incomplete)
    records = [*glob.glob(f"{begin}*/run.json"), *glob.glob(f"{begin}*/*/run.json")]
    return [(str(Path(record).parent), "") for record in sorted(records)] or complete_recipe(incomplete)


def complete_any(incomplete: str) -> Completions:
    """Return the recipes and run folders whose paths begin so; without any, settings."""
    return list(dict.fromkeys([*complete_run(incomplete), *complete_recipe(incomplete)]))
