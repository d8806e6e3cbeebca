"""The JSON Schema of a recipe, generated from the constructors of the blocks, the tables and the sections.

The schema is a file that travels with the package: editors read it, and so do validation and freezing, without
importing torch. It is made anew only where plug-ins add blocks. `python -m composer.recipe.schema` writes it.

What the words `x-...` mean to validation and freezing: `x-choice` marks what is chosen from a table, by a bare name or
a mapping with one key; `x-first` is the setting that a scalar or list sets; `x-list` marks a list for which one item
may stand alone; `x-open` what is taken as it is; `x-refused` names keys that belong elsewhere; `x-noun` is what one
of a choice is called; `x-renamed` maps old words to new ones. A setting that is
neither required nor open and has no default is `null` where it is not written.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from composer.errors import RunError
from composer.recipe import registry
from composer.recipe.cache import PIN_SCHEMA
from composer.recipe.json_schema import BLOCK, DATA_SOURCES, IDENTIFIER, RECIPE_NAME, VARIABLE, VARIABLE_TEXT, Schema
from composer.recipe.metrics import METRICS

ENCODER_KEYS = ("Split", "Hub")  # with several encoders, these sections have one key per encoder


# ------------------------------------------------------------------------------------------- the file


@cache
def load() -> Schema:
    """The schema of what is installed here: the file's, or made anew where there are plug-ins. Raises RunError."""
    if not registry.plug_ins():
        return json.loads(schema_path().read_text(encoding="utf-8"))
    try:
        return generate()
    except Exception as error:
        raise RunError.of(f"a plug-in's block cannot be used: {error}", "mend or uninstall the plug-in") from error


def schema_path() -> Path:
    """Where the schema's file is: inside an installed package, or beside it in a clone."""
    here = Path(__file__).parent.parent
    inside = here / "schemas" / "recipe.schema.json"
    return inside if inside.exists() else here.parent / "schemas" / "recipe.schema.json"


def to_json(schema: Schema) -> str:
    """The schema as it is written to its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


# ------------------------------------------------------------------------------------------- the whole


def generate() -> Schema:
    """The schema, from every registered block and table. Imports torch."""
    from composer.recipe import sections as language

    defs: dict[str, Schema] = {"variable": _variable()}
    blocks = registry.blocks()
    defs |= choice_schema("block", blocks, "A block: its name, or its name with settings.", "block")
    for table, choice in registry.CHOICES.items():
        description = f"One of the {table}: its name, or its name with settings."
        defs |= choice_schema(table, choice.constructors(), description, choice.noun)
    root = settings_schema(language.Recipe, defs)
    _add_defaults(defs, blocks)
    defs["model"]["not"] = {"required": ["encoder", "encoders"]}
    defs["trainer"]["x-refused"] = language.TRAINER_REFUSES
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "seqcomposer recipe, version 1",
        "type": "object",
        **root,
        "required": [],
        # what a recipe extends may hold what it does not; there is no `extends` any more when it is validated
        "if": {"required": ["extends"]},
        "else": {"required": root["required"], "properties": _needed(defs)},
        "$defs": dict(sorted(defs.items())),
    }


def _needed(defs: dict[str, Schema]) -> dict[str, Schema]:
    """What the sections must hold, taken out of their schemas."""
    model = {"required": defs["model"].pop("required")}
    data = {"oneOf": [{"required": [source]} for source in DATA_SOURCES]}
    return {"model": model, "data": data}


def _variable() -> Schema:
    return {
        "type": "string",
        "pattern": VARIABLE_TEXT,
        "description": "A value from `vars`.",
        "patternErrorMessage": "This value does not fit here.",
    }


def _add_defaults(defs: dict[str, Schema], blocks: Mapping[str, Any]) -> None:
    """Makes a key of `model` of every block that has settings for which there can be a default."""
    keys = defs["model"]["properties"]
    taken = sorted(set(blocks) & set(keys) - {"dropout"})
    if taken:
        raise ValueError(f"a block cannot be called {taken[0]!r}: it is a key of `model`")
    for name in blocks:
        defaults = _defaults(defs[f"block.{name}"], name)
        if defaults["properties"] and name != "dropout":
            defs[f"defaults.{name}"] = defaults
            keys[name] = {"$ref": f"#/$defs/defaults.{name}"}
    defs["model"] |= _renamed("model", "block")


def _defaults(block: Schema, name: str) -> Schema:
    """What `model.NAME` may hold: the settings that a block need not give, without stacks and its name."""
    none = {"as", *block["required"]}
    keys = {key: value for key, value in block["properties"].items() if key not in none and not _holds_stack(value)}
    rest = {"properties": keys, "required": [], "additionalProperties": False, "minProperties": 1}
    rest |= _renamed(f"block.{name}")
    what = f"The defaults of every `{name}`. {block['description']}"
    if block.get("x-first") in keys:
        return {**block, **rest, "description": what}
    return {"description": what, "type": "object", **rest}


def _holds_stack(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema == BLOCK or any(_holds_stack(value) for value in schema.values())
    return isinstance(schema, list) and any(_holds_stack(value) for value in schema)


# ------------------------------------------------------------------------------------------- choices and sections


def choice_schema(
    table: str, entries: Mapping[str, Callable[..., Any]], description: str, noun: str
) -> dict[str, Schema]:
    """Return a choice among named constructors: a single-key mapping, or a bare name if no setting is required.

    `noun` is what messages call one of them. Every `block` also has the setting `as`.
    """
    defs = {
        f"{table}.{name}": _checked_entry(name, entry, table == "block") | _renamed(f"{table}.{name}")
        for name, entry in sorted(entries.items())
    }
    bare = [name for name in sorted(entries) if not defs[f"{table}.{name}"]["required"]]
    told = [defs[f"{table}.{name}"]["description"] for name in bare]
    chosen = {
        "description": description,
        "x-choice": table,
        "x-noun": noun,
        **_renamed(table),
        "anyOf": [{"type": "string", "enum": bare, "enumDescriptions": told}, {"type": "object"}, VARIABLE],
        "properties": {name: {"$ref": f"#/$defs/{table}.{name}"} for name in sorted(entries)},
        "additionalProperties": False,
        "minProperties": 1,
        # said outright, `maxProperties` would keep editors from completing the first key
        "if": {"minProperties": 2},
        "then": {"maxProperties": 1},
    }
    return {table: chosen, **defs}


def _checked_entry(name: str, constructor: Callable[..., Any], named: bool) -> Schema:
    try:
        return _entry(constructor, named)
    except Exception as error:  # a plug-in's annotations may be anything
        raise TypeError(f"`{name}`, which is {constructor.__module__}.{constructor.__qualname__}: {error}") from error


def _entry(constructor: Callable[..., Any], named: bool) -> Schema:
    """One block, optimizer, ...: its settings, or its first setting alone."""
    whole = settings_schema(constructor, {})
    first = next(iter(whole["properties"]), None)
    if named:
        name = {"description": "The name of the output, for later blocks.", "x-open": True, **_text(IDENTIFIER)}
        whole["properties"]["as"] = name
    if first is None or set(whole["required"]) - {first}:
        return {"type": "object", **whole}
    setting = {key: value for key, value in whole["properties"][first].items() if key not in ("description", "default")}
    short = [each for each in setting.get("anyOf", [setting]) if each.get("type") not in ("object", "null")]
    return {"x-first": first, **_any_of([{**setting, "anyOf": short}, {"type": "object", **whole}])}


def _renamed(*owners: str) -> Schema:
    """Return the old words of definitions of the schema, and what to write now."""
    words = [key.rpartition(".") for key in registry.RENAMED]
    renamed = {old: registry.RENAMED[f"{owner}.{old}"] for owner, _, old in words if owner in owners}
    return {"x-renamed": renamed} if renamed else {}


def settings_schema(constructor: Callable[..., Any], defs: dict[str, Schema]) -> Schema:
    """The settings of a constructor: its keyword-only arguments, described in its docstring."""
    what, meanings = _parse_docstring(constructor)
    hints = _hints(constructor)
    properties, required = {}, []
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        name = parameter.name.rstrip("_")
        properties[name] = _setting(hints[parameter.name], parameter.default, meanings.get(name, ""), defs)
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
    return {"description": what, "properties": properties, "required": required, "additionalProperties": False}


def _hints(constructor: Callable[..., Any]) -> dict[str, Any]:
    owner = constructor.__init__ if inspect.isclass(constructor) else constructor
    return typing.get_type_hints(owner, include_extras=True)


def _parse_docstring(constructor: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and the meanings of its section `Settings:`."""
    doc = inspect.getdoc(constructor) or ""
    what = " ".join(doc.split("\n\n")[0].split())
    meanings: dict[str, str] = {}
    name = ""
    for line in doc.partition("\nSettings:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if line[4] != " ":
            name, _, line = line.partition(":")
            name = name.strip()
        meanings[name] = f"{meanings.get(name, '')} {line.strip()}".strip()
    return what, meanings


def _setting(hint: Any, default: Any, meaning: str, defs: dict[str, Schema]) -> Schema:
    schema = _hint_schema(hint, defs)
    if meaning:
        schema = {"description": meaning, **schema}
    if default in (inspect.Parameter.empty, None):
        return schema
    return {**schema, "default": _plain_default(default, schema)}


def _plain_default(default: Any, schema: Schema) -> Any:
    if dataclasses.is_dataclass(default) or (default == () and schema.get("type") == "object"):
        return {}
    return list(default) if isinstance(default, (list, tuple)) else default


# ------------------------------------------------------------------------------------------- annotations


def _hint_schema(hint: Any, defs: dict[str, Schema]) -> Schema:
    """The schema of an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _annotated(arguments[0], arguments[1:], defs)
    if origin in (typing.Union, types.UnionType):
        return _optional([_hint_schema(each, defs) for each in arguments], defs)
    if origin is typing.Literal:
        return _any_of([{"enum": list(arguments)}, VARIABLE])
    if origin is dict:
        return {
            "type": "object",
            "propertyNames": {"pattern": IDENTIFIER},
            "additionalProperties": _hint_schema(arguments[1], defs),
        }
    if origin in (list, tuple, Sequence):
        return _any_of([_array(origin, arguments, defs), VARIABLE])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _named_section(hint, defs)
    return _scalar(hint, {})


def _optional(alternatives: list[Schema], defs: dict[str, Schema]) -> Schema:
    """A choice is left away where it is not wanted; everything else may be `null`. Editors need a section in place."""
    inlined = [_inlined(each, defs) for each in alternatives]
    chosen = [written for written, each in zip(alternatives, inlined, strict=True) if "x-choice" in each]
    return chosen[0] if chosen else _any_of(inlined)


def _inlined(schema: Schema, defs: dict[str, Schema]) -> Schema:
    if schema == VARIABLE or "$ref" not in schema:
        return schema
    return {**{key: value for key, value in schema.items() if key != "$ref"}, **defs[schema["$ref"].split("/")[-1]]}


def _named_section(described: type, defs: dict[str, Schema]) -> Schema:
    name = described.__name__.lower()
    if name not in defs:
        defs[name] = settings_schema(described, defs) | _renamed(name)
        if described.__name__ in ENCODER_KEYS:
            defs[name]["additionalProperties"] = {"type": "string", "description": "The text that this encoder reads."}
    return {"type": "object", "$ref": f"#/$defs/{name}"}


def _array(origin: Any, arguments: tuple[Any, ...], defs: dict[str, Schema]) -> Schema:
    items = _hint_schema(arguments[0], defs)
    if origin is tuple and Ellipsis not in arguments:
        return {"type": "array", "items": items, "minItems": len(arguments), "maxItems": len(arguments)}
    return {"type": "array", "items": items}


SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def _scalar(hint: Any, bounds: Schema) -> Schema:
    if hint not in SCALARS:
        raise TypeError(f"a setting cannot be of the type {hint!r}")
    schema = {"type": SCALARS[hint], **bounds}
    return schema if hint in (str, type(None)) else _any_of([schema, VARIABLE])


def _annotated(hint: Any, notes: Sequence[Any], defs: dict[str, Schema]) -> Schema:
    bounds = [note for note in notes if hasattr(note, "minimum")]
    kinds = [note.name for note in notes if hasattr(note, "name")]
    if kinds:
        return _kind_schema(kinds[0])
    if bounds:
        return _scalar(hint, _bounds(bounds[0]))
    return _hint_schema(hint, defs)


def _bounds(bounds: Any) -> Schema:
    words = {
        "minimum": bounds.minimum,
        "exclusiveMinimum": bounds.above,
        "exclusiveMaximum": bounds.below,
        "maximum": bounds.maximum,
    }
    return {word: value for word, value in words.items() if value is not None}


def _kind_schema(name: str) -> Schema:
    """The schema of a setting that is more than a scalar."""
    if name.startswith("choice:"):
        return {"$ref": f"#/$defs/{name.removeprefix('choice:')}"}
    return json.loads(json.dumps(KINDS[name]))


def _text(pattern: str, what: str = "a name of letters, digits, `_` and `-`") -> Schema:
    return _any_of([{"type": "string", "pattern": pattern, "patternErrorMessage": what}, VARIABLE])


def _any_of(alternatives: Sequence[Schema]) -> Schema:
    """One schema that admits all of them, a variable told once and last.

    What is said of lists and mappings stands beside the `anyOf`, which speaks of kinds and of single values only: so
    an editor, too, tells exactly what is wrong inside a mapping, and not that none of the alternatives fits.
    """
    parts: list[Schema] = []
    beside: Schema = {}
    for each in alternatives:
        beside |= {key: value for key, value in each.items() if key not in ("anyOf", "type")} if "anyOf" in each else {}
        for part in each.get("anyOf", [each]):
            if part.get("type") in ("array", "object"):
                beside |= {key: value for key, value in part.items() if key != "type"}
                part = {"type": part["type"]}
            parts.extend([part] if part not in parts else [])
    parts.sort(key=lambda part: part == VARIABLE)
    return {**beside, **(parts[0] if len(parts) == 1 else {"anyOf": parts})}


STACK = {"type": "array", "items": BLOCK, "minItems": 1}
NAME = {"type": "string", "minLength": 1}
KINDS: dict[str, Schema] = {
    "stack": STACK,
    "branches": _any_of(
        [
            {"type": "array", "items": STACK, "minItems": 1},
            {
                "type": "object",
                "propertyNames": {"pattern": IDENTIFIER},
                "additionalProperties": STACK,
                "minProperties": 1,
            },
        ]
    ),
    "metric": _any_of([{"enum": [f"val/{name}" for name in METRICS]}, VARIABLE]),
    "name": NAME,
    "names": {"x-list": True, **_any_of([NAME, {"type": "array", "items": NAME, "minItems": 1}])},
    "memory": NAME,
    "memories": {"x-list": True, **_any_of([NAME, {"type": "array", "items": NAME, "minItems": 1}])},
    "initial_state": _any_of(
        [
            NAME,
            {"type": "object", "properties": {"copy": NAME}, "required": ["copy"], "additionalProperties": False},
        ]
    ),
    "text": NAME,
    "texts": _any_of([{"type": "array", "items": NAME}, VARIABLE]),
    "identifier": _text(IDENTIFIER),
    "recipe_name": _text(RECIPE_NAME, "a name of letters, digits, `.`, `_` and `-`"),
    "bases": {
        "x-list": True,
        **_any_of([NAME, {"type": "array", "items": _any_of([NAME, PIN_SCHEMA]), "minItems": 1}, PIN_SCHEMA]),
    },
    "paths": {"x-list": True, **_any_of([NAME, {"type": "array", "items": NAME, "minItems": 1}])},
    "any": {"x-open": True},
}


if __name__ == "__main__":
    target = schema_path()
    target.parent.mkdir(exist_ok=True)
    target.write_text(to_json(generate()), encoding="utf-8")
