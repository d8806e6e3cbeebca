"""What was surely meant by a value of a recipe or a sweep that is refused, if its schema accepts that."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from composer.errors import KeyPath, closest_match, similar_name
from composer.recipe.schema_reader import (
    BOUNDS,
    LOWER_BOUNDS,
    SPLITS,
    Schema,
    accepts_scalar,
    accepts_type,
    allowed_words,
    alternatives,
    describe,
    describe_bounds,
    flow_text,
    is_stack,
    json_type,
    parse_number,
)
from composer.recipe.yaml_reader import parse_scalar

_SAVED = "a checkpoint is written at each validation: write `validate_every: @`"
_NO_MASK = "remove it: in a decoder it sees what came before, in an encoder all; `window` limits how far"
_LAYER = "write `residual: [self_attention]` and `residual: [feed_forward]`, in `repeat: {times: ..., stack: [...]}`"
FOREIGN_KEYS = {
    "recipe": {"beam_size num_beams beam_width": "write `decoding: {beam: {size: @}}`"},
    "validate_every": {
        "save_every save_steps checkpoint_every": _SAVED,
        "fp16": "write `precision: 16-mixed`",
        "bf16": "write `precision: bf16-mixed`",
    },
    "greedy": {"beam_size num_beams beam_width": "write `beam: {size: @}`"},
    "length_penalty": {"width": "write `size`: it is the width of the beam"},
    "embedding": {"layers num_layers": "write `repeat: {times: @, stack: [...]}` into a stack"},
    "max_distance": {"rope": "write `positions: rotary`", "mask causal is_causal": _NO_MASK},
    "short_conv": {"bidirectional": "remove it: in an encoder it reads both ways, in a decoder what came before"},
    "window": {"head_dim head_width d_head": "remove it: a head has the width divided by `heads`"},
    "self_attention": {"transformer transformer_layer transformer_block encoder_layer": _LAYER},
}
"""What to write for keys of other systems that no single key stands for, by a key of the mapping; `@` is the value."""
UNITS = {"%": 0.01, "k": 1_000}
UNITS_OF = {
    "minutes": {"m": 1, "min": 1, "minutes": 1, "h": 60, "hours": 60},
    "gib": {"g": 1, "gb": 1, "gib": 1, "t": 1024, "tb": 1024, "tib": 1024},
}
"""Units after a number: how many of the setting's own they are, by the end of its name; of other settings UNITS."""
BOOLEAN_WORDS = {**dict.fromkeys(("yes", "on", "y", "1"), "true"), **dict.fromkeys(("no", "off", "n", "0"), "false")}


def foreign_key_hint(name: str, mapping: Any, keys: Container[str]) -> str:
    """Return what to write for a key of another system, or ""; a mapping that has it takes `keys`."""
    rows = (row for key, rows in FOREIGN_KEYS.items() if key in keys for row in rows.items())
    hint = next((hint for words, hint in rows if name.lower() in words.split()), "")
    value = mapping.get(name) if isinstance(mapping, dict) else None
    return hint.replace("@", "..." if value is None or isinstance(value, (list, dict)) else flow_text(value))


def correct(value: Any, text: str, keyword: str, schema: Schema, name: str = "") -> str:
    """Return what was surely meant by a value that violates a keyword of its schema, or "".

    text: The value as it is written.
    name: The setting whose value it is.
    """
    branches = alternatives(schema)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and accepts_type(schema, "integer"):
        return str(int(value)) if accepts_scalar(schema, int(value)) else ""
    if isinstance(value, str) and (number := _number_meant(value, name, schema)):
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


def _number_meant(text: str, name: str, schema: Schema) -> str:
    """Return the number that is meant by a text such as `1,000`, or `10%` with a unit, if a setting takes it; or ""."""
    unit = text.lstrip("0123456789.,")
    number = parse_number(text.removesuffix(unit))
    times = (UNITS | UNITS_OF.get(name.rpartition("_")[-1], {})).get(unit.strip().lower())
    numbers = [parse_number(text), f"{float(number) * times:.10g}" if number and times else ""]
    return next((it for it in numbers if it and accepts_scalar(schema, parse_scalar(it))), "")


def name_hint(text: str, others: Container[str] = ()) -> str:
    """Return the rule of names and, for a text that is none, a name like it that is not among others."""
    rule = "a name begins with a letter from a to z, and has such letters, digits, `_` and `-`"
    name = similar_name(text)
    while name in others:
        name = f"x{name}"
    return f"write `{name}`: {rule}" if text.isascii() else rule


def place_hint(path: KeyPath, value: Any, keyword: str, schema: Schema) -> str:
    """Return what to write in place of a value that violates a keyword, where its place says so; "" elsewhere."""
    if path[0] == "data" and path[4:] == ("weight",) and keyword in LOWER_BOUNDS:
        return "write a number above 0, or remove the file"  # of several
    if path[-1] == "tie" and isinstance(value, bool):
        return "write whose: `[target]`, `[source, target]`, or `[]` for none"
    if path[0] == "data" and path[-1] in SPLITS and accepts_type(schema, "integer") and _is_share(value):
        return "write how many are held out, such as `500`, not their share"
    is_part = path[:2] == ("data", "text") and path[2:3] in [(split,) for split in SPLITS]
    if not is_part or not isinstance(value, (int, float)) or accepts_type(schema, "number"):
        return ""
    return "write how many documents are held out, or name a file" if accepts_type(schema, "integer") else "name a file"


def _is_share(value: Any) -> bool:
    return (isinstance(value, float) and 0 < value < 1) or (isinstance(value, str) and value.endswith("%"))


def accepted_hint(schema: Schema, keyword: str, detail: Any) -> str:
    """Return what a setting takes in place of a value that violates a keyword, and its default."""
    branches, accepted, default = alternatives(schema), describe(schema, keyword), schema.get("default")
    if default is None or default in ([], {}):
        return f"write {accepted}"
    if keyword in BOUNDS and len(branches) > 1:  # of several kinds of value, the message names no bound
        accepted = describe_bounds(next(branch for branch in branches if branch.get(keyword) == detail), keyword)
    elif "enum" in branches[0] and len(branches) == 1 and len(branches[0]["enum"]) > 1:  # which the message lists
        accepted = "one of them"
    return f"write {accepted}; the default is `{flow_text(default)}`"
