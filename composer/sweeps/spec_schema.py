"""The JSON Schema of a sweep, generated as the recipe's is. `python -m composer.sweeps.spec_schema` writes it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from composer.recipe import schema as language
from composer.recipe.cache import PIN_SCHEMA
from composer.recipe.json_schema import IDENTIFIER, VARIABLE

Schema = dict[str, Any]

_TEXT = {"type": "string", "minLength": 1}
_RECIPE: Schema = {
    **{key: value for key, value in PIN_SCHEMA.items() if key != "type"},
    "anyOf": [_TEXT, {"type": "object"}],
}
_LABELS = {"type": "object", "propertyNames": {"pattern": IDENTIFIER}, "minProperties": 1}
_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_INTEGERS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
OF_AXIS: dict[str, Schema] = {
    "with": _LABELS,
    "extend": {**_LABELS, "additionalProperties": _RECIPE},
    "values": {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string"}]},
    },
    "uniform": _NUMBERS,
    "log_uniform": _NUMBERS,
    "int": _INTEGERS,
    "log_int": _INTEGERS,
}
OF_SWEEP: dict[str, Schema] = {
    "base": _RECIPE,
    "set": {"type": "object"},
    "seeds": {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": 1000}, {"type": "array"}],
        "minItems": 1,
        "items": {"type": "integer", "minimum": 0, "maximum": 4_294_967_295},
    },
    "rank": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "string", "enum": ["min", "max"]},
        },
    },
}
"""What the values of a key look like that are no settings of a constructor."""


@cache
def load_schema() -> Schema:
    """The schema, from its file."""
    return json.loads(schema_file().read_text(encoding="utf-8"))


def schema_file() -> Path:
    """Where the schema's file is: beside the recipe's."""
    return language.schema_path().with_name("sweep.schema.json")


def generate_schema() -> Schema:
    """The schema, from the descriptions. Imports torch."""
    from composer.sweeps import spec_sections

    defs = {
        **language.choice_schema(
            "searches", spec_sections.SEARCHES, "In what order points are tried: its name, or with settings.", "search"
        ),
        **language.choice_schema(
            "prunings", spec_sections.PRUNINGS, "When a trial is stopped: its name, or with settings.", "way of pruning"
        ),
    }
    root = language.settings_schema(spec_sections.Sweep, defs)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "seqcomposer sweep, version 1"}
    _shape(defs["axis"]["properties"], OF_AXIS)
    _shape(root["properties"], OF_SWEEP)
    return without_variables({**head, "type": "object", **root, "$defs": dict(sorted(defs.items()))})


def _shape(keys: dict[str, Schema], shapes: dict[str, Schema]) -> None:
    for key, shape in shapes.items():
        keys[key] = {"description": keys[key]["description"], **shape}


def without_variables(schema: Any) -> Any:
    """A schema in which nothing can be `${name}`: a sweep has no variables of its own."""
    if isinstance(schema, list):
        return [without_variables(each) for each in schema if each != VARIABLE]
    if not isinstance(schema, dict):
        return schema
    kept = {key: without_variables(value) for key, value in schema.items()}
    alternatives = kept.get("anyOf")
    if alternatives is None or len(alternatives) > 1:
        return kept
    return {**{key: value for key, value in kept.items() if key != "anyOf"}, **alternatives[0]}


if __name__ == "__main__":
    schema_file().write_text(language.to_json(generate_schema()), encoding="utf-8")
