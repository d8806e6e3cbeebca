"""How the JSON Schema of a recipe is read: its kinds of values, its references, its patterns."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

IDENTIFIER = "^[A-Za-z_][A-Za-z0-9_-]*$"
RECIPE_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
VARIABLE_TEXT = r"^\$\{[A-Za-z_][A-Za-z0-9_-]*\}$"
VARIABLE = {"$ref": "#/$defs/variable"}
BLOCK = {"$ref": "#/$defs/block"}


def kind(value: Any) -> str:
    """The kind of a value of a recipe, in JSON Schema's words; `true` is not a number and 4.0 no integer."""
    if value is None:
        return "null"
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}.get(type(value), "object")


def referred(schema: Schema) -> str:
    """The definition that a schema refers to, by its name in `$defs`; "" where it refers to none."""
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def dereference(defs: Schema, schema: Schema) -> Schema:
    """A schema and what it refers to."""
    return {**defs.get(referred(schema), {}), **schema}


def alternative(schema: Schema, value: Any) -> Schema | None:
    """The one alternative of an `anyOf` that speaks of values of this kind; variables have been replaced."""
    return next((each for each in schema["anyOf"] if each != VARIABLE and _speaks_of(each, kind(value))), None)


def _speaks_of(branch: Schema, wanted: str) -> bool:
    if "type" not in branch:
        return wanted in map(kind, branch["enum"])
    return wanted == branch["type"] or (wanted == "integer" and branch["type"] == "number")
