"""How the JSON Schema of a recipe is read: its kinds of values, its references, its patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from composer.recipe.yaml_reader import parse_scalar

Schema = dict[str, Any]

VERSION = 1
"""The only version of the recipe language, and of that of sweeps."""

DATA_SOURCES = ("parallel", "hub", "generate", "babi")
"""The keys of `data` of which a recipe has exactly one."""
IDENTIFIER = "^[A-Za-z_][A-Za-z0-9_-]*$"
RECIPE_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
VARIABLE_TEXT = r"^\$([A-Za-z_][A-Za-z0-9_-]*|\{[A-Za-z_][A-Za-z0-9_-]*\})$"
"""A value that is a variable: `$name`, or `${name}`."""
VARIABLE = {"$ref": "#/$defs/variable"}
BLOCK = {"$ref": "#/$defs/block"}


def json_type(value: Any) -> str:
    """The kind of a value of a recipe, in JSON Schema's words; `true` is not a number and 4.0 no integer."""
    if value is None:
        return "null"
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}.get(type(value), "object")


def ref_name(schema: Schema) -> str:
    """The definition that a schema refers to, by its name in `$defs`; "" where it refers to none."""
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def dereference(defs: Schema, schema: Schema) -> Schema:
    """A schema and what it refers to."""
    return {**defs.get(ref_name(schema), {}), **schema}


def select_branch(schema: Schema, value: Any) -> Schema | None:
    """The one alternative of an `anyOf` that speaks of values of this kind; variables have been replaced."""
    return next((each for each in schema["anyOf"] if each != VARIABLE and _accepts(each, json_type(value))), None)


def _accepts(branch: Schema, wanted: str) -> bool:
    if "type" not in branch:
        return wanted in map(json_type, branch["enum"])
    return wanted == branch["type"] or (wanted == "integer" and branch["type"] == "number")


MAX_WORDS = 40  # names that a message tells before it gives up
MAX_INLINE_WORDS = 3  # words that can be told one by one among other kinds of values
PLURAL = {"integer": "whole numbers", "number": "numbers", "string": "texts", "word": "words", "array": "lists"}


def alternatives(schema: Schema) -> list[Schema]:
    """The alternatives of a schema without the variable, each with what is said of lists and mappings beside it."""
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    found = [each for each in schema.get("anyOf", [schema]) if each != VARIABLE]
    return [{**beside, **each} if each.get("type") in ("array", "object") else each for each in found]


def is_stack(schema: Mapping[str, Any]) -> bool:
    """Whether it is a list of blocks."""
    return schema.get("type", "array") == "array" and schema.get("items") == BLOCK


def holds_stacks(schema: Mapping[str, Any]) -> bool:
    """Whether it is a list of blocks, or several of them, by name or by number."""
    return is_stack(schema) or is_stack(schema.get("items", {}))


def describe(schema: Schema, keyword: str = "") -> str:
    """What a setting takes, in words; of one kind of number an upper bound is told where it is what was broken."""
    kept = [each for each in alternatives(schema) if each.get("type") != "null"]
    if "x-first" in schema:
        kept = kept[:-1] or kept
    kept = [each for each in kept if not any(_is_narrower(each, other) for other in kept)]
    if len(kept) == 1:
        return _describe_alone(kept[0], keyword)
    told = list(dict.fromkeys(text for part in kept for text in _describe_among(part)))
    return f"{', '.join(told[:-1])} or {told[-1]}"


def _is_narrower(schema: Schema, other: Schema) -> bool:
    """Whether it takes the whole numbers among the numbers that another takes."""
    return (
        schema.get("type") == "integer"
        and other.get("type") == "number"
        and describe_bounds(schema) == describe_bounds(other)
    )


def _describe_alone(schema: Schema, keyword: str) -> str:
    if is_stack(schema):
        return "a stack (a list of blocks)"
    if "enum" in schema:
        shown = _quoted_words(schema)
        return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"
    if schema.get("type") in ("integer", "number"):
        told = describe_bounds(schema, keyword)
        return _kind_of_number(schema) + (f", {told}" if told else "")
    if schema.get("type") == "array":
        return _describe_list(schema)
    if schema.get("type") == "boolean":
        return "`true` or `false`"
    if schema.get("type") == "string":
        return schema.get("patternErrorMessage", "text")
    return "a mapping of names to stacks" if is_stack(schema.get("additionalProperties") or {}) else "a mapping"


def _describe_among(schema: Schema) -> list[str]:
    """A schema in words that can stand among others: none has a comma or an `or` outside of brackets."""
    if "enum" in schema and len(schema["enum"]) <= MAX_INLINE_WORDS:
        return _quoted_words(schema)
    if schema.get("type") == "boolean":
        return ["`true`", "`false`"]
    if schema.get("type") in ("integer", "number"):
        told = describe_bounds(schema)
        return [_kind_of_number(schema) + (f" ({told})" if told else "")]
    if schema.get("type") == "object" and schema.get("properties"):
        return [_mapping_example(schema)]
    return [_describe_alone(schema, "")]


def _quoted_words(schema: Schema) -> list[str]:
    return [f"`{scalar_text(each)}`" for each in schema["enum"]]


def _kind_of_number(schema: Schema) -> str:
    return "a whole number" if schema["type"] == "integer" else "a number"


def _mapping_example(schema: Schema) -> str:
    """A mapping that is one of several forms: all that it needs, or a setting for an example."""
    _, shown = usage_example("", schema).split(" ", 1)
    return f"`{shown}`" if schema.get("required") else f"a mapping such as `{shown}`"


def _describe_list(schema: Schema) -> str:
    items = schema.get("items", {})
    if is_stack(items):
        return "a list of stacks"
    kinds = {str(each.get("type", "word")) for each in alternatives(items)}
    what = PLURAL.get(kinds.pop(), "values") if len(kinds) == 1 else "them"
    if what == "words":
        return f"a list of some of {', '.join(_quoted_words(alternatives(items)[0]))}"
    return f"a list of {schema['minItems']} {what}" if _has_count(schema) else f"a list of {what}"


def _has_count(schema: Schema) -> bool:
    return "minItems" in schema and schema["minItems"] == schema.get("maxItems")


def describe_bounds(schema: Schema, keyword: str = "") -> str:
    """The bounds of a number, in words."""
    low = [f"{_number(schema['minimum'])} or more"] if "minimum" in schema else []
    above = [f"above {_number(schema['exclusiveMinimum'])}"] if "exclusiveMinimum" in schema else []
    below = [f"below {_number(schema['exclusiveMaximum'])}"] if "exclusiveMaximum" in schema else []
    told_above = "maximum" in schema and (keyword == "maximum" or not low or schema["maximum"] <= 1)
    high = [f"at most {_number(schema['maximum'])}"] if told_above else []
    return " and ".join([*low, *above, *below, *high])


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def scalar_text(value: Any) -> str:
    """A scalar as a recipe writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def accepts_type(schema: Schema, *types: str) -> bool:
    """Whether a value of one of these types is taken."""
    return any(each.get("type") in types for each in alternatives(schema))


def allowed_words(schema: Schema) -> list[str]:
    """The words among which one is chosen."""
    return [scalar_text(each) for part in alternatives(schema) for each in part.get("enum", [])]


def mapping_branch(schema: Schema) -> Schema:
    """The mapping, where nothing else can stand."""
    kept = [each for each in alternatives(schema) if each.get("type") != "null"]
    return kept[0] if len(kept) == 1 and kept[0].get("type") == "object" else {}


def usage_example(name: str, settings: Schema) -> str:
    """How a mapping of settings is written."""
    keys = settings.get("required") or list(settings.get("properties", {}))[:1] or ["NAME"]
    return f"{name}: {{{', '.join(f'{key}: ...' for key in keys)}}}"


def parse_number(text: str) -> str:
    """The number in a text such as `1_000`, `1,000` or a number in quotes."""
    bare = text.strip().replace("_", "").replace(",", "")
    try:
        return bare if type(parse_scalar(bare)) in (int, float) else ""
    except ValueError:
        return ""


def quote_all(words: Iterable[str]) -> str:
    """Words in a row, each between backticks."""
    words = list(words)
    more = f" and {len(words) - MAX_WORDS} more" if len(words) > MAX_WORDS else ""
    return ", ".join(f"`{word}`" for word in words[:MAX_WORDS]) + more
