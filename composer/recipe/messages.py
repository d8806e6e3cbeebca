"""A fault of the schema in words: what is wrong, where, and what to write instead."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from composer.errors import Fault, closest_match, did_you_mean, format_path
from composer.recipe.json_schema import (
    VERSION,
    Schema,
    accepts_type,
    allowed_words,
    alternatives,
    dereference,
    describe,
    describe_bounds,
    is_stack,
    json_type,
    mapping_branch,
    parse_number,
    quote_all,
    scalar_text,
    usage_example,
)
from composer.recipe.node import Mark, Node, fault_at


def explain(root: Node, whole: Schema, path: Path, keyword: str, detail: Any, value: Any, schema: Schema) -> Fault:
    """The fault for one error of the schema at a path."""
    wrong = SchemaError(whole, path, keyword, detail, value, schema, _node_at(root, path))
    return _EXPLANATIONS.get(keyword, _wrong_value)(wrong)


def _node_at(root: Node, path: Path) -> Node:
    for step in path:
        root = root.value[step]
    return root


# ------------------------------------------------------------------------------------------- keys


def _unknown_key(wrong: SchemaError) -> Fault:
    name, keys = wrong.detail, list(wrong.schema["properties"])
    mark = wrong.node.value[name].place
    refused = wrong.schema.get("x-refused", {})
    if name in refused:
        return wrong.fault(mark, "refused", f"`{name}` is not Lightning's to decide here", refused[name], name)
    if name in wrong.schema.get("x-renamed", {}):
        return _renamed_word(wrong, name, mark, name)
    message = f"{_owner(wrong)} has no {'key' if _is_section(wrong) else 'setting'} `{name}`{did_you_mean(name, keys)}"
    return wrong.fault(mark, "unknown", message, _key_hint(wrong, name, keys), name)


def _renamed_word(wrong: SchemaError, old: str, mark: Mark, key: str | None) -> Fault:
    """Return the fault of a word that the language had once. `key` is the word if it is a key."""
    new: str = wrong.schema["x-renamed"][old]
    return wrong.fault(mark, "renamed", f"`{old}` is called `{new.partition(':')[0]}` now", f"write `{new}`", key)


def _owner(wrong: SchemaError) -> str:
    names = [step for step in wrong.path if isinstance(step, str)]
    return f"`{names[-1]}`" if names else wrong.document


def _is_section(wrong: SchemaError) -> bool:
    return not any(isinstance(step, int) for step in wrong.path)


def _key_hint(wrong: SchemaError, name: str, keys: list[str]) -> str:
    close = closest_match(name, keys)
    if close:
        return f"write `{close}`; allowed here: {quote_all(keys)}"
    home = _section_hint(wrong, name)
    if home:
        return f"`{name}` belongs {home}"
    return f"remove it; allowed here: {quote_all(keys)}" if keys else "remove it; there are no settings here"


def _section_hint(wrong: SchemaError, name: str) -> str:
    """Where there is such a key, for one that was written beside its section or in another."""
    if not _is_section(wrong) or len(wrong.path) > 1:
        return ""
    if name in wrong.root["properties"]:
        return f"beside `{wrong.path[0]}`, not under it"
    sections = [key for key, each in wrong.root["properties"].items() if key in wrong.root["$defs"] and "$ref" in each]
    return next((f"under `{each}`" for each in sections if name in wrong.root["$defs"][each].get("properties", {})), "")


def _missing_key(wrong: SchemaError) -> Fault:
    name = wrong.detail
    if not wrong.path and name in ("recipe", "sweep"):
        message = f"a {name} begins with the version of its language"
        hint = f"write `{name}: {VERSION}` as the first line"
        return fault_at(wrong.node.mark._replace(length=1), "missing", "", message, hint)
    what = _keys_here(wrong)[name].get("description", "")
    message = f"{_owner(wrong)} needs `{name}`"
    place = wrong.node.place if wrong.path else wrong.node.mark._replace(length=1)
    return wrong.fault(place, "missing", message, f"add `{name}:`{_in_brackets(what)}")


def _keys_here(wrong: SchemaError) -> dict[str, Schema]:
    """The keys of a mapping; what a recipe and its model must hold is said apart from what they may."""
    if not wrong.path:
        return wrong.root["properties"]
    return wrong.root["$defs"]["model"]["properties"] if wrong.path == ("model",) else wrong.schema["properties"]


def _in_brackets(description: str) -> str:
    return f" ({description[0].lower()}{description[1:].rstrip('.')})" if description else ""


def _bad_name(wrong: SchemaError) -> Fault:
    name = wrong.detail
    mark = wrong.node.value[name].place
    return wrong.fault(
        mark,
        "name",
        f"`{name}` cannot be a name",
        "a name has letters, digits, `_` and `-`, and begins with a letter",
        name,
    )


def _data_source(wrong: SchemaError) -> Fault:
    if not wrong.detail:
        hint = (
            "write `parallel:` for files, `hub:` for a data set of the hub, `generate:` for a generated task, or "
            "`babi:` for stories with questions"
        )
        message = "`data` needs one of `parallel`, `hub`, `generate` and `babi`"
        return wrong.fault(wrong.node.place, "missing", message, hint)
    first, second = wrong.detail[:2]
    message = f"`data` has `{first}` already, and only one of `parallel`, `hub`, `generate` and `babi` can be"
    return wrong.fault(wrong.node.value[second].place, "second", message, f"remove `{second}`, or `{first}`", second)


def _exclusive_keys(wrong: SchemaError) -> Fault:
    marks = {name: wrong.node.value[name].place for name in wrong.detail}
    first, second = sorted(wrong.detail, key=lambda name: marks[name][:3])
    message = f"`{first}` and `{second}` exclude each other"
    hint = f"remove one; write `{first}: null` if it is inherited"
    return wrong.fault(marks[second], "second", message, hint, second)


def _empty_mapping(wrong: SchemaError) -> Fault:
    return wrong.fault(wrong.node.place, "empty", f"{_owner(wrong)} is empty", "write something into it, or remove it")


# ------------------------------------------------------------------------------------------- blocks and other choices


def _not_single(wrong: SchemaError) -> Fault:
    """A mapping that should have one key: a block, an optimizer, ..."""
    table, names = wrong.schema["x-noun"], list(wrong.schema["properties"])
    keys = list(wrong.value)
    if not keys:
        return wrong.fault(
            wrong.node.place, "empty", f"there is no {table} here", f"write its name: {quote_all(names)}"
        )
    known = [key for key in keys if key in names]
    if "type" in keys and not known:
        return _type_key(wrong, table, names)
    if len(known) == 1 and len(keys) > 1:
        return _second_key(wrong, table, known[0], next(key for key in keys if key != known[0]))
    if len(known) > 1:
        mark = wrong.node.value[known[1]].place
        message = f"a second {table} stands beside `{known[0]}`"
        return wrong.fault(mark, "second", message, _separate_hint(wrong, known[1]), known[1])
    return _unknown_name(wrong, table, names, keys[0], wrong.node.value[keys[0]].place, keys[0])


def _separate_hint(wrong: SchemaError, second: str) -> str:
    if wrong.schema["x-choice"] == "block":
        return f"begin a new item of the list: `- {second}`"
    return f"keep one; on the command line, set the whole: `{format_path(wrong.path)}={{{second}: {{...}}}}`"


def _type_key(wrong: SchemaError, table: str, names: list[str]) -> Fault:
    """`type: rnn`, as other systems write it."""
    node = wrong.node.value["type"]
    rest = ", ".join(f"{key}: ..." for key in wrong.value if key != "type")
    named = node.value if isinstance(node.value, str) else names[0]
    name = named if named in names else closest_match(named, names) or names[0]
    shown = f"{name}: {{{rest}}}" if rest else name
    shown = f"- {shown}" if table == "block" else shown
    message = f"{_a(table)} has no `type`; its name is the key"
    return wrong.fault(node.place, "unknown", message, f"write `{shown}`", "type")


def _second_key(wrong: SchemaError, table: str, name: str, other: str) -> Fault:
    settings = _settings(wrong, name)
    mark = wrong.node.value[other].place
    if other in settings and wrong.value[name] is None:
        message = f"`{other}` stands beside `{name}`, and belongs under it"
        return wrong.fault(mark, "second", message, f"indent `{other}` further than `{name}`", other)
    if other in settings:
        message = f"`{other}` stands beside `{name}`, and belongs among its settings"
        return wrong.fault(mark, "second", message, f"write `{name}: {{..., {other}: ...}}`", other)
    message = f"{_a(table)} has one key, and `{other}` stands beside `{name}`{did_you_mean(other, settings)}"
    return wrong.fault(mark, "second", message, _separate_hint(wrong, other), other)


def _settings(wrong: SchemaError, name: str) -> dict[str, Schema]:
    entry = wrong.root["$defs"][f"{wrong.schema['x-choice']}.{name}"]
    return entry["properties"]


def _unknown_name(wrong: SchemaError, table: str, names: list[str], name: str, mark: Mark, key: str | None) -> Fault:
    if name in wrong.schema.get("x-renamed", {}):
        return _renamed_word(wrong, name, mark, key)
    close = closest_match(name, names)
    hint = f"write `{close}`" if close else f"the names are {quote_all(names)}"
    return wrong.fault(mark, "unknown", f"there is no {table} called `{name}`{did_you_mean(name, names)}", hint, key)


def _bare_name(wrong: SchemaError) -> Fault:
    """A text where a block, an optimizer, ... should be."""
    table = wrong.schema["x-choice"]
    mapping = wrong.schema["properties"]
    name = wrong.value
    if name not in mapping:
        return _unknown_name(wrong, wrong.schema["x-noun"], list(mapping), name, wrong.node.mark, None)
    settings = wrong.root["$defs"][f"{table}.{name}"]
    needed = settings["required"]
    message = f"`{name}` needs {quote_all(needed)}"
    return wrong.fault(wrong.node.mark, "missing", message, f"write `{usage_example(name, settings)}`")


def _wrong_choice(wrong: SchemaError) -> Fault:
    table, names = wrong.schema["x-noun"], wrong.schema["properties"]
    message = f"{_a(table)} is a name, or a name with settings; {_actual(wrong)}"
    return wrong.fault(_value_mark(wrong), "type", message, f"the names are {quote_all(names)}")


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"


# ------------------------------------------------------------------------------------------- values


def _wrong_value(wrong: SchemaError) -> Fault:
    if "x-choice" in wrong.schema:
        return _bare_name(wrong) if isinstance(wrong.value, str) else _wrong_choice(wrong)
    if wrong.path in (("recipe",), ("sweep",)):
        return _bad_version(wrong, str(wrong.path[0]))
    if wrong.keyword == "minItems" and not wrong.value:
        return _empty_list(wrong)
    if wrong.keyword == "type" and wrong.value is None and _is_settings(wrong):
        return _nothing_after_colon(wrong)
    message = f"{wrong.subject} takes {describe(wrong.schema, wrong.keyword)}; {_actual(wrong)}"
    return wrong.fault(_value_mark(wrong), _code(wrong), message, value_hint(wrong))


def _bad_version(wrong: SchemaError, subject: str) -> Fault:
    if type(wrong.value) is int and wrong.value > VERSION:
        return unsupported_version(_value_mark(wrong), subject, wrong.value)
    message = f"`{subject}` is the version of the language, and the only one is {VERSION}; {_actual(wrong)}"
    return fault_at(_value_mark(wrong), _code(wrong), subject, message, f"write `{subject}: {VERSION}`")


def unsupported_version(mark: Mark, subject: str, version: int) -> Fault:
    """Return the fault of a recipe (or a sweep) in a version of the language that this package does not read."""
    message = f"this {subject} is written in version {version} of its language; this seqcomposer reads"
    message += f" version {VERSION}"
    return fault_at(mark, "version", subject, message, "install a newer seqcomposer")


def _code(wrong: SchemaError) -> str:
    return "type" if wrong.keyword in ("type", "pattern") else "value" if wrong.keyword == "enum" else "bound"


def _value_mark(wrong: SchemaError) -> Mark:
    # nothing was written: the key is all there is to point at
    return wrong.node.place if wrong.value is None and not wrong.node.text else wrong.node.mark


def _empty_list(wrong: SchemaError) -> Fault:
    mark = wrong.node.place
    if any(is_stack(each) for each in alternatives(wrong.schema)):
        message = f"{wrong.subject} is a stack without blocks"
        return wrong.fault(mark, "empty", message, "write `[identity]` to change nothing")
    return wrong.fault(mark, "empty", f"{wrong.subject} is empty", "write something into it, or remove it")


def _is_settings(wrong: SchemaError) -> bool:
    return any(each.get("type") == "object" for each in alternatives(wrong.schema))


def _nothing_after_colon(wrong: SchemaError) -> Fault:
    name = wrong.path[-1]
    hint = f"write `{name}` without the colon, or give it settings" if "x-first" in wrong.schema else "remove the key"
    if wrong.schema.get("required"):
        hint = f"write `{usage_example(str(name), wrong.schema)}`"
    return wrong.fault(_value_mark(wrong), "type", f"`{name}` has nothing after its colon", hint)


def _actual(wrong: SchemaError) -> str:
    """What stands there instead."""
    value = wrong.value
    if isinstance(value, list) and wrong.keyword in ("minItems", "maxItems"):
        return f"this has {len(value)}"
    if isinstance(value, (list, dict)):
        return f"this is a {'list' if isinstance(value, list) else 'mapping'}"
    if value is None:
        return "`null` is no value here" if wrong.node.text else "there is nothing here"
    shown = f"`{_short(wrong.node.text or scalar_text(value))}`"
    return f"{shown} is {_problem(wrong, value)}"


def _problem(wrong: SchemaError, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "no number to compute with"
    if wrong.keyword in ("minimum", "exclusiveMinimum"):
        return "too small"
    if wrong.keyword in ("maximum", "exclusiveMaximum"):
        return "too large"
    if isinstance(value, bool) and accepts_type(wrong.schema, "integer", "number"):
        return "not a number"
    if wrong.keyword == "type" and isinstance(value, (bool, int, float)) and not _takes_number(wrong, value):
        return "a truth value" if isinstance(value, bool) else "a number"
    if isinstance(value, float) and accepts_type(wrong.schema, "integer"):
        return "not a whole number"
    if isinstance(value, str) and (
        wrong.keyword == "type" or (wrong.node.quoted and value in allowed_words(wrong.schema))
    ):
        return "text"
    return f"not{did_you_mean(scalar_text(value), allowed_words(wrong.schema))}"


def _takes_number(wrong: SchemaError, value: float) -> bool:
    return accepts_type(wrong.schema, "boolean" if isinstance(value, bool) else "integer", "number")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


_EXPLANATIONS = {
    "additionalProperties": _unknown_key,
    "required": _missing_key,
    "propertyNames": _bad_name,
    "oneOf": _data_source,
    "not": _exclusive_keys,
    "minProperties": _empty_mapping,
    "x-choice": _not_single,
}


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
    mended = _corrected(wrong)
    if mended:
        return f"write `{mended}`{' without quotes' if wrong.node.quoted and mended == wrong.node.text else ''}"
    stack = any(is_stack(each) for each in alternatives(wrong.schema))
    if stack and isinstance(wrong.value, dict):
        return "begin each block with `- `"
    if mapping_branch(_dereferenced(wrong)):
        return f"write `{usage_example(str(wrong.path[-1]), mapping_branch(_dereferenced(wrong)))}`"
    if wrong.schema.get("default") is not None and wrong.schema["default"] not in ([], {}):
        return f"{_bounds_hint(wrong)}the default is `{scalar_text(wrong.schema['default'])}`"
    return f"write {describe(wrong.schema, wrong.keyword)}"


def _dereferenced(wrong: SchemaError) -> Schema:
    """The schema, and what it refers to."""
    return dereference(wrong.root["$defs"], wrong.schema)


def _bounds_hint(wrong: SchemaError) -> str:
    """What number to write, where one was out of the bounds of one alternative among several."""
    numbers = [each for each in alternatives(wrong.schema) if each.get("type") in ("integer", "number")]
    if wrong.keyword not in BOUNDS or len(alternatives(wrong.schema)) == 1:
        return ""
    broken = next(each for each in numbers if each.get(wrong.keyword) == wrong.detail)
    return f"write {describe_bounds(broken, wrong.keyword)}; "


def _corrected(wrong: SchemaError) -> str:
    """What was surely meant, or ""."""
    value, schema = wrong.value, wrong.schema
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and accepts_type(schema, "integer"):
        return str(int(value)) if abs(value) < 1e15 else ""
    if isinstance(value, str) and accepts_type(schema, "integer", "number") and parse_number(value):
        return parse_number(value)
    if isinstance(value, (str, int)) and accepts_type(schema, "boolean") and str(value).lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[str(value).lower()]
    if isinstance(value, (int, float)) and wrong.keyword == "type" and accepts_type(schema, "string"):
        return f'"{wrong.node.text}"'
    if isinstance(value, str) and any(is_stack(each) for each in alternatives(schema)):
        return f"[{value}]"
    if value is None or isinstance(value, (list, dict)):
        return ""
    return closest_match(scalar_text(value), allowed_words(schema)) or _as_list(wrong)


def _as_list(wrong: SchemaError) -> str:
    """The list of a single value, where lists of its kind are what is wanted, or ""."""
    if wrong.keyword != "type":
        return ""
    for part in alternatives(wrong.schema):
        if any(each.get("type") == json_type(wrong.value) for each in alternatives(part.get("items", {}))):
            return f"[{', '.join([wrong.node.text] * max(1, part.get('minItems', 1)))}]"
    return ""
