"""What was surely meant by a value of a recipe or a sweep that is refused, if its schema accepts that."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from composer.errors import KeyPath, closest_match, similar_name
from composer.recipe.schema_reader import (
    LOWER_BOUNDS,
    SPLITS,
    Schema,
    accepts_scalar,
    accepts_type,
    allowed_words,
    alternatives,
    flow_text,
    is_stack,
    json_type,
    parse_number,
)
from composer.recipe.yaml_reader import parse_scalar

BOOLEAN_WORDS = {**dict.fromkeys(("yes", "on", "y", "1"), "true"), **dict.fromkeys(("no", "off", "n", "0"), "false")}


def correct(value: Any, text: str, keyword: str, schema: Schema) -> str:
    """Return what was surely meant by a value that violates a keyword of its schema, or "".

    text: The value as it is written.
    """
    branches = alternatives(schema)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and accepts_type(schema, "integer"):
        return str(int(value)) if accepts_scalar(schema, int(value)) else ""
    if isinstance(value, str) and (number := parse_number(value)) and accepts_scalar(schema, parse_scalar(number)):
        return number
    if isinstance(value, (str, int)) and accepts_type(schema, "boolean") and str(value).lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[str(value).lower()]
    is_out_of_range = type(value) in (int, float) and accepts_type(schema, "number")  # of float32
    if isinstance(value, (int, float)) and keyword == "type" and not is_out_of_range and accepts_scalar(schema, text):
        return f'"{text}"'
    if isinstance(value, str) and any(map(is_stack, branches)):
        return f"[{value.lstrip('- ')}]"
    if value is None or isinstance(value, (list, dict)):
        return ""
    if close := closest_match(flow_text(value), allowed_words(schema)):
        return close
    for branch in branches if keyword == "type" else ():  # a list with this single value in it
        if any(item.get("type") == json_type(value) for item in alternatives(branch.get("items", {}))):
            return f"[{', '.join([text] * max(1, branch.get('minItems', 1)))}]"
    return ""


def name_hint(text: str, others: Container[str] = ()) -> str:
    """Return the rule of names and, for a text that is none, a name like it that is not among others."""
    rule = "a name begins with a letter from a to z, and has such letters, digits, `_` and `-`"
    name = similar_name(text)
    while name in others:
        name = f"x{name}"
    return f"write `{name}`: {rule}" if text.isascii() else rule


def file_hint(path: KeyPath, value: Any, keyword: str, schema: Schema) -> str:
    """Return what to write where `data` has files, in place of a value that violates a keyword; "" elsewhere."""
    if path[0] == "data" and path[4:] == ("weight",) and keyword in LOWER_BOUNDS:
        return "write a number above 0, or remove the file"  # of several
    is_part = path[:2] == ("data", "text") and path[2:3] in [(split,) for split in SPLITS]
    is_number = isinstance(value, int) and not accepts_type(schema, "number")
    return "name a file: nothing of a text is held out" if is_part and is_number else ""
