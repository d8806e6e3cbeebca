"""Reading the JSON Schema of a recipe: references, branches, types, accepted values."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from blocks.core.fixes import flow_text as flow_text
from blocks.core.fixes import scalar_text as scalar_text
from composer.errors import MAX_EXPLAINED, Edit, Fault, KeyPath, Mark, fault_at
from composer.recipe.registry import CHOICE_KEYS
from composer.recipe.yaml_reader import Node, to_data
from composer.suggest import closest_word, did_you_mean

Schema = dict[str, Any]

VERSION = 1
"""The only version of the recipe language, and of that of sweeps."""
SPLITS = ("train", "val", "test")
DATA_SOURCES = ("parallel", "table", "text", "hub", "generate", "babi")
"""The keys of `data` of which a recipe has exactly one."""
REFERENCE = "target-"
"""How the columns of further references begin: `target-2` is the second."""
IDENTIFIER = "^[A-Za-z_][A-Za-z0-9_-]*$"
MAX_NAME = 100  # characters of a recipe's name
RECIPE_NAME = f"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}$"
VARIABLE_TEXT = r"^\$([A-Za-z_][A-Za-z0-9_-]*|\{[A-Za-z_][A-Za-z0-9_-]*\})$"
"""A value that is a variable: `$name`, or `${name}`."""
VARIABLE = {"$ref": "#/$defs/variable"}
BLOCK = {"$ref": "#/$defs/block"}

SMALLEST, LARGEST = 1e-18, 1e12
"""Magnitudes of numbers other than 0: float32 holds the inverse of a square, and the squares of a
whole layer.
"""
MAX_WORDS = 40  # names that a message lists
MAX_INLINE_WORDS = 3  # words that are listed one by one among other kinds of values
LOWER_BOUNDS = {"minimum": "{} or more", "exclusiveMinimum": "above {}"}
BOUNDS = LOWER_BOUNDS | {"exclusiveMaximum": "below {}", "maximum": "at most {}"}
TESTS = dict(zip(BOUNDS, (operator.ge, operator.gt, operator.lt, operator.le), strict=True))
NUMBERS = {"integer": "a whole number", "number": "a number"}
PLURAL = {"integer": "whole numbers", "number": "numbers", "string": "texts", "array": "lists"}


def repeated_items(values: Iterable[object]) -> Iterator[int]:
    """Yield the index of each item of a list that is in it before."""
    seen = set()
    for index, value in enumerate(values):
        # `true` is not 1
        key = (isinstance(value, bool), repr(value) if isinstance(value, dict | list) else value)
        if key in seen:
            yield index
        seen.add(key)


def duplicate_fault(
    items: Sequence[Node], path: str, index: int, edit: Edit | None = None
) -> Fault:
    """Return the fault of an item of a list that is in it before."""
    item = items[index]
    message = f"`{item.text or 'this'}` is listed twice"
    return fault_at(item.mark, "duplicate", f"{path}[{index}]", message, "keep one", edit)


def unlisted_fault(faults: Iterable[Fault]) -> Fault:
    """Return the fault that says, after some, that there are more."""
    message = f"there are more than {MAX_EXPLAINED:,} faults, and the others are not listed"
    last = max(faults)
    return replace(
        last, column=last.column + 1, code="size", path="", message=message, hint="fix these first"
    )


def duplicate_faults(items: Sequence[Node], path: str) -> list[Fault]:
    """Return a fault for each item of a list that is in it before."""
    return [duplicate_fault(items, path, index) for index in repeated_items(map(to_data, items))]


def unsupported_version(mark: Mark, subject: str, version: int) -> Fault:
    """Return the fault of a recipe or sweep in an unknown version of the language."""
    message = (
        f"this {subject} is written in version {version} of its language; this seqcomposer reads"
    )
    return fault_at(
        mark, "version", subject, f"{message} version {VERSION}", "install a newer seqcomposer"
    )


def json_type(value: object) -> str:
    """Return the JSON type of a recipe's value; `true` is not a number, and 4.0 is no integer."""
    if value is None:
        return "null"
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}.get(
        type(value), "object"
    )


def float32_problem(number: float) -> str:
    """Say that float32 makes a number, or its square, 0 or infinite; "" if it does not."""
    is_small = abs(number) < SMALLEST
    reason = (
        f"too {'small' if is_small else 'large'}: float32 computes with {SMALLEST:g} to {LARGEST:g}"
    )
    return reason if number != 0 and (is_small or not abs(number) <= LARGEST) else ""


def ref_name(schema: Schema) -> str:
    """Return the name in `$defs` of what a schema refers to, or ""."""
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def dereference(defs: Schema, schema: Schema) -> Schema:
    """Return a schema with its reference resolved."""
    return {**defs.get(ref_name(schema), {}), **schema}


def select_branch(schema: Schema, value: object) -> Schema | None:
    """Return the branch of an `anyOf` that accepts this JSON type; no value is a variable here."""
    wanted = json_type(value)
    for branch in schema["anyOf"]:
        if branch == VARIABLE:
            continue
        types = [branch["type"]] if "type" in branch else map(json_type, branch["enum"])
        if wanted in types or (wanted == "integer" and branch.get("type") == "number"):
            return dict(branch)
    return None


def alternatives(schema: Schema) -> list[Schema]:
    """Return the branches of a schema without the variable.

    Lists and mappings get the keywords that stand beside `anyOf`.
    """
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    branches = [branch for branch in schema.get("anyOf", [schema]) if branch != VARIABLE]
    for index, branch in enumerate(branches):
        if branch.get("type") in ("array", "object"):
            branches[index] = {**beside, **branch}
    return branches


def is_stack(schema: Mapping[str, object]) -> bool:
    """Return True for a list of blocks."""
    return schema.get("type", "array") == "array" and schema.get("items") == BLOCK


def accepts_type(schema: Schema, *types: str) -> bool:
    """Return True if a value of one of these JSON types is accepted."""
    return any(branch.get("type") in types for branch in alternatives(schema))


def accepts_scalar(schema: Schema, value: str | float) -> bool:
    """True if a text or a number is accepted: its type, its pattern and its bounds."""
    types = {json_type(value)} if isinstance(value, str) else {json_type(value), "number"}
    branches = [branch for branch in alternatives(schema) if branch.get("type") in types]
    if isinstance(value, str):
        return any(re.search(branch.get("pattern", ""), value) for branch in branches)
    if float32_problem(value):
        branches = [branch for branch in branches if branch["type"] == "integer"]
    return any(_is_within(value, branch) for branch in branches)


def _is_within(number: float, schema: Schema) -> bool:
    return all(test(number, schema[key]) for key, test in TESTS.items() if key in schema)


def allowed_words(schema: Schema) -> list[str]:
    """Return the words among which one is chosen."""
    words: list[str] = []
    for branch in alternatives(schema):
        words += map(scalar_text, branch.get("enum", []))
    return words


def mapping_branch(schema: Schema) -> Schema:
    """Return the branch for mappings if nothing else is accepted, or {}."""
    branches = [branch for branch in alternatives(schema) if branch.get("type") != "null"]
    return branches[0] if len(branches) == 1 and branches[0].get("type") == "object" else {}


def describe(schema: Schema, keyword: str = "") -> str:
    """Say what a setting takes; with an upper bound only if this `keyword` is violated."""
    branches = [branch for branch in alternatives(schema) if branch.get("type") != "null"]
    if "x-first" in schema:  # the last branch is the mapping of all settings
        branches = branches[:-1] or branches
    numbers = [describe_bounds(branch) for branch in branches if branch.get("type") == "number"]
    for branch in [branch for branch in branches if branch.get("type") == "integer"]:
        if describe_bounds(branch) in numbers:
            branches.remove(branch)
    if len(branches) == 1:
        return _describe_alone(branches[0], keyword)
    parts: list[str] = []
    for branch in branches:
        parts += _describe_among(branch, keyword)
    parts = list(dict.fromkeys(parts))
    return f"{', '.join(parts[:-1])} or {parts[-1]}"


def _describe_alone(schema: Schema, keyword: str) -> str:
    if is_stack(schema):
        return "a stack (a list of blocks)"
    if "enum" in schema:
        words = _quoted_words(schema)
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    kind = schema.get("type")
    if kind in ("integer", "number"):
        bounds = describe_bounds(schema, keyword)
        return NUMBERS[schema["type"]] + (f", {bounds}" if bounds else "")
    if kind == "array":
        return _describe_list(schema)
    if kind in ("boolean", "string"):
        return (
            "`true` or `false`" if kind == "boolean" else schema.get("patternErrorMessage", "text")
        )
    has_stacks = is_stack(schema.get("additionalProperties") or {})
    return "a mapping of names to stacks" if has_stacks else "a mapping"


def _describe_among(schema: Schema, keyword: str) -> list[str]:
    """Name accepted values for a list of them: no comma and no `or` outside of brackets."""
    if "enum" in schema and len(schema["enum"]) <= MAX_INLINE_WORDS:
        return _quoted_words(schema)
    if schema.get("type") == "boolean":
        return ["`true`", "`false`"]
    if schema.get("type") in ("integer", "number"):
        bounds = describe_bounds(schema, keyword)
        return [NUMBERS[schema["type"]] + (f" ({bounds})" if bounds else "")]
    if schema.get("type") == "object" and schema.get("properties"):
        example = usage_example("", schema).removeprefix(": ")
        return [f"`{example}`" if schema.get("required") else f"a mapping such as `{example}`"]
    return [
        _describe_list(schema, "them")
        if schema.get("type") == "array"
        else _describe_alone(schema, keyword)
    ]


def _describe_list(schema: Schema, mixed: str = "values") -> str:
    """Say what a list has; `mixed` is the word for items of several types."""
    items = schema.get("items", {})
    if is_stack(items):
        return "a list of stacks"
    branches = alternatives(items)
    kinds = {branch.get("type", "word") for branch in branches}
    if kinds == {"word"}:
        return f"a list of some of {', '.join(_quoted_words(branches[0]))}"
    what = PLURAL.get(kinds.pop(), "values") if len(kinds) == 1 else mixed
    has_length = "minItems" in schema and schema["minItems"] == schema.get("maxItems")
    return f"a list of {schema['minItems']} {what}" if has_length else f"a list of {what}"


def _quoted_words(schema: Schema) -> list[str]:
    return [f"`{scalar_text(word)}`" for word in schema["enum"]]


def describe_bounds(schema: Schema, keyword: str = "") -> str:
    """Say which numbers are accepted: "1 or more", "above 0 and at most 1"."""
    bounds = {key: schema[key] for key in BOUNDS if key in schema}
    # a large maximum that is not violated would only distract: "1 or more"
    if keyword != "maximum" and "minimum" in schema and schema.get("maximum", 0) > 1:
        del bounds["maximum"]
    parts = []
    for key, bound in bounds.items():
        parts.append(BOUNDS[key].format(int(bound) if float(bound).is_integer() else bound))
    return " and ".join(parts)


def usage_example(name: str, settings: Schema) -> str:
    """Return an example of a mapping of settings: `norm: {kind: ...}`."""
    properties = settings.get("properties", {})
    texts = []
    for key in settings.get("required") or list(properties)[:1] or ["NAME"]:
        types = {branch.get("type") for branch in alternatives(properties.get(key, {}))}
        texts.append(f"{key}: [...]" if types == {"array"} else f"{key}: ...")
    return f"{name}: {{{', '.join(texts)}}}"


def with_article(noun: str) -> str:
    """Return a noun with its article: "an optimizer"."""
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"


def quote_all(words: Iterable[str]) -> str:
    """Return words in backticks, with commas; of very many the first and the number of the rest."""
    words = list(words)
    more = f" and {len(words) - MAX_WORDS} more" if len(words) > MAX_WORDS else ""
    return ", ".join(f"`{word}`" for word in words[:MAX_WORDS]) + more


def no_setting(owner: str, name: str, settings: Iterable[str]) -> str:
    """Say that an owner has no such setting, with the closest one, or with all that it has."""
    settings = list(settings)
    allowed = (
        f"; allowed here: {quote_all(settings)}" if settings else "; there are no settings here"
    )
    return f"{owner} has no setting `{name}`{did_you_mean(name, settings) or allowed}"


# ------------------------------------------------------------------------------------------- paths
# of a recipe


def intended_key(schema: Schema, defs: Schema, name: str) -> str:
    """Return the key that an unknown one surely means, for a block the stack's; "" if unclear."""
    keys = schema["properties"]
    close = closest_word(name, keys)
    is_block = name in defs.get("block", {}).get("properties", {})
    stacks = (key for key, setting in keys.items() if any(map(is_stack, alternatives(setting))))
    return close or next(stacks if is_block else iter(()), "")


def is_block_path(path: KeyPath) -> bool:
    """True if a path of `canonical` ends with a block's name, the key in an item of a list."""
    return len(path) > 1 and isinstance(path[-1], str) and isinstance(path[-2], int)


def first_setting(rules: Schema, path: KeyPath) -> str | None:
    """Return the setting of a choice, a block say, that a scalar or a list sets."""
    if not path or not isinstance(path[-1], str):
        return None
    tables: dict[KeyPath, str] = {("model",): "defaults", **CHOICE_KEYS}
    table = "block" if is_block_path(path) else tables.get(path[:-1])
    return rules["$defs"].get(f"{table}.{path[-1]}", {}).get("x-first")


def chosen_entry(rules: Schema, path: KeyPath, value: object, name: str) -> str:
    """Return the choice at a path, a decoder say, if it has the setting `name`; else "".

    value: What stands there; None for the default.
    """
    defs, schema = rules["$defs"], rules
    table = CHOICE_KEYS.get(path, "")
    if not table or name in defs[table]["properties"]:
        return ""
    for step in path:
        schema = dereference(defs, schema)["properties"][step]
    chosen = schema.get("default", "") if value is None else value
    word = next(iter(chosen), "") if isinstance(chosen, dict) else str(chosen)
    return word if name in defs.get(f"{table}.{word}", {}).get("properties", {}) else ""
