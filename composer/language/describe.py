"""The schema in words: what a setting takes, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from composer.language.schema import BLOCK, VARIABLE, Schema
from composer.language.source import scalar

LISTED = 40  # names that a message tells before it gives up


def parts(schema: Schema) -> list[Schema]:
    """The alternatives of a schema without the variable, each with what is said of lists and mappings beside it."""
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    found = [each for each in schema.get("anyOf", [schema]) if each != VARIABLE]
    return [{**beside, **each} if each.get("type") in ("array", "object") else each for each in found]


def is_stack(schema: Schema) -> bool:
    """Whether it is a list of blocks."""
    return schema.get("type", "array") == "array" and schema.get("items") == BLOCK


def describe(schema: Schema, keyword: str = "") -> str:
    """What a setting takes, in words; an upper bound is told where it is what was broken."""
    kept = [each for each in parts(schema) if each.get("type") != "null"]
    if "x-first" in schema:
        kept = kept[:-1] or kept
    return " or ".join(dict.fromkeys(_described(part, keyword) for part in kept))


def _described(schema: Schema, keyword: str) -> str:
    if is_stack(schema):
        return "a stack (a list of blocks)"
    if "enum" in schema:
        shown = ", ".join(f"`{scalar_text(each)}`" for each in schema["enum"])
        return shown if len(schema["enum"]) == 1 else f"one of {shown}"
    if schema.get("type") in ("integer", "number"):
        return ("a whole number" if schema["type"] == "integer" else "a number") + _range(schema, keyword)
    if schema.get("type") == "array":
        return _described_list(schema)
    names = {"boolean": "`true` or `false`", "string": schema.get("patternErrorMessage", "text")}
    return names.get(str(schema.get("type")), "a mapping")


def _described_list(schema: Schema) -> str:
    if is_stack(schema.get("items", {})):
        return "a list of stacks"
    count = f"{schema['minItems']} values" if schema.get("minItems", 0) == schema.get("maxItems") else "values"
    return f"a list of {count}"


def _range(schema: Schema, keyword: str) -> str:
    low = [f"{_number(schema['minimum'])} or more"] if "minimum" in schema else []
    above = [f"above {_number(schema['exclusiveMinimum'])}"] if "exclusiveMinimum" in schema else []
    below = [f"below {_number(schema['exclusiveMaximum'])}"] if "exclusiveMaximum" in schema else []
    told_above = "maximum" in schema and (keyword == "maximum" or not low)
    high = [f"at most {_number(schema['maximum'])}"] if told_above else []
    told = [*low, *above, *below, *high]
    return f", {' and '.join(told)}" if told else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def scalar_text(value: Any) -> str:
    """A scalar as a recipe writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def wants(schema: Schema, *types: str) -> bool:
    """Whether a value of one of these types is taken."""
    return any(each.get("type") in types for each in parts(schema))


def allowed(schema: Schema) -> list[str]:
    """The words among which one is chosen."""
    return [scalar_text(each) for part in parts(schema) for each in part.get("enum", [])]


def only_mapping(schema: Schema) -> Schema:
    """The settings, where nothing but a mapping of them can stand."""
    kept = [each for each in parts(schema) if each.get("type") != "null"]
    return kept[0] if len(kept) == 1 and kept[0].get("properties") else {}


def form(name: str, settings: Schema) -> str:
    """How a mapping of settings is written."""
    keys = settings.get("required") or list(settings.get("properties", {}))[:1]
    return f"{name}: {{{', '.join(f'{key}: ...' for key in keys)}}}"


def number_in(text: str) -> str:
    """The number in a text such as `1_000`, `1,000` or a number in quotes."""
    bare = text.strip().replace("_", "").replace(",", "")
    try:
        return bare if type(scalar(bare)) in (int, float) else ""
    except ValueError:
        return ""


def listed(words: Iterable[str]) -> str:
    """Words in a row, each between backticks."""
    words = list(words)
    more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return ", ".join(f"`{word}`" for word in words[:LISTED]) + more
