"""Validation of a recipe: against its JSON Schema, then across its sections.

The only door to jsonschema.

The branches of an `anyOf` in this schema differ by JSON type, so the type of a value decides which
branch is meant and each fault is found exactly, where stock `anyOf` only says that no branch fits.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from composer.errors import MAX_EXPLAINED, Fault, KeyPath, RecipeError, fault_at, format_path
from composer.recipe import edits
from composer.recipe.extends_and_overrides import MEANINGFUL_NULLS, REPLACED_WHOLE
from composer.recipe.messages import SchemaError, explain
from composer.recipe.schema_reader import (
    BOUNDS,
    DATA_SOURCES,
    Schema,
    float32_problem,
    intended_key,
    quote_all,
    repeated_items,
    select_branch,
    unlisted_fault,
)
from composer.recipe.yaml_reader import Node, to_data
from composer.suggest import closest_word, did_you_mean

Errors = Iterator[ValidationError]
Violations = Callable[[Any, Any, Schema], Iterable[Any]]
"""Returns the details of what violates a keyword, by the keyword's rule, the value and the schema
around the rule.
"""

VALUE_KEYWORDS = {"type", "enum", "pattern", "minLength", "minItems", "maxItems", *BOUNDS}


def validate(root: Node, schema: Schema) -> None:
    """Raise RecipeError with everything that violates the schema, or else with the empty keys."""
    faults = schema_faults(root, schema)
    if not faults:
        faults = list(empty_keys(root))
    elif sources := _sources(root):
        faults = _without_follow_ups(faults, [*encoder_keys(root, sources, schema)])
    if faults:
        raise RecipeError(faults)


def schema_faults(root: Node, schema: Schema) -> list[Fault]:
    """Return every fault of a recipe (or a sweep) that its schema alone can find."""
    errors = list(islice(_validator_class()(schema).iter_errors(to_data(root)), MAX_EXPLAINED + 1))
    # the keys that were surely meant by unknown ones: these are misspelt, and not missing as well
    meant = set()
    for error in errors:
        if error.validator == "additionalProperties" and isinstance(error.schema, dict):
            key = intended_key(error.schema, schema["$defs"], str(error.validator_value))
            meant.add((*error.absolute_path, key))
    faults = []
    for error in errors[:MAX_EXPLAINED]:
        path, detail = tuple(error.absolute_path), error.validator_value
        is_missing_source = error.validator == "oneOf" and not detail
        missing = (
            [detail] if error.validator == "required" else DATA_SOURCES if is_missing_source else ()
        )
        if any((*path, name) in meant for name in missing):
            continue
        node = root
        for step in path:
            node = node.value[step]
        violation = (error.validator, detail, error.instance, error.schema)
        faults.append(explain(SchemaError(schema, path, *violation, node, root)))
    return [*faults, *([unlisted_fault(faults)] if len(errors) > MAX_EXPLAINED else [])]


# ------------------------------------------------------------------------------------------- JSON
# Schema


@cache
def _validator_class() -> Any:
    # `true` is not a number, and 4.0 no integer; what float32 cannot hold would give NaN or nothing
    types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int
    )
    types = types.redefine(
        "number", lambda _, value: type(value) in (int, float) and not float32_problem(value)
    )
    keywords = {
        "anyOf": _any_of,
        "additionalProperties": _additional_properties,
        "properties": _properties,
        "maxProperties": None,
    }
    for keyword, (kind, violations) in _VIOLATIONS.items():
        keywords[keyword] = _keyword(keyword, kind, violations)
    return extend(Draft202012Validator, keywords, type_checker=types)


def _error(keyword: str, detail: Any, instance: Any, schema: Schema) -> ValidationError:
    return ValidationError(
        keyword, validator=keyword, validator_value=detail, instance=instance, schema=schema
    )


def _any_of(validator: Any, branches: list[Schema], instance: Any, schema: Schema) -> Errors:
    branch = select_branch({"anyOf": branches}, instance)
    if branch is None:
        yield _error("type", None, instance, schema)
        return
    for error in validator.descend(instance, branch):
        about_value = not error.path and error.validator in VALUE_KEYWORDS
        yield (
            _error(error.validator, error.validator_value, instance, schema)
            if about_value
            else error
        )


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Schema) -> Errors:
    if not isinstance(instance, dict) or "x-choice" in schema:
        return
    for name in [name for name in instance if name not in schema.get("properties", {})]:
        if allowed is False:
            yield _error("additionalProperties", name, instance, schema)
        else:
            yield from validator.descend(instance[name], allowed, path=name)


def _properties(
    validator: Any, properties: dict[str, Schema], instance: Any, schema: Schema
) -> Errors:
    if not isinstance(instance, dict):
        return
    # of `{self_attention: null, heads: 4}` only the second key is reported, not that nothing
    # follows the first
    badly_indented = "x-choice" in schema and len(instance) > 1
    for name, rule in properties.items():
        if name in instance and not (badly_indented and instance[name] is None):
            yield from validator.descend(instance[name], rule, path=name, schema_path=name)


def _keyword(keyword: str, kind: type, violations: Violations) -> Callable[..., Errors]:
    """Return the function that checks a keyword, as jsonschema calls it."""

    def check(_: Any, rule: Any, instance: Any, schema: Schema) -> Errors:
        for detail in violations(rule, instance, schema) if isinstance(instance, kind) else ():
            yield _error(keyword, detail, instance, schema)

    return check


def _matches(pattern: str, text: str) -> bool:
    # `$` alone would accept a line break at the end
    return re.fullmatch(pattern.removesuffix("$"), text) is not None


def _wrong_enum(words: list[Any], value: Any, _: Schema) -> Iterable[object]:
    # 1 is not True
    return [] if any(type(word) is type(value) and word == value for word in words) else [words]


def _wrong_sources(choices: list[Schema], value: Schema, _: Schema) -> Iterable[object]:
    names = set().union(*(choice["required"] for choice in choices))
    sources = [name for name in value if name in names]
    present = [name for name in sources if value[name] is not None]
    return [] if len(present) == 1 else [present]


def _exclusive(rule: Schema, value: Schema, _: Schema) -> Iterable[object]:
    names = rule["required"]
    return [] if None in map(value.get, names) else [names]


def _too_few(least: int, value: Schema, schema: Schema) -> Iterable[object]:
    return [least] if len(value) < least and "x-choice" not in schema else []


def _wrong_choice(_: str, value: Schema, schema: Schema) -> Iterable[object]:
    """Check a mapping that should have one key of a table. Only its first fault is reported."""
    unknown = [name for name in value if name not in schema["properties"]]
    return [unknown] if len(value) != 1 or unknown else []


def _out_of(comparison: Callable[[Any, Any], bool]) -> tuple[type, Violations]:
    """Return the check of a bound; jsonschema's own skips integers that float32 cannot hold."""

    def violations(bound: Any, value: Any, schema: Schema) -> Iterable[object]:
        # another fault is about a value of another type, or too large for float32
        if schema.get("type") == "integer":
            is_number = type(value) is int
        else:
            is_number = type(value) in (int, float) and not float32_problem(value)
        return [bound] if is_number and comparison(value, bound) else []

    return object, violations


_VIOLATIONS: dict[str, tuple[type, Violations]] = {
    "minimum": _out_of(operator.lt),
    "maximum": _out_of(operator.gt),
    "exclusiveMinimum": _out_of(operator.le),
    "exclusiveMaximum": _out_of(operator.ge),
    "enum": (object, _wrong_enum),
    "pattern": (str, lambda pattern, text, _: [] if _matches(pattern, text) else [pattern]),
    "required": (dict, lambda names, value, _: [name for name in names if name not in value]),
    "propertyNames": (
        dict,
        lambda rule, value, _: [name for name in value if not _matches(rule["pattern"], name)],
    ),
    "oneOf": (dict, _wrong_sources),
    "not": (dict, _exclusive),
    "uniqueItems": (list, lambda _, items, __: repeated_items(items)),
    "minProperties": (dict, _too_few),
    "x-choice": (dict, _wrong_choice),
}
"""Keywords: the type of value that each is about, and its violations."""


# ------------------------------------------------------------------------------------------- what
# the schema cannot say


def _get(node: Node | None, *keys: str) -> Node | None:
    """Return the node under the keys, or None if nothing is written there."""
    for key in keys:
        node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    return None if node is None or node.value is None else node


def _sources(root: Node) -> list[str]:
    """Return the keys of the data that the encoders read."""
    encoders = _get(root, "model", "encoders")
    if encoders is not None and isinstance(encoders.value, dict):
        return list(encoders.value)
    return ["source"] if _get(root, "model", "encoder") is not None else []


def empty_keys(root: Node, node: Node | None = None, path: KeyPath = ()) -> Iterator[Fault]:
    """Yield a fault for each key of the recipe's own file without a value; `null` is one."""
    for key, value in (node or root).value.items():
        if (
            value.place.file != root.mark.file
            or path in REPLACED_WHOLE
            or (*path, key) in MEANINGFUL_NULLS
        ):
            continue
        if value.value is None and not value.text:
            message, fix = f"`{key}` has nothing after its colon", "remove it, or give it a value"
            edit = edits.remove(root, (*path, key))
            yield fault_at(value.place, "unused", format_path((*path, key)), message, fix, edit)
        elif isinstance(value.value, dict):
            yield from empty_keys(root, value, (*path, key))


def _without_follow_ups(faults: list[Fault], key_faults: list[Fault]) -> list[Fault]:
    """Join faults of the schema with those of keys that name an encoder, each mistake once."""
    unknown = {fault.path for fault in key_faults if fault.code == "unknown"}
    misspelt = set()
    for fault in key_faults:
        if "did you mean `target`" in fault.message:
            misspelt.add(fault.path.rpartition(".")[0])
    wrong_type = {fault.path for fault in faults if fault.code == "type"} - unknown
    joined = []
    for fault in faults:
        follows = fault.code == "missing" and fault.path in misspelt
        if fault.path not in unknown and not follows:
            joined.append(fault)
    wrong = tuple(wrong_type)
    return joined + [fault for fault in key_faults if not fault.path.startswith(wrong)]


def encoder_keys(root: Node, sources: list[str], schema: Schema) -> Iterator[Fault]:
    """Yield the faults of the keys that name what each encoder reads, one for each encoder."""
    test_sets = _get(root, "data", "parallel", "test_sets")
    names = test_sets.value if test_sets is not None else ()
    measured = ["val", "test", *(f"test_sets.{name}" for name in names)]
    sections = {"hub": "hub", "table": "table", "parallel.train": "split"}
    sections |= {f"parallel.{key}": "measuredsplit" for key in measured}
    sections["prefix"] = "prefix"
    for key, section in sections.items():
        path = ("data", *key.split("."))
        if (node := _get(root, *path)) is None:
            continue
        parts: dict[KeyPath, Node] = {path: node}
        if isinstance(node.value, list):
            parts = {(*path, index): part for index, part in enumerate(node.value)}
        if not parts:
            message, hint = f"`{path[-1]}` is an empty list", "name a file of pairs in it"
            yield fault_at(node.place, "empty", format_path(path), message, hint)
        for place, part in parts.items():
            if isinstance(part.value, dict):  # else a number of pairs
                own = schema["$defs"][section]["properties"]
                yield from _keys_of(root, part, place, own, sources)


def _keys_of(
    root: Node, node: Node, path: KeyPath, own: Iterable[str], sources: list[str]
) -> Iterator[Fault]:
    own_keys = [key for key in own if key != "source"]
    allowed = [*dict.fromkeys([*own_keys, *(sources or ["source"])])]
    unknown = [name for name in node.value if name not in allowed]
    section = next(key for key in reversed(path) if isinstance(key, str))
    for name in unknown:
        message = f"`{section}` has no key `{name}`{did_you_mean(name, allowed)}"
        place, close = node.value[name].place, closest_word(name, allowed)
        if close and close not in node.value:
            hint, edit = f"write `{close}`", edits.rename(place, (*path, name), name, close)
        else:
            hint, edit = "remove it", edits.remove(root, (*path, name))
        hint += f"; allowed here: {quote_all(allowed)}"
        yield fault_at(place, "unknown", format_path((*path, name)), message, hint, edit)
    misspelt = {closest_word(name, allowed) for name in unknown}
    for name in () if section == "prefix" else sources:
        if _get(node, name) is None and name not in misspelt:
            reader = "the encoder" if name == "source" else f"the encoder `{name}`"
            hint = f"add `{name}:` the file or column that {reader} reads"
            message = f"`{section}` needs `{name}`"
            yield fault_at(node.place, "missing", format_path(path), message, hint)
