"""Error messages of schema validation: what is wrong, where, and what to write instead.

A fix is one of four kinds: the closest word, the words that are allowed, a bound, or to remove it.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from composer.errors import Edit, Fault, KeyPath, Mark, fault_at, format_path
from composer.recipe import edits
from composer.recipe.registry import CHOICE_KEYS, CHOICES, REMOVED_FROM_DECODING
from composer.recipe.schema_reader import (
    BOUNDS,
    DATA_SOURCES,
    IDENTIFIER,
    LOWER_BOUNDS,
    MAX_NAME,
    RECIPE_NAME,
    VERSION,
    Schema,
    accepts_scalar,
    accepts_type,
    allowed_words,
    alternatives,
    dereference,
    describe,
    describe_bounds,
    duplicate_fault,
    float32_problem,
    flow_text,
    intended_key,
    is_block_path,
    is_stack,
    json_type,
    mapping_branch,
    quote_all,
    scalar_text,
    unsupported_version,
    usage_example,
    with_article,
)
from composer.recipe.yaml_reader import Node, parse_scalar
from composer.suggest import (
    OF_OTHER_UNITS,
    TRAINER_KEYS,
    closest_word,
    did_you_mean,
    foreign_letter,
    suggested_form,
    synonyms,
    valid_name,
)

NAME_RULE = "a name begins with a letter from a to z, and has such letters, digits, `_` and `-`"

KINDS = {"string": "text", "boolean": "a boolean", "integer": "a number", "number": "a number"}
"""Scalars by their JSON types."""
CODES = {"type": "type", "pattern": "type", "enum": "value"}
"""Codes of wrong values by the keyword that they violate; of all others "bound"."""


class Repair(NamedTuple):
    """What to write instead, in words and, where a program can do it, as an edit of the text."""

    text: str
    edit: Edit | None = None


class SchemaError(NamedTuple):
    """One violation of the schema: the violated keyword, its detail, and the value at fault."""

    root: Schema
    """The whole schema."""
    path: KeyPath
    keyword: str
    detail: Any
    value: Any
    schema: Schema
    """The part of the schema that the value violates."""
    node: Node
    tree: Node
    """The whole recipe."""

    @property
    def names(self) -> list[str]:
        """The keys on the path, without list indices."""
        return [step for step in self.path if isinstance(step, str)]

    @property
    def owner(self) -> str:
        """The mapping at fault, by its name."""
        if self.names:
            return f"`{self.names[-1]}`"
        return "a sweep" if "sweep" in self.root["properties"] else "a recipe"

    @property
    def subject(self) -> str:
        """The value at fault, by its name."""
        if self.names and "x-first" in self.schema:
            return f"`{self.schema['x-first']}` of {self.owner}"
        is_item = self.names and self.path[-1] != self.names[-1]
        return f"an item of {self.owner}" if is_item else self.owner

    def fault(self, mark: Mark, code: str, message: str, fix: Repair) -> Fault:
        """Return a fault at the path."""
        return fault_at(mark, code, format_path(self.path), message, *fix)

    def fault_at_name(self, name: str, code: str, message: str, fix: Repair) -> Fault:
        """Return a fault at a key of the mapping at fault, or at a name without settings."""
        if not isinstance(self.value, dict):
            return self.fault(self.node.mark, code, message, fix)
        place = self.node.value[name].place
        return fault_at(place, code, format_path((*self.path, name)), message, *fix)

    def remove(self, name: str) -> Edit | None:
        """Return the edit that removes a key of the mapping at fault."""
        return edits.remove(self.tree, (*self.path, name))

    def is_beside(self, name: str, word: str) -> bool:
        """True if a key stands beside another in the same file; that of a base is replaced."""
        if not isinstance(self.value, dict) or word not in self.value:
            return False
        return self.node.value[word].place.file == self.node.value[name].place.file

    def rename(self, name: str, form: str) -> Edit | None:
        """Return the edit for another name, or another name with settings: `rnn: {cell: lstm}`."""
        if not isinstance(self.value, dict):  # a name without settings
            if ": " in form:
                return edits.replace_value(self.node, self.path, f"{{{form}}}")
            return edits.rename(self.node.mark, self.path, name, form)
        word, colon, settings = form.partition(": ")
        node, path = self.node.value[name], (*self.path, name)
        if self.is_beside(name, word):
            return None
        if isinstance(node.value, list) and not self.takes_list(word):
            return None
        if not colon:
            return edits.rename(node.place, path, name, word)
        if node.key is None or node.end is None or isinstance(node.value, (dict, list)):
            return None
        return edits.replace_value(Node("", node.key, end=node.end), path, f"{word}: {settings}")

    def takes_list(self, word: str) -> bool:
        """True if a list may stand at a key of the mapping at fault."""
        setting = self.schema.get("properties", {}).get(word, {})
        return accepts_type(dereference(self.root["$defs"], setting), "array")


def explain(error: SchemaError) -> Fault:
    """Return the fault for one violation of the schema."""
    return _EXPLANATIONS.get(error.keyword, _wrong_value)(error)


# ------------------------------------------------------------------------------------------- keys


def _unknown_key(error: SchemaError) -> Fault:
    name, keys = error.detail, list(error.schema["properties"])
    if fault := _removed_setting(error, error.path[:-1], name) or _trainer_argument(error, name):
        return fault
    is_section = not any(isinstance(step, int) for step in error.path)
    message = f"{error.owner} has no {'key' if is_section else 'setting'} `{name}`"
    stack = intended_key(error.schema, error.root["$defs"], name)
    if stack and not suggested_form(name, keys):
        message = f"`{name}` is a block, and no setting of {error.owner}"
        fix = Repair(f"write it into the stack: `{stack}: [{name}]`")
    else:
        fix = _fix_of_key(error, name, keys)
    return error.fault_at_name(name, "unknown", message + did_you_mean(name, keys), fix)


def _trainer_argument(error: SchemaError, name: str) -> Fault | None:
    if error.path != ("trainer",) or name not in TRAINER_KEYS:
        return None
    message = f"`{name}` cannot be set under `trainer`"
    return error.fault_at_name(name, "refused", message, Repair(TRAINER_KEYS[name]))


def _fix_of_key(error: SchemaError, name: str, keys: list[str]) -> Repair:
    allowed = f"allowed here: {quote_all(keys)}" if keys else "there are no settings here"
    for rule in KEY_FIXES:
        if fix := rule(error, name):
            return fix._replace(text=f"{fix.text}; {allowed}")
    # where another key is missing this may be what is meant, so a program does not remove it
    edit = None if _missing_keys(error) else error.remove(name)
    return Repair(f"remove it; {allowed}", edit)


def _similar_key(error: SchemaError, name: str) -> Repair | None:
    form = suggested_form(name, error.schema["properties"])
    if not form or error.is_beside(name, form.partition(": ")[0]):
        return None
    return Repair(f"write `{form}`", None if name in OF_OTHER_UNITS else error.rename(name, form))


def _key_of_another_section(error: SchemaError, name: str) -> Repair | None:
    home = _home(error.root, name) if len(error.path) < 2 else ""
    return Repair(home) if home else None


def _required_key(error: SchemaError, name: str) -> Repair | None:
    """A list under an unknown key, where the first key that is missing takes a list."""
    missing = _missing_keys(error)
    if not missing or not isinstance(error.value[name], list) or not error.takes_list(missing[0]):
        return None
    return Repair(f"write `{missing[0]}`", error.rename(name, missing[0]))


def _missing_keys(error: SchemaError) -> list[str]:
    return [key for key in error.schema.get("required", ()) if key not in error.value]


KEY_FIXES = (_similar_key, _key_of_another_section, _required_key)
"""Rules for the fix of an unknown key; the first that answers."""


def _home(root: Schema, name: str) -> str:
    """Say where to write a key that the top, a section or a choice has; "" if none has it."""
    defs = root["$defs"]
    for word in (name, *synonyms(name)):
        if word in root["properties"]:
            return f"write `{word}` at the top"
        for section in root["properties"]:
            if word in defs.get(section, {}).get("properties", {}):
                return f"write `{word}` in `{section}`"
        for table, choice in CHOICES.items():
            for entry in defs.get(table, {}).get("properties", {}):
                if word in defs[f"{table}.{entry}"]["properties"]:
                    return f"write `{word}` among the settings of `{'.'.join(choice.key)}`"
    return ""


def _missing_key(error: SchemaError) -> Fault:
    name = error.detail
    place = error.node.place if error.path else error.node.mark._replace(length=1)
    if not error.path and name in ("recipe", "sweep"):
        message, line = f"a {name} begins with the version of its language", f"{name}: {VERSION}"
        edit = edits.set_value(error.tree, (name,), str(VERSION))
        return fault_at(place, "missing", "", message, f"write `{line}` as the first line", edit)
    # the keys that the top and `model` require are listed apart from their schemas: a recipe's
    # bases may have them
    model = error.root["$defs"].get("model", {})
    owner = error.root if not error.path else model if error.path == ("model",) else error.schema
    meaning = owner["properties"][name].get("description", "")
    meaning = f" ({meaning[0].lower()}{meaning[1:].rstrip('.')})" if meaning else ""
    base, message = error.node.replaced, f"{error.owner} needs `{name}`"
    if base is not None and name in base.value:
        message += (
            f"; this replaces the whole of {error.owner} in {base.place.file}:{base.place.line}"
        )
    return error.fault(place, "missing", message, Repair(f"add `{name}:`{meaning}"))


def _removed_setting(error: SchemaError, choice: KeyPath, name: str) -> Fault | None:
    """Return the fault of a setting that decoders had once; None for other settings."""
    if CHOICE_KEYS.get(choice) != "decoders" or name not in REMOVED_FROM_DECODING:
        return None
    message = f"`{name}`: {REMOVED_FROM_DECODING[name]}"
    return error.fault_at_name(name, "removed", message, Repair("remove it", error.remove(name)))


def _invalid_name(error: SchemaError) -> Fault:
    is_taken = re.fullmatch(IDENTIFIER, error.detail)
    if is_taken:
        fix = Repair("the recipe's own keys are in the config already")
    else:
        fix = _fix_of_name(error, error.detail)
    message = f"`{error.detail}` cannot be a name{foreign_letter(error.detail)}"
    return error.fault_at_name(error.detail, "name", message, fix)


def _fix_of_name(error: SchemaError, text: str) -> Repair:
    """Return the fix of an invalid name, a key or a value."""
    name = valid_name(text)
    if isinstance(error.value, dict):
        return Repair(f"write `{name}`: {NAME_RULE}", error.rename(text, name))
    return Repair(f"write `{name}`: {NAME_RULE}", edits.replace_value(error.node, error.path, name))


def _data_source(error: SchemaError) -> Fault:
    if not error.detail:
        message = f"`data` needs one of {quote_all(DATA_SOURCES)}"
        return error.fault(error.node.place, "missing", message, Repair("write one of them"))
    first, second = error.detail[:2]
    message = f"`data` has `{first}` already, and only one of {quote_all(DATA_SOURCES)} can be"
    fix = Repair(f"remove `{second}`, or `{first}`", error.remove(second))
    return error.fault_at_name(second, "exclusive", message, fix)


def _exclusive_keys(error: SchemaError) -> Fault:
    first, second = sorted(error.detail, key=lambda name: error.node.value[name].place[:3])
    fix = Repair(f"remove one; write `{first}: null` if it is inherited", error.remove(second))
    return error.fault_at_name(
        second, "exclusive", f"`{first}` and `{second}` exclude each other", fix
    )


def _empty(error: SchemaError) -> Fault:
    if any(map(is_stack, alternatives(error.schema))):
        message = f"{error.subject} is a stack without blocks"
        fix = Repair(
            "write `[identity]` to change nothing",
            edits.replace_value(error.node, error.path, "[identity]"),
        )
        return error.fault(error.node.place, "empty", message, fix)
    message = f"{error.subject if error.keyword == 'minItems' else error.owner} is empty"
    fix = Repair("write something into it, or remove it", edits.remove(error.tree, error.path))
    return error.fault(error.node.place, "empty", message, fix)


def _duplicate(error: SchemaError) -> Fault:
    edit = edits.remove(error.tree, (*error.path, error.detail))
    return duplicate_fault(error.node.value, format_path(error.path), error.detail, edit)


# ----------------------------------------------------------------------- blocks and other choices


def _not_one_key(error: SchemaError) -> Fault:
    """Return the fault of a mapping that should have one key: a block, an optimizer, ..."""
    noun, names, keys = error.schema["x-noun"], list(error.schema["properties"]), list(error.value)
    if not keys:
        fix = Repair(f"write its name: {quote_all(names)}", edits.remove(error.tree, error.path))
        return error.fault(error.node.place, "empty", f"there is no {noun} here", fix)
    chosen = [key for key in keys if key in names]
    if chosen and len(keys) > 1:
        return _second_key(error, chosen[0], next(key for key in keys if key != chosen[0]))
    return _unknown_name(error, keys[0])


def _second_key(error: SchemaError, name: str, other: str) -> Fault:
    if removed := _removed_setting(error, error.path, other):
        return removed
    settings = error.root["$defs"][f"{error.schema['x-choice']}.{name}"]["properties"]
    if other in settings:
        message = f"`{other}` is a setting of `{name}`"
        fix = Repair(f"write `{name}: {{..., {other}: ...}}`")
        return error.fault_at_name(other, "exclusive", message, fix)
    noun = error.schema["x-noun"]
    if other in error.schema["properties"]:
        message = f"`{other}` is a second {noun} after `{name}`"
    else:
        message = (
            f"{with_article(noun)} has one key, and `{other}` follows"
            f" `{name}`{did_you_mean(other, settings)}"
        )
    is_block = error.schema["x-choice"] == "block"
    fix = Repair(f"begin a new item of the list: `- {other}`" if is_block else "keep one")
    return error.fault_at_name(other, "exclusive", message, fix)


def _unknown_name(error: SchemaError, name: str) -> Fault:
    if removed := _removed_setting(error, error.path, name):
        return removed
    names = list(error.schema["properties"])
    message = f"there is no {error.schema['x-noun']} called `{name}`{did_you_mean(name, names)}"
    if form := suggested_form(name, names):
        fix = Repair(f"write `{form}`", error.rename(name, form))
    else:
        fix = Repair(f"the names are {quote_all(names)}")
    return error.fault_at_name(name, "unknown", message, fix)


def _wrong_choice(error: SchemaError) -> Fault:
    """Return the fault of a value in place of a block, an optimizer, ..."""
    table, names, name = error.schema["x-choice"], error.schema["properties"], error.value
    if not isinstance(name, str):
        message = (
            f"{with_article(error.schema['x-noun'])} is a name, or a name with settings;"
            f" {_actual(error)}"
        )
        return error.fault(
            error.node.value_mark, "type", message, Repair(f"the names are {quote_all(names)}")
        )
    if name not in names:
        return _unknown_name(error, name)
    settings = error.root["$defs"][f"{table}.{name}"]
    required = settings["required"]
    meaning = settings["properties"][required[0]].get("description", "").rstrip(".")
    meaning = f": {meaning[0].lower()}{meaning[1:]}" if meaning and len(required) == 1 else ""
    fix = Repair(f"write `{usage_example(name, settings)}`{meaning}")
    return error.fault(error.node.mark, "missing", f"`{name}` needs {quote_all(required)}", fix)


# ------------------------------------------------------------------------------------------- values


def _wrong_value(error: SchemaError) -> Fault:
    if "x-choice" in error.schema:
        return _wrong_choice(error)
    if error.keyword == "minItems" and not error.value:
        return _empty(error)
    if error.keyword == "type" and error.value is None and accepts_type(error.schema, "object"):
        return _nothing_after_colon(error)
    if error.path in (("recipe",), ("sweep",)):
        subject = str(error.path[0])
        if type(error.value) is int and error.value > VERSION:
            return unsupported_version(error.node.value_mark, subject, error.value)
        message = f"`{subject}` is the version of the language, and the only one is {VERSION}"
        edit = edits.replace_value(error.node, error.path, str(VERSION))
        fix = Repair(f"write `{subject}: {VERSION}`", edit)
    else:
        message = f"{error.subject} takes {describe(error.schema, error.keyword)}"
        fix = _fix_of_value(error)
    code = CODES.get(error.keyword, "bound")
    return error.fault(error.node.value_mark, code, f"{message}; {_actual(error)}", fix)


def _nothing_after_colon(error: SchemaError) -> Fault:
    name = str(error.path[-1])
    if error.path == (name,) and name in error.root.get("else", {}).get("properties", {}):
        fix = Repair("write its keys below it, indented")
    elif error.schema.get("required"):
        fix = Repair(f"write `{usage_example(name, error.schema)}`")
    elif is_block_path(error.path):
        edit = edits.replace_value(error.node, error.path, "{}")
        fix = Repair(f"write `{name}` without the colon, or give it settings", edit)
    else:
        fix = Repair("remove it, or give it a value", edits.remove(error.tree, error.path))
    return error.fault(error.node.value_mark, "type", f"`{name}` has nothing after its colon", fix)


def _actual(error: SchemaError) -> str:
    """Describe the value that is there."""
    value = error.value
    if isinstance(value, list) and error.keyword in ("minItems", "maxItems"):
        return f"this has {len(value)}"
    if isinstance(value, (list, dict)):
        return f"this is a {'list' if isinstance(value, list) else 'mapping'}"
    if value == "":
        return "this is empty"
    if value is None:
        return "`null` is no value here" if error.node.text else "there is nothing here"
    text = error.node.text or flow_text(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"`{text}` is {_problem(error, value)}"


def _problem(error: SchemaError, value: Any) -> str:
    """Say why a scalar is not accepted."""
    words = allowed_words(error.schema)
    if isinstance(value, float) and not math.isfinite(value):
        return "not a finite number"
    if error.keyword in BOUNDS:
        return "too small" if error.keyword in LOWER_BOUNDS else "too large"
    if error.detail == RECIPE_NAME and len(value) > MAX_NAME:
        return f"too long: it has {len(value):,} characters"
    if type(value) in (int, float) and accepts_type(error.schema, "integer", "number"):
        return float32_problem(value) or "not a whole number"
    if error.keyword == "type" or (error.node.quoted and value in words):
        return KINDS[json_type(value)]
    return f"not{did_you_mean(flow_text(value), words)}"


def _fix_of_value(error: SchemaError) -> Repair:
    for rule in VALUE_FIXES:
        if fix := rule(error):
            return fix
    return _accepted_value(error)


def _is_scalar(error: SchemaError) -> bool:
    return not isinstance(error.value, (dict, list)) and error.value not in (None, "")


def _closest_word(error: SchemaError) -> Repair | None:
    if not _is_scalar(error):
        return None
    words = allowed_words(error.schema)
    if accepts_type(error.schema, "boolean"):
        words = [*words, "true", "false"]
    return _other_scalar(error, closest_word(flow_text(error.value), words))


def _other_type(error: SchemaError) -> Repair | None:
    """The same value in a type that is accepted."""
    if not _is_scalar(error) or not (isinstance(error.value, str) or error.keyword == "type"):
        return None
    return _other_scalar(error, _converted(error.value, error.node.text, error.schema))


def _other_scalar(error: SchemaError, text: str) -> Repair | None:
    if not text:
        return None
    mark = error.node.mark
    is_variable = mark.text[mark.column - 1 :].startswith("$")
    quotes = " without quotes" if error.node.quoted and text == error.node.text else ""
    where = " in `vars`" if is_variable else ""
    edit = edits.replace_value(error.node, error.path, text)
    return Repair(f"write `{text}`{quotes}{where}", edit)


def _valid_name(error: SchemaError) -> Repair | None:
    if not _is_scalar(error):
        return None
    is_name = any(branch.get("pattern") == IDENTIFIER for branch in alternatives(error.schema))
    return _fix_of_name(error, error.node.text) if is_name else None


def _list_of_blocks(error: SchemaError) -> Repair | None:
    if not isinstance(error.value, dict) or not any(map(is_stack, alternatives(error.schema))):
        return None
    return Repair("begin each block with `- `, in a line of its own")


def _mapping_example(error: SchemaError) -> Repair | None:
    mapping = mapping_branch(dereference(error.root["$defs"], error.schema))
    if not mapping:
        return None
    return Repair(f"write `{usage_example(str(error.path[-1]), mapping)}`")


def _accepted_value(error: SchemaError) -> Repair:
    """Return the fix that names accepted values; its edit writes the bound, or the default."""
    value, schema = error.value, error.schema
    if error.keyword in ("minimum", "maximum"):
        replacement = error.detail
    else:
        # a default in place of what is written would change what was meant: `devices: true` is not
        # `auto`
        replacement = schema.get("default") if value in (None, "") else None
    edit = None
    # -1 is "no limit" elsewhere
    if value != -1 and replacement is not None and not isinstance(replacement, (dict, list)):
        edit = edits.replace_value(error.node, error.path, scalar_text(replacement))
    return Repair(_accepted(schema, error.keyword, error.detail), edit)


VALUE_FIXES = (_closest_word, _other_type, _valid_name, _list_of_blocks, _mapping_example)
"""Rules for the fix of a wrong value; the first that answers."""


def _converted(value: str | float, text: str, schema: Schema) -> str:
    """Return the same scalar in a type that is accepted, or as the only item of a list; or ""."""
    if isinstance(value, str):
        text = text.strip()
        number = parse_scalar(text) if text and len(text) < MAX_NAME else text
        if type(number) in (int, float) and accepts_scalar(schema, number):
            return text
    elif _is_whole(value) and accepts_scalar(schema, int(value)):
        return str(int(value))
    elif accepts_scalar(schema, text):
        return f'"{text}"'
    for branch in alternatives(schema):
        items = branch.get("items", {})
        if is_stack(branch) and isinstance(value, str):
            return f"[{text}]"
        if any(item.get("type") == json_type(value) for item in alternatives(items)):
            return f"[{', '.join([text] * max(1, branch.get('minItems', 1)))}]"
    return ""


def _is_whole(number: float) -> bool:
    return float(number).is_integer() and not isinstance(number, bool)


def _accepted(schema: Schema, keyword: str, detail: Any) -> str:
    """Say what a setting takes in place of a value that violates a keyword, and its default."""
    branches, default = alternatives(schema), schema.get("default")
    if default is None or default in ([], {}):
        return f"write {describe(schema, keyword)}"
    accepted = describe(schema, keyword)
    if keyword in BOUNDS and len(branches) > 1:  # the message names no bound
        bounded = next(branch for branch in branches if branch.get(keyword) == detail)
        accepted = describe_bounds(bounded, keyword)
    elif len(branches) == 1 and len(branches[0].get("enum", ())) > 1:  # the message lists them
        accepted = "one of them"
    return f"write {accepted}; the default is `{flow_text(default)}`"


_EXPLANATIONS = {
    "additionalProperties": _unknown_key,
    "required": _missing_key,
    "propertyNames": _invalid_name,
    "oneOf": _data_source,
    "not": _exclusive_keys,
    "minProperties": _empty,
    "uniqueItems": _duplicate,
    "x-choice": _not_one_key,
}
