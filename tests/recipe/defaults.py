"""A snapshot of every default: `python -m tests.recipe.defaults` writes defaults.json.

The docstring of `composer/recipe/earlier_versions.py` says what to do before it is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer.recipe.schema_generator import load
from composer.recipe.schema_reader import Schema, ref_name

FILE = Path(__file__).with_suffix(".json")


def defaults(rules: Schema | None = None) -> dict[str, Any]:
    """The default of every setting, by its key in the table of earlier versions; what is required
    has none.
    """
    defs = (rules or load())["$defs"]
    owners = {
        name: rule for name, rule in defs.items() if "properties" in rule and "x-choice" not in rule
    }
    roots = {"data", "model", "training", "evaluation", "trainer", "logging"}
    entries = [
        name
        for name in owners
        if name in roots or ("." in name and not name.startswith("defaults."))
    ]
    found = {key: value for name in entries for key, value in _settings(name, owners[name], defs)}
    tops = {
        key: rule.get("default")
        for key, rule in (rules or load())["properties"].items()
        if "$ref" in rule
    }
    return dict(sorted({**found, "decoding": tops["decoding"]}.items()))


def _settings(owner: str, rules: Schema, defs: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the default of each setting below a definition, those of sections inside it, too."""
    for key, setting in rules["properties"].items():
        reference = ref_name(setting)
        is_block_default = reference.startswith("defaults.")
        if is_block_default or setting.get("x-open"):
            continue
        path = f"{owner}.{key}"
        if key not in rules.get("required", ()):
            yield path, setting.get("default")
        target = {**defs.get(reference, {}), **setting}
        for inner in (target, target.get("items", {}), target.get("additionalProperties", {})):
            if isinstance(inner, dict) and "properties" in inner and "x-choice" not in inner:
                yield from _settings(path, inner, defs)


if __name__ == "__main__":
    FILE.write_text(json.dumps(defaults(), indent=1) + "\n", encoding="utf-8")
