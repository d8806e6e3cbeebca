"""What the schema has against a recipe. The only door to jsonschema.

The alternatives of the schema differ by the kind of value (text, list, mapping ...), so the kind decides which one is
meant and each fault is found exactly, where a plain `anyOf` would only say that nothing fits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from composer.errors import Fault, RecipeError, closest_match
from composer.recipe.consistency import cross_checks
from composer.recipe.json_schema import DATA_SOURCES, Schema, select_branch
from composer.recipe.messages import explain
from composer.recipe.node import Node, to_data

Errors = Iterator[ValidationError]

VALUE_KEYWORDS = frozenset(
    {
        "type",
        "enum",
        "pattern",
        "minLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
    }
)


def validate(root: Node, schema: Schema) -> None:
    """Raises RecipeError with everything that can be found wrong without a model."""
    faults = schema_faults(root, schema) or cross_checks(root)
    if faults:
        raise RecipeError(faults)


def schema_faults(root: Node, schema: Schema) -> list[Fault]:
    """Everything that the schema alone has against a recipe."""
    errors = list(_validator(schema).iter_errors(to_data(root)))
    misspelt = {found for error in errors for found in _meant_keys(error)}
    return [
        explain(
            root, schema, tuple(each.absolute_path), each.validator, each.validator_value, each.instance, each.schema
        )
        for each in errors
        if not any((*each.absolute_path, name) in misspelt for name in _missing_keys(each))
    ]


def _meant_keys(error: ValidationError) -> Iterator[tuple[str | int, ...]]:
    """The path of the key that was surely meant by an unknown one."""
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        name = str(error.validator_value)
        renamed = error.schema.get("x-renamed", {}).get(name, "").partition(":")[0]
        yield (*error.absolute_path, renamed or closest_match(name, error.schema["properties"]))


def _missing_keys(error: ValidationError) -> list[str]:
    """The keys that are missing; where one is misspelt, to tell that is enough."""
    if error.validator == "required":
        return [str(error.validator_value)]
    return [] if error.validator != "oneOf" or error.validator_value else list(DATA_SOURCES)


def _validator(schema: Schema) -> Any:
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer).redefine("number", _is_number)
    keywords = {
        "$ref": partial(_ref, schema["$defs"]),
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
        "x-choice": _single_key,
    }
    return extend(Draft202012Validator, keywords, type_checker=types)(schema)


# ------------------------------------------------------------------------------------------- kinds of value


def _is_integer(_: Any, value: Any) -> bool:
    return type(value) is int


def _is_number(_: Any, value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


# ------------------------------------------------------------------------------------------- keywords


def _error(keyword: str, detail: Any, instance: Any, schema: Schema) -> ValidationError:
    return ValidationError(keyword, validator=keyword, validator_value=detail, instance=instance, schema=schema)


def _ref(defs: Schema, validator: Any, reference: str, instance: Any, _: Schema) -> Errors:
    yield from validator.descend(instance, defs[reference.removeprefix("#/$defs/")])


def _any_of(validator: Any, branches: list[Schema], instance: Any, schema: Schema) -> Errors:
    branch = select_branch({"anyOf": branches}, instance)
    if branch is None:
        yield _error("type", None, instance, schema)
        return
    for error in validator.descend(instance, branch):
        about_value = not error.path and error.validator in VALUE_KEYWORDS
        yield _error(error.validator, error.validator_value, instance, schema) if about_value else error


def _enum(_: Any, allowed: list[Any], instance: Any, schema: Schema) -> Errors:
    if not any(type(each) is type(instance) and each == instance for each in allowed):
        yield _error("enum", allowed, instance, schema)


def _pattern(_: Any, pattern: str, instance: Any, schema: Schema) -> Errors:
    # `$` alone would let a line break through
    if isinstance(instance, str) and not re.fullmatch(pattern.removesuffix("$"), instance):
        yield _error("pattern", pattern, instance, schema)


def _required(_: Any, names: list[str], instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield _error("required", name, instance, schema)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Schema) -> Errors:
    if not isinstance(instance, dict) or "x-choice" in schema:
        return
    for name in instance:
        if name in schema.get("properties", {}):
            continue
        if allowed is False:
            yield _error("additionalProperties", name, instance, schema)
        else:
            yield from validator.descend(instance[name], allowed, path=name)


def _properties(validator: Any, known: dict[str, Schema], instance: Any, schema: Schema) -> Errors:
    if not isinstance(instance, dict):
        return
    # of `{self_attention: null, heads: 4}` only the second key is told, not that nothing follows the first
    badly_indented = "x-choice" in schema and len(instance) > 1
    for name, rule in known.items():
        if name in instance and not (badly_indented and instance[name] is None):
            yield from validator.descend(instance[name], rule, path=name, schema_path=name)


def _property_names(_: Any, rule: Schema, instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict):
        for name in instance:
            if not re.fullmatch(rule["pattern"].removesuffix("$"), name):
                yield _error("propertyNames", name, instance, schema)


def _one_source(_: Any, choices: list[Schema], instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict):
        names = [name for choice in choices for name in choice["required"]]
        given = [name for name in instance if name in names and instance[name] is not None]
        if len(given) != 1:
            yield _error("oneOf", given, instance, schema)


def _not_both(_: Any, rule: Schema, instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict) and all(instance.get(name) is not None for name in rule["required"]):
        yield _error("not", rule["required"], instance, schema)


def _not_empty(_: Any, least: int, instance: Any, schema: Schema) -> Errors:
    if isinstance(instance, dict) and len(instance) < least and "x-choice" not in schema:
        yield _error("minProperties", least, instance, schema)


def _single_key(_: Any, table: str, instance: Any, schema: Schema) -> Errors:
    """A mapping with one key, a name of the table. Only the first thing that is wrong with it is told."""
    if not isinstance(instance, dict):
        return
    unknown = [name for name in instance if name not in schema["properties"]]
    if len(instance) != 1 or unknown:
        yield _error("x-choice", unknown, instance, schema)
