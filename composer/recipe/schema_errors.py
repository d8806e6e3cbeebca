"""One error of the schema: what it is about, and what to write in place of a value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from composer.errors import Fault, closest_match, format_path
from composer.recipe.describe import (
    allowed,
    bounds,
    describe,
    form,
    is_stack,
    number_in,
    only_mapping,
    parts,
    scalar_text,
    wants,
)
from composer.recipe.json_schema import Schema, dereference, kind
from composer.recipe.node import Mark, Node, fault_at

Path = tuple[str | int, ...]

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
BOOLEAN_WORDS = {**dict.fromkeys(("yes", "on", "y", "1"), "true"), **dict.fromkeys(("no", "off", "n", "0"), "false")}


class SchemaError(NamedTuple):
    """One error of the schema: its keyword, the keyword's detail, and the value and the node that it is about."""

    root: Schema
    path: Path
    keyword: str
    detail: Any
    value: Any
    schema: Schema
    node: Node

    def fault(self, mark: Mark, code: str, message: str, hint: str, key: str | None = None) -> Fault:
        path = self.path if key is None else (*self.path, key)
        return fault_at(mark, code, format_path(path), message, hint)

    @property
    def document(self) -> str:
        """What is read, by its kind."""
        return "a sweep" if "sweep" in self.root["properties"] else "a recipe"

    @property
    def subject(self) -> str:
        """What the fault is about, by its name."""
        names = [step for step in self.path if isinstance(step, str)]
        if not names:
            return self.document
        first = self.schema.get("x-first")
        if first is not None:
            return f"`{first}` of `{names[-1]}`"
        return f"`{names[-1]}`" if self.path[-1] == names[-1] else f"an item of `{names[-1]}`"


def value_hint(wrong: SchemaError) -> str:
    """How to mend a value: what was surely meant, else what is taken."""
    mended = _mended(wrong)
    if mended:
        return f"write `{mended}`{' without quotes' if wrong.node.quoted and mended == wrong.node.text else ''}"
    stack = any(is_stack(each) for each in parts(wrong.schema))
    if stack and isinstance(wrong.value, dict):
        return "begin each block with `- `"
    if only_mapping(_whole(wrong)):
        return f"write `{form(str(wrong.path[-1]), only_mapping(_whole(wrong)))}`"
    if wrong.schema.get("default") is not None and wrong.schema["default"] not in ([], {}):
        return f"{_within_bounds(wrong)}the default is `{scalar_text(wrong.schema['default'])}`"
    return f"write {describe(wrong.schema, wrong.keyword)}"


def _whole(wrong: SchemaError) -> Schema:
    """The schema, and what it refers to."""
    return dereference(wrong.root["$defs"], wrong.schema)


def _within_bounds(wrong: SchemaError) -> str:
    """What number to write, where one was out of the bounds of one alternative among several."""
    numbers = [each for each in parts(wrong.schema) if each.get("type") in ("integer", "number")]
    if wrong.keyword not in BOUNDS or len(parts(wrong.schema)) == 1:
        return ""
    broken = next(each for each in numbers if each.get(wrong.keyword) == wrong.detail)
    return f"write {bounds(broken, wrong.keyword)}; "


def _mended(wrong: SchemaError) -> str:
    """What was surely meant, or ""."""
    value, schema = wrong.value, wrong.schema
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and wants(schema, "integer"):
        return str(int(value)) if abs(value) < 1e15 else ""
    if isinstance(value, str) and wants(schema, "integer", "number") and number_in(value):
        return number_in(value)
    if isinstance(value, (str, int)) and wants(schema, "boolean") and str(value).lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[str(value).lower()]
    if isinstance(value, (int, float)) and wrong.keyword == "type" and wants(schema, "string"):
        return f'"{wrong.node.text}"'
    if isinstance(value, str) and any(is_stack(each) for each in parts(schema)):
        return f"[{value}]"
    if value is None or isinstance(value, (list, dict)):
        return ""
    return closest_match(scalar_text(value), allowed(schema)) or _as_list(wrong)


def _as_list(wrong: SchemaError) -> str:
    """The list of a single value, where lists of its kind are what is wanted, or ""."""
    if wrong.keyword != "type":
        return ""
    for part in parts(wrong.schema):
        if any(each.get("type") == kind(wrong.value) for each in parts(part.get("items", {}))):
            return f"[{', '.join([wrong.node.text] * max(1, part.get('minItems', 1)))}]"
    return ""
