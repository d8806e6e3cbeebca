"""Error messages of schema validation: what is wrong, where, and what to write instead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from composer.errors import Fault, KeyPath, Mark, closest_match, did_you_mean, fault_at, foreign_letter, format_path
from composer.recipe.corrections import accepted_hint, correct, foreign_key_hint, name_hint, place_hint
from composer.recipe.registry import CHOICE_KEYS, REMOVED_FROM_DECODING
from composer.recipe.schema_reader import (
    BOUNDS,
    DATA_SOURCES,
    IDENTIFIER,
    LOWER_BOUNDS,
    MAX_NAME,
    RECIPE_NAME,
    VERSION,
    Schema,
    accepts_type,
    allowed_words,
    alternatives,
    dereference,
    describe,
    duplicate_fault,
    entry_with_word,
    float32_problem,
    flow_text,
    home_of,
    inline_settings,
    intended_key,
    is_stack,
    mapping_branch,
    quote_all,
    setting_of_choice,
    unsupported_version,
    usage_example,
    with_article,
)
from composer.recipe.yaml_reader import COMMAND_LINE, Node

_JOINED = re.compile(r"([A-Za-z_][\w-]*)(?: *[:\uff1a=] *| +)(.+)")


class SchemaError(NamedTuple):
    """One violation of the schema: the keyword that is violated, its detail, and the value and node at fault."""

    root: Schema
    """The whole schema."""
    path: KeyPath
    keyword: str
    detail: Any
    value: Any
    schema: Schema
    """The part of the schema that the value violates."""
    node: Node

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
        return f"an item of {self.owner}" if self.names and self.path[-1] != self.names[-1] else self.owner

    def fault(self, mark: Mark, code: str, message: str, hint: str) -> Fault:
        """Return a fault at the path."""
        return fault_at(mark, code, format_path(self.path), message, hint)

    def fault_at_name(self, name: str, code: str, message: str, hint: str) -> Fault:
        """Return a fault that points at a key of the mapping at fault, or at a name without settings."""
        if not isinstance(self.value, dict):
            return self.fault(self.node.mark, code, message, hint)
        return fault_at(self.node.value[name].place, code, format_path((*self.path, name)), message, hint)


def explain(error: SchemaError) -> Fault:
    """Return the fault for one violation of the schema."""
    return _EXPLANATIONS.get(error.keyword, _wrong_value)(error)


# ------------------------------------------------------------------------------------------- keys


def _unknown_key(error: SchemaError) -> Fault:
    name, keys = error.detail, list(error.schema["properties"])
    if removed := _removed_setting(error, error.path[:-1], name):
        return removed
    if hint := error.schema.get("x-refused", {}).get(name):
        return error.fault_at_name(name, "refused", f"`{name}` cannot be set under `trainer`", hint)
    if joined := _joined_key(error, name, keys):
        return joined
    is_section = not any(isinstance(step, int) for step in error.path)
    message = f"{error.owner} has no {'key' if is_section else 'setting'} `{name}`"
    if hint := foreign_key_hint(name, error.value, keys):
        return error.fault_at_name(name, "unknown", message, hint)
    message += did_you_mean(name, keys)
    if close := closest_match(name, keys):
        form = entry_with_word(error.root["$defs"], "defaults", close, name)
        hint = f"write `{form}`; allowed here: {quote_all(keys)}"
    elif stack := intended_key(error.schema, error.root["$defs"], name):
        message = f"`{name}` is a block, and no setting of {error.owner}"
        hint = f"write it into the stack: `{stack}: [{name}{inline_settings(error.value[name])}]`"
    else:
        rest = f"allowed here: {quote_all(keys)}" if keys else "there are no settings here"
        # what a key of `model` says is of all blocks, and may be another thing than was meant of one
        home = home_of(error.root, error.path, name) if error.path[:1] != ("model",) or len(error.path) == 1 else ()
        hint = f"write it in `{format_path(home)}`" if home else "remove it"
        hint = _choice_hint(error, name) or f"{hint}; {rest}"
    return error.fault_at_name(name, "unknown", message, hint)


def _choice_hint(error: SchemaError, name: str) -> str:
    """Return how to write `lr`, a setting of the optimizer in use or of another choice; or ""."""
    value = error.value if isinstance(error.value, dict) else {}
    path, is_alone = setting_of_choice(error.root, error.path, value, name)
    if not path or not value:
        return ""
    keys = [str(step) for step in path[min(len(error.path), len(path) - 3) :]]
    setting, others = inline_settings(value[name]), "" if is_alone else "..., "
    form = f"write `{': {'.join((*keys[:-1], others + keys[-1]))}{setting}{'}' * (len(keys) - 1)}`"
    on_command_line = error.node.value[name].place.file == COMMAND_LINE
    return form + (f", on the command line `{format_path(path)}={setting[2:]}`" if on_command_line else "")


def _joined_key(error: SchemaError, word: str, names: Iterable[str]) -> Fault | None:
    """Return the fault of `width:8`, a key and its value in one word; None for another word."""
    parts = _JOINED.fullmatch(word)
    key = closest_match(parts[1], names) if parts else ""
    if not parts or key != parts[1].lower().replace("-", "_"):
        return None
    message = f"`{word}` is one word{foreign_letter(word)}"
    message += "; a space is missing after the `:`" if ":" in word else "; `: ` parts a key and its value"
    return error.fault_at_name(word, "syntax", message, f"write `{key}: {parts[2]}`")


def _removed_setting(error: SchemaError, choice: KeyPath, name: str) -> Fault | None:
    """Return the fault of a setting that ways of decoding had once, at the key where one is chosen; None of others."""
    if CHOICE_KEYS.get(choice) != "decoders" or name not in REMOVED_FROM_DECODING:
        return None
    return error.fault_at_name(name, "removed", f"`{name}`: {REMOVED_FROM_DECODING[name]}", "remove it")


def _missing_key(error: SchemaError) -> Fault:
    name = error.detail
    place = error.node.place if error.path else error.node.mark._replace(length=1)
    if not error.path and name in ("recipe", "sweep"):
        message = f"a {name} begins with the version of its language"
        return fault_at(place, "missing", "", message, f"write `{name}: {VERSION}` as the first line")
    # the keys that the top and `model` require are listed apart from their schemas: a recipe's bases may have them
    model = error.root["$defs"].get("model", {})
    owner = error.root if not error.path else model if error.path == ("model",) else error.schema
    meaning = owner["properties"][name].get("description", "")
    meaning = f" ({meaning[0].lower()}{meaning[1:].rstrip('.')})" if meaning else ""
    base, message = error.node.replaced, f"{error.owner} needs `{name}`"
    if base is not None and name in base.value:
        message += f"; this replaces the whole of {error.owner} in {base.place.file}:{base.place.line}"
    return error.fault(place, "missing", message, f"add `{name}:`{meaning}")


def _invalid_name(error: SchemaError) -> Fault:
    is_taken = re.fullmatch(IDENTIFIER, error.detail)
    hint = "the recipe's own keys are in the config already" if is_taken else name_hint(error.detail, error.value)
    message = f"`{error.detail}` cannot be a name{foreign_letter(error.detail)}"
    return error.fault_at_name(error.detail, "name", message, hint)


def _data_source(error: SchemaError) -> Fault:
    if not error.detail:
        hint = "write `parallel:` for files of pairs, `table:` for a table with images, sounds or vectors, "
        hint += "`text:` for a text, `hub:` for a data set of the hub, "
        hint += "`generate:` for a generated task, or `babi:` for stories with questions"
        return error.fault(error.node.place, "missing", f"`data` needs one of {quote_all(DATA_SOURCES)}", hint)
    first, second = error.detail[:2]
    message = f"`data` has `{first}` already, and only one of {quote_all(DATA_SOURCES)} can be"
    return error.fault_at_name(second, "exclusive", message, f"remove `{second}`, or `{first}`")


def _exclusive_keys(error: SchemaError) -> Fault:
    first, second = sorted(error.detail, key=lambda name: error.node.value[name].place[:3])
    hint = f"remove one; write `{first}: null` if it is inherited"
    return error.fault_at_name(second, "exclusive", f"`{first}` and `{second}` exclude each other", hint)


def _empty(error: SchemaError) -> Fault:
    if any(map(is_stack, alternatives(error.schema))):
        message = f"{error.subject} is a stack without blocks"
        return error.fault(error.node.place, "empty", message, "write `[identity]` to change nothing")
    message = f"{error.subject if error.keyword == 'minItems' else error.owner} is empty"
    return error.fault(error.node.place, "empty", message, "write something into it, or remove it")


# ------------------------------------------------------------------------------------------- blocks and other choices


def _not_one_key(error: SchemaError) -> Fault:
    """Return the fault of a mapping that should have one key: a block, an optimizer, ..."""
    noun, names, keys = error.schema["x-noun"], list(error.schema["properties"]), list(error.value)
    if not keys:
        return error.fault(error.node.place, "empty", f"there is no {noun} here", f"write its name: {quote_all(names)}")
    chosen = [key for key in keys if key in names]
    if "type" in keys and not chosen:
        return _type_key(error, names)
    if len(chosen) > 1:
        message = f"`{chosen[1]}` is a second {noun} after `{chosen[0]}`"
        return error.fault_at_name(chosen[1], "exclusive", message, _separate_hint(error, chosen[1]))
    if len(chosen) == 1 and len(keys) > 1:
        return _second_key(error, chosen[0], next(key for key in keys if key != chosen[0]))
    return _unknown_name(error, keys[0])


def _separate_hint(error: SchemaError, second: str) -> str:
    # brackets would be a list in an axis
    path, place = ".".join(map(str, error.path)), error.node.value[second].place
    if place.file == COMMAND_LINE:
        return f"keep one; as an override, write `{path}={flow_text({second: error.value[second]})}`"
    if not place.text[: place.column - 1].endswith("."):
        return f"begin a new item of the list: `- {second}`" if error.schema["x-choice"] == "block" else "keep one"
    # the end of a path that a sweep sets
    if any(error.root["$defs"][f"{error.schema['x-choice']}.{key}"].get("required") for key in error.value):
        return f"let an axis `extend` the base by recipes with another `{path}`"
    return f"choose it by an axis: `{{set: {path}, values: [{', '.join(error.value)}]}}`"


def _type_key(error: SchemaError, names: list[str]) -> Fault:
    """Return the fault of `type: rnn`, as other systems write it."""
    value, noun = error.node.value["type"].value, error.schema["x-noun"]
    name = (closest_match(value, names) if isinstance(value, str) else "") or names[0]
    settings = ", ".join(f"{key}: ..." for key in error.value if key != "type")
    form = ("- " if noun == "block" else "") + (f"{name}: {{{settings}}}" if settings else name)
    message = f"{with_article(noun)} has no `type`; its name is the key"
    return error.fault_at_name("type", "unknown", message, f"write `{form}`")


def _second_key(error: SchemaError, name: str, other: str) -> Fault:
    if removed := _removed_setting(error, error.path, other):
        return removed
    settings = error.root["$defs"][f"{error.schema['x-choice']}.{name}"]["properties"]
    message, hint = f"`{other}` is a setting of `{name}`", f"write `{name}: {{..., {other}: ...}}`"
    if other not in settings:
        noun, guess = with_article(error.schema["x-noun"]), did_you_mean(other, settings)
        message = f"{noun} has one key, and `{other}` follows `{name}`{guess}"
        hint = _choice_hint(error, other) or _separate_hint(error, other)
    elif error.value[name] is None:
        hint = f"indent `{other}` further than `{name}`"
    return error.fault_at_name(other, "exclusive", message, hint)


def _unknown_name(error: SchemaError, name: str) -> Fault:
    if removed := _removed_setting(error, error.path, name):
        return removed
    names = list(error.schema["properties"])
    if joined := _joined_key(error, name, names):
        return joined
    message = f"there is no {error.schema['x-noun']} called `{name}`"
    if foreign := foreign_key_hint(name, error.value, names):
        return error.fault_at_name(name, "unknown", message, foreign)
    if close := closest_match(name.removeprefix("-"), names):
        hint = f"write `{entry_with_word(error.root['$defs'], error.schema['x-choice'], close, name)}`"
    elif "file" in names and "." in name:
        hint = f"write `{error.path[-1]}: {{file: {name}}}`"
    else:
        hint = _choice_hint(error, name) or f"the names are {quote_all(names)}"
    return error.fault_at_name(name, "unknown", message + did_you_mean(name, names), hint)


def _wrong_choice(error: SchemaError) -> Fault:
    """Return the fault of what is no mapping where a block, an optimizer, ... should be."""
    table, names, name = error.schema["x-choice"], error.schema["properties"], error.value
    if not isinstance(name, str):
        message = f"{with_article(error.schema['x-noun'])} is a name, or a name with settings; {_actual(error)}"
        return error.fault(error.node.value_mark, "type", message, f"the names are {quote_all(names)}")
    if name not in names:
        return _unknown_name(error, name)
    settings = error.root["$defs"][f"{table}.{name}"]
    required = settings["required"]
    meaning = settings["properties"][required[0]].get("description", "").rstrip(".")
    meaning = f": {meaning[0].lower()}{meaning[1:]}" if meaning and len(required) == 1 else ""
    hint = f"write `{usage_example(name, settings)}`{meaning}"
    return error.fault(error.node.mark, "missing", f"`{name}` needs {quote_all(required)}", hint)


# ------------------------------------------------------------------------------------------- values


def _wrong_value(error: SchemaError) -> Fault:
    if "x-choice" in error.schema:
        return _wrong_choice(error)
    if error.keyword == "minItems" and not error.value:
        return _empty(error)
    branches = [dereference(error.root["$defs"], branch) for branch in alternatives(error.schema)]
    settings = [name for branch in branches for name in branch.get("properties", ())]
    if isinstance(error.value, str) and (joined := _joined_key(error, error.value, settings)):
        return joined
    if error.keyword == "type" and error.value is None and accepts_type(error.schema, "object"):
        return _nothing_after_colon(error)
    if error.path in (("recipe",), ("sweep",)):
        subject = str(error.path[0])
        if type(error.value) is int and error.value > VERSION:
            return unsupported_version(error.node.value_mark, subject, error.value)
        message = f"`{subject}` is the version of the language, and the only one is {VERSION}"
        hint = f"write `{subject}: {VERSION}`"
    else:
        message, hint = f"{error.subject} takes {describe(error.schema, error.keyword)}", _value_hint(error)
    code = "type" if error.keyword in ("type", "pattern") else "value" if error.keyword == "enum" else "bound"
    return error.fault(error.node.value_mark, code, f"{message}; {_actual(error)}", hint)


def _nothing_after_colon(error: SchemaError) -> Fault:
    name = str(error.path[-1])
    hint = f"write `{name}` without the colon, or give it settings" if "x-first" in error.schema else "remove the key"
    hint = f"write `{usage_example(name, error.schema)}`" if error.schema.get("required") else hint
    sections = error.root.get("else", {}).get("properties", {})
    if error.path == (name,) and name in sections:
        keys = sections[name].get("required") or DATA_SOURCES
        hint = f"write its keys below it, indented: {quote_all(keys)}, ..."
    return error.fault(error.node.value_mark, "type", f"`{name}` has nothing after its colon", hint)


def _actual(error: SchemaError) -> str:
    """Say what is there instead."""
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
    """Say what is wrong with a scalar."""
    words = allowed_words(error.schema)
    takes_number = accepts_type(error.schema, "integer", "number")
    if isinstance(value, float) and not math.isfinite(value):
        return "not a finite number"
    if error.keyword in BOUNDS:
        return "too small" if error.keyword in LOWER_BOUNDS else "too large"
    if error.detail == RECIPE_NAME and len(value) > MAX_NAME:
        return f"too long: it has {len(value):,} characters"
    if takes_number and isinstance(value, bool):
        return "not a number"
    if takes_number and isinstance(value, (int, float)) and (problem := float32_problem(value)):
        return problem
    if isinstance(value, float) and accepts_type(error.schema, "integer"):
        return "not a whole number"
    if error.keyword == "type" and isinstance(value, bool) and not accepts_type(error.schema, "boolean"):
        return "a boolean"
    if error.keyword == "type" and type(value) in (int, float) and not takes_number:
        return "a number"
    if isinstance(value, str) and (error.keyword == "type" or (error.node.quoted and value in words)):
        return f"text{foreign_letter(value)}"
    return f"not{did_you_mean(flow_text(value), words)}"


def _value_hint(error: SchemaError) -> str:
    """Return how to correct a value: what was surely meant, else what is accepted."""
    branches, settings = alternatives(error.schema), list(error.schema.get("properties", ()))
    if error.path[-1] in settings:  # those of one, where several have names
        return f"write `{error.path[-2]}: [{{{', '.join(f'{key}: ...' for key in settings)}}}]`"
    if hint := place_hint(error.path, error.value, error.keyword, error.schema):
        return hint
    if meant := correct(error.value, error.node.text, error.keyword, error.schema, str(error.path[-1])):
        return f"write `{meant}`{' without quotes' if error.node.quoted and meant == error.node.text else ''}"
    if any(map(is_stack, branches)) and isinstance(error.value, dict):
        return "begin each block with `- `"
    if mapping := mapping_branch(dereference(error.root["$defs"], error.schema)):
        return f"write `{usage_example(str(error.path[-1]), mapping)}`"
    if isinstance(error.value, (str, int)) and any(branch.get("pattern") == IDENTIFIER for branch in branches):
        return name_hint(error.node.text)
    return accepted_hint(error.schema, error.keyword, error.detail)


_EXPLANATIONS = {
    "additionalProperties": _unknown_key,
    "required": _missing_key,
    "propertyNames": _invalid_name,
    "oneOf": _data_source,
    "not": _exclusive_keys,
    "minProperties": _empty,
    "uniqueItems": lambda error: duplicate_fault(error.node.value, format_path(error.path), error.detail),
    "x-choice": _not_one_key,
}
