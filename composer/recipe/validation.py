"""Validation of a recipe against its JSON Schema. The only door to jsonschema.

The branches of an `anyOf` in this schema differ by JSON type, so the type of a value decides which branch is meant and
each fault is found exactly, where stock `anyOf` only says that no branch fits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from composer.errors import Fault, RecipeError, closest_match
from composer.recipe.consistency import cross_checks
from composer.recipe.json_schema import DATA_SOURCES, Schema, select_branch
from composer.recipe.messages import BOUNDS, SchemaError, explain
from composer.recipe.node import Node, to_data

Errors = Iterator[ValidationError]

VALUE_KEYWORDS = {"type", "enum", "pattern", "minLength", "minItems", "maxItems", *BOUNDS}


def validate(root: Node, schema: Schema) -> None:
    """Raise RecipeError with everything that can be found wrong without a model: the schema's faults, else others."""
    faults = schema_faults(root, schema) or cross_checks(root)
    if faults:
        raise RecipeError(faults)


def schema_faults(root: Node, schema: Schema) -> list[Fault]:
    """Return every fault of a recipe (or a sweep) that its schema alone can find."""
    errors = list(_validator(schema).iter_errors(to_data(root)))
    meant = {path for error in errors for path in _meant_keys(error)}
    faults = []
    for error in errors:
        path = tuple(error.absolute_path)
        # a key is not missing as well where it is only misspelt
        if any((*path, name) in meant for name in _missing_keys(error)):
            continue
        node = root
        for step in path:
            node = node.value[step]
        detail, value = error.validator_value, error.instance
        faults.append(explain(SchemaError(schema, path, error.validator, detail, value, error.schema, node)))
    return faults


def _meant_keys(error: ValidationError) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of the key that was surely meant by an unknown one."""
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        name = str(error.validator_value)
        renamed = error.schema.get("x-renamed", {}).get(name, "").partition(":")[0]
        yield (*error.absolute_path, renamed or closest_match(name, error.schema["properties"]))


def _missing_keys(error: ValidationError) -> list[str]:
    if error.validator == "required":
        return [str(error.validator_value)]
    return [] if error.validator != "oneOf" or error.validator_value else list(DATA_SOURCES)


def _validator(schema: Schema) -> Any:
    def reference(validator: Any, name: str, instance: Any, _: Schema) -> Errors:
        yield from validator.descend(instance, schema["$defs"][name.removeprefix("#/$defs/")])

    # `true` is not a number, and 4.0 no integer
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    types = types.redefine("number", _is_number)
    return extend(Draft202012Validator, {"$ref": reference, **_KEYWORDS}, type_checker=types)(schema)


def _is_number(_: Any, value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


# ------------------------------------------------------------------------------------------- keywords


def _error(keyword: str, detail: Any, instance: Any, schema: Schema) -> ValidationError:
    return ValidationError(keyword, validator=keyword, validator_value=detail, instance=instance, schema=schema)


def _any_of(validator: Any, branches: list[Schema], instance: Any, schema: Schema) -> Errors:
    branch = select_branch({"anyOf": branches}, instance)
    if branch is None:
        yield _error("type", None, instance, schema)
        return
    for error in validator.descend(instance, branch):
        about_value = not error.path and error.validator in VALUE_KEYWORDS
        yield _error(error.validator, error.validator_value, instance, schema) if about_value else error


def _enum(_: Any, values: list[Any], instance: Any, schema: Schema) -> Errors:
    if not any(type(value) is type(instance) and value == instance for value in values):  # 1 is not True
        yield _error("enum", values, instance, schema)


def _pattern(_: Any, pattern: str, instance: Any, schema: Schema) -> Errors:
    # `$` alone would accept a line break at the end
    if isinstance(instance, str) and not re.fullmatch(pattern.removesuffix("$"), instance):
        yield _error("pattern", pattern, instance, schema)


def _required(_: Any, names: list[str], instance: Any, schema: Schema) -> Errors:
    for name in names if isinstance(instance, dict) else ():
        if name not in instance:
            yield _error("required", name, instance, schema)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Schema) -> Errors:
    if not isinstance(instance, dict) or "x-choice" in schema:
        return
    for name in [name for name in instance if name not in schema.get("properties", {})]:
        if allowed is False:
            yield _error("additionalProperties", name, instance, schema)
        else:
            yield from validator.descend(instance[name], allowed, path=name)


def _properties(validator: Any, properties: dict[str, Schema], instance: Any, schema: Schema) -> Errors:
    if not isinstance(instance, dict):
        return
    # of `{self_attention: null, heads: 4}` only the second key is reported, not that nothing follows the first
    badly_indented = "x-choice" in schema and len(instance) > 1
    for name, rule in properties.items():
        if name in instance and not (badly_indented and instance[name] is None):
            yield from validator.descend(instance[name], rule, path=name, schema_path=name)


def _property_names(_: Any, rule: Schema, instance: Any, schema: Schema) -> Errors:
    for name in instance if isinstance(instance, dict) else ():
        if not re.fullmatch(rule["pattern"].removesuffix("$"), name):
            yield _error("propertyNames", name, instance, schema)


def _one_source(_: Any, choices: list[Schema], instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict):
        names = [name for choice in choices for name in choice["required"]]
        present = [name for name in instance if name in names and instance[name] is not None]
        if len(present) != 1:
            yield _error("oneOf", present, instance, schema)


def _not_both(_: Any, rule: Schema, instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict) and all(instance.get(name) is not None for name in rule["required"]):
        yield _error("not", rule["required"], instance, schema)


def _not_empty(_: Any, least: int, instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict) and len(instance) < least and "x-choice" not in schema:
        yield _error("minProperties", least, instance, schema)


def _one_key(_: Any, table: str, instance: Any, schema: Schema) -> Errors:
    """Check a mapping that should have one key, a name of the table. Only its first fault is reported."""
    if not isinstance(instance, dict):
        return
    unknown = [name for name in instance if name not in schema["properties"]]
    if len(instance) != 1 or unknown:
        yield _error("x-choice", unknown, instance, schema)


_KEYWORDS = {
    "anyOf": _any_of,
    "enum": _enum,
    "pattern": _pattern,
    "required": _required,
    "additionalProperties": _additional_properties,
    "properties": _properties,
    "propertyNames": _property_names,
    "oneOf": _one_source,
    "not": _not_both,
    "minProperties": _not_empty,
    "maxProperties": None,
    "x-choice": _one_key,
}
