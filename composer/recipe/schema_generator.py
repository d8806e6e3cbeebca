"""Generate the JSON Schema of a recipe from constructors of blocks, choices and sections.

The schema is a file that is installed with the package: editors read it, and so do validation and
defaults, without importing torch. It is generated anew only where plug-ins add blocks. `seqcomposer
schema --write` writes it.

Its own keywords: `x-choice` marks a choice from a table, by a bare name or a mapping with one key,
`x-noun` what one of them is called; `x-first` is the setting that a scalar or list sets; `x-list`
marks a list for which one item may be written alone; `x-open` what is taken as it is; `x-family` is
the kind of a block; `x-foreign` marks blocks that are not of this project. A setting that is
neither required nor open and has no default is `null` if it is not written.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from blocks.core.settings import Bounds, Distinct, Kind
from composer.errors import RunError
from composer.metrics.table import text_metrics, validation_keys
from composer.recipe import registry
from composer.recipe.cache import PIN_SCHEMA
from composer.recipe.schema_file import read_schema
from composer.recipe.schema_reader import (
    BLOCK,
    DATA_SOURCES,
    IDENTIFIER,
    MAX_NAME,
    RECIPE_NAME,
    VARIABLE,
    VARIABLE_TEXT,
    Schema,
    flow_text,
    ref_name,
)
from composer.recipe.section import Section, SidedSection, type_hints
from composer.recipe.yaml_reader import strings_in

Constructors = Mapping[str, Callable[..., Any]]
KEYWORDS_OF_KEY = ("description", "markdownDescription", "default")
"""What a setting has as the value of its key alone, and not as a short form of the whole block."""


@cache
def load() -> Schema:
    """Return the schema of all that is here: the file's, or a new one if there are more blocks.

    Raises RunError.
    """
    if not (registry.plug_ins() or registry.OWN):
        return read_schema()
    try:
        return generate()
    except Exception as error:
        raise RunError.of(
            f"a plug-in's block cannot be used: {error}", "fix or uninstall the plug-in"
        ) from error


def generate() -> Schema:
    """Return the schema of every registered block, choice and section. Imports torch."""
    from composer.recipe import sections as language

    variable = {"type": "string", "pattern": VARIABLE_TEXT, "description": "A value from `vars`."}
    defs: dict[str, Schema] = {
        "variable": {**variable, "patternErrorMessage": "This value does not fit here."}
    }
    blocks = registry.blocks()
    defs |= choice_schema("block", blocks, "A block: its name, or its name with settings.", "block")
    for table, choice in registry.CHOICES.items():
        description = f"One of the {table}: its name, or its name with settings."
        defs |= choice_schema(table, choice.constructors(), description, choice.noun)
    root, head = settings_schema(language.Recipe, defs), settings_schema(language.RecipeFile, defs)
    root["properties"] = head["properties"] | root["properties"]
    root["required"] = head["required"] + root["required"]
    _add_defaults(defs, blocks)
    for name, block in blocks.items():
        defs[f"block.{name}"]["x-family"] = getattr(block, "family", "other")
    for name in {*registry.OWN, *(point.name for point in registry.plug_ins())}:
        defs[f"block.{name}"]["x-foreign"] = True
    taken = "|".join([*root["properties"], *registry.RUN_FACTS])
    own = defs["wandb"]["properties"]["config"]["propertyNames"]
    own["pattern"] = IDENTIFIER.replace("^", f"^(?!({taken})$)")
    # and not `null`, which removes
    stacks = {"encoder": {"type": "array"}, "encoders": {"type": "object"}}
    defs["model"]["not"] = {"required": [*stacks], "properties": stacks}
    # a base that is extended may lack what a recipe needs; when one is validated, its `extends` is
    # gone
    sources = [{"required": [source]} for source in DATA_SOURCES]
    needs = {"model": {"required": defs["model"].pop("required")}, "data": {"oneOf": sources}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "seqcomposer recipe, version 1",
        "type": "object",
        **root,
        "required": [],
        "if": {"required": ["extends"]},
        "else": {"required": root["required"], "properties": needs},
        "$defs": dict(sorted(defs.items())),
    }


def _add_defaults(defs: dict[str, Schema], blocks: Constructors) -> None:
    """Add a key to `model` for every block with settings that can have a default."""
    keys = defs["model"]["properties"]
    taken = sorted(set(blocks) & set(keys) - {"dropout"})
    if taken:
        raise ValueError(f"a block cannot be called {taken[0]!r}: it is a key of `model`")
    for name in blocks:
        block = defs[f"block.{name}"]
        settings = {}
        for key, value in block["properties"].items():
            is_required = key == "as" or key in block["required"]
            if not is_required and BLOCK["$ref"] not in strings_in(value):
                settings[key] = value
        if name == "dropout" or not settings:
            continue
        keys[name] = {"$ref": f"#/$defs/defaults.{name}"}
        defs[f"defaults.{name}"] = {
            **(block if block.get("x-first") in settings else {"type": "object"}),
            "description": f"The defaults of every `{name}`. {block['description']}",
            "properties": settings,
            "required": [],
            "additionalProperties": False,
            "minProperties": 1,
        }


# -------------------------------------------------------------------------------------------
# choices and sections


def choice_schema(
    table: str, entries: Constructors, description: str, noun: str
) -> dict[str, Schema]:
    """Return the schema of a choice: a single-key mapping, or a bare name.

    `noun` is what messages call one of them. Every `block` also has the setting `as`.
    """
    defs: dict[str, Schema] = {}
    references: dict[str, Schema] = {}
    for name, constructor in sorted(entries.items()):
        references[name] = {"$ref": f"#/$defs/{table}.{name}"}
        try:
            defs[f"{table}.{name}"] = _entry(constructor, table == "block")
        except Exception as error:  # a plug-in's annotations may be anything
            owner = f"{constructor.__module__}.{constructor.__qualname__}"
            raise TypeError(f"`{name}`, which is {owner}: {error}") from error
    bare = [name for name in references if not defs[f"{table}.{name}"]["required"]]
    descriptions = [defs[f"{table}.{name}"]["description"] for name in bare]
    # a list is offered bare names and keys: each block once
    for name in bare if table == "block" else ():
        references[name]["doNotSuggest"] = True
    choice = {
        "description": description,
        "x-choice": table,
        "x-noun": noun,
        "anyOf": [
            {"type": "string", "enum": bare, "enumDescriptions": descriptions},
            {"type": "object"},
            VARIABLE,
        ],
        "properties": references,
        "additionalProperties": False,
        "minProperties": 1,
        # a plain `maxProperties` would keep editors from completing the first key
        "if": {"minProperties": 2},
        "then": {"maxProperties": 1},
    }
    return {table: choice, **defs}


def _entry(constructor: Callable[..., object], has_name: bool) -> Schema:
    """Return the schema of one block, optimizer, ...: its settings, or its first setting alone."""
    if has_name and (message := positional_message(constructor)):
        raise TypeError(message)
    schema = settings_schema(constructor, {})
    properties = schema["properties"]
    first = next(iter(properties), None)
    if has_name:
        meaning = "The name of the output, for later blocks."
        properties["as"] = {"description": meaning, "x-open": True, **_text(IDENTIFIER)}
    if first is None or set(schema["required"]) - {first}:
        return {"type": "object", **schema}
    setting = {key: value for key, value in properties[first].items() if key not in KEYWORDS_OF_KEY}
    short = [
        branch
        for branch in setting.get("anyOf", [setting])
        if branch.get("type") not in ("object", "null")
    ]
    return {
        "x-first": first,
        **_any_of([{**setting, "anyOf": short}, {"type": "object", **schema}]),
    }


def positional_message(block: Callable[..., object]) -> str:
    """Say that a block takes a setting by position, which no recipe could set; "" if none does."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for setting in [*inspect.signature(block).parameters.values()][1:]:
        if setting.kind in positional:
            return (
                f"`{setting.name}` is not keyword-only, so it is no setting; write `*,` before it"
            )
    return ""


def settings_schema(constructor: Callable[..., object], defs: dict[str, Schema]) -> Schema:
    """Return the schema of a constructor's keyword-only arguments, described in its docstring.

    A setting that several constructors share is described by a text in its annotation,
    `Annotated[float, "..."]`, in which `{word}` is an attribute of the constructor. Sections that
    the annotations name are added to `defs`.
    """
    description, meanings = _parse_docstring(constructor)
    properties, required = {}, []
    for parameter, hint in _parameters(constructor):
        name = parameter.name.rstrip("_")
        default, schema = parameter.default, _hint_schema(hint, defs)
        meaning = meanings.get(name) or _meaning(constructor, hint)
        properties[name] = {"description": meaning, **schema} if meaning else schema
        if default is inspect.Parameter.empty:
            required.append(name)
        elif default is not None:
            is_mapping = default == () and schema.get("type") == "object"
            if is_mapping or dataclasses.is_dataclass(default):
                properties[name]["default"] = {}
                continue
            value = list(default) if isinstance(default, (list, tuple)) else default
            properties[name]["default"] = value
            if meaning:  # editors do not show a default by itself
                text = f"{meaning}\n\nDefault: `{flow_text(value)}`"
                properties[name]["markdownDescription"] = text
    return {
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _parameters(constructor: Callable[..., object]) -> list[tuple[inspect.Parameter, object]]:
    """Return the keyword-only parameters with their annotations; of a section its own first."""
    arguments = inspect.signature(constructor).parameters.values()
    parameters = [
        argument for argument in arguments if argument.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    if inspect.isclass(constructor) and issubclass(constructor, Section):
        hints = type_hints(constructor)  # type: ignore[arg-type]  # every class is hashable
        if issubclass(constructor, SidedSection):  # in a recipe each encoder is a key
            parameters = [parameter for parameter in parameters if parameter.name != "encoders"]
        parameters.sort(key=lambda parameter: _distance_to_base(constructor, parameter.name))
    else:
        owner = constructor.__init__ if inspect.isclass(constructor) else constructor
        hints = typing.get_type_hints(owner, include_extras=True)
    return [(parameter, hints[parameter.name]) for parameter in parameters]


def _distance_to_base(section: type[Section], setting: str) -> int:
    """Return the number of bases up to the last one that has the setting."""
    distance = 0
    for index, base in enumerate(section.__mro__):
        if setting in inspect.get_annotations(base):
            distance = index
    return distance


def _meaning(constructor: Callable[..., object], hint: object) -> str:
    """Return the text in an annotation; "" if there is none."""
    notes = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    text = next((note for note in notes if isinstance(note, str)), "")
    return re.sub(r"\{(\w+)\}", lambda word: getattr(constructor, word[1], word[0]), text)


def _parse_docstring(constructor: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring, and the meanings in its section `Settings:`."""
    doc = inspect.getdoc(constructor) or ""
    section = doc.partition("\nSettings:\n")[2].split("\n\n")[0]
    entries = re.findall(r"^ {4}(\S.*?):(.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return " ".join(doc.split("\n\n")[0].split()), {
        name.strip(): " ".join(text.split()) for name, text in entries
    }


# ----------------------------------------------------------------------------------- annotations


def _hint_schema(hint: object, defs: dict[str, Schema]) -> Schema:
    """Return the schema of an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _annotated(arguments[0], arguments[1:], defs)
    if origin in (typing.Union, types.UnionType):
        return _optional([_hint_schema(argument, defs) for argument in arguments], defs)
    if origin is typing.Literal:
        return _any_of([{"enum": list(arguments)}, VARIABLE])
    if origin is dict:
        values = _hint_schema(arguments[1], defs)
        return {
            "type": "object",
            "propertyNames": {"pattern": IDENTIFIER},
            "additionalProperties": values,
        }
    if origin in (list, tuple, Sequence):
        array: Schema = {"type": "array", "items": _hint_schema(arguments[0], defs)}
        if origin is tuple and Ellipsis not in arguments:
            array |= {"minItems": len(arguments), "maxItems": len(arguments)}
        return _any_of([array, VARIABLE])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _section(hint, defs)
    return _scalar(hint, {})


def _annotated(hint: Any, notes: Sequence[Any], defs: dict[str, Schema]) -> Schema:
    for note in notes:
        match note:
            case Distinct():
                return {**_hint_schema(hint, defs), "uniqueItems": True}
            case Kind(name) if name.startswith("choice:"):
                return {"$ref": f"#/$defs/{name.removeprefix('choice:')}"}
            case Kind(name):
                return copy.deepcopy(KINDS[name])
            case Bounds():
                return _scalar(hint, _bounds_schema(note))
    return _hint_schema(hint, defs)


def _bounds_schema(bounds: Bounds) -> Schema:
    schema = {
        "minimum": bounds.minimum,
        "exclusiveMinimum": bounds.above,
        "exclusiveMaximum": bounds.below,
        "maximum": bounds.maximum,
    }
    return {keyword: value for keyword, value in schema.items() if value is not None}


def _optional(alternatives: list[Schema], defs: dict[str, Schema]) -> Schema:
    """Return the schema of a union.

    A choice is left out if it is not wanted; everything else may be `null`.

    Sections are written in place of references, since editors complete only what they find in
    place.
    """
    inlined = []
    for schema in alternatives:
        if "$ref" in schema and schema != VARIABLE:
            target = defs[ref_name(schema)]
            if "x-choice" in target:
                return schema
            schema = {**{key: value for key, value in schema.items() if key != "$ref"}, **target}
        inlined.append(schema)
    return _any_of(inlined)


def _section(described: type, defs: dict[str, Schema]) -> Schema:
    name = described.__name__.lower()
    if name not in defs:
        defs[name] = settings_schema(described, defs)
        if issubclass(described, SidedSection):
            own = defs[name]["properties"]["source"]
            what = {"description": "What this encoder reads."}
            defs[name]["additionalProperties"] = copy.deepcopy(own) | what
    return {"type": "object", "$ref": f"#/$defs/{name}"}


SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def _scalar(hint: object, bounds: Schema) -> Schema:
    if hint not in SCALARS:
        raise TypeError(f"a setting cannot be of the type {hint!r}")
    schema = {"type": SCALARS[hint], **bounds}
    return schema if hint in (str, type(None)) else _any_of([schema, VARIABLE])


def _text(pattern: str, message: str = "a name of letters, digits, `_` and `-`") -> Schema:
    return _any_of(
        [{"type": "string", "pattern": pattern, "patternErrorMessage": message}, VARIABLE]
    )


def _one_or_list(*items: Schema) -> Schema:
    array = {"type": "array", "items": _any_of(items), "minItems": 1}
    return {"x-list": True, **_any_of([items[0], array, *items[1:]])}


def _any_of(alternatives: Sequence[Schema]) -> Schema:
    """Return one schema that accepts all of them, with a variable once and last.

    Keywords for lists and mappings are put beside the `anyOf`, which has JSON types and single
    values only: so an editor, too, says exactly what is wrong inside a mapping, and not that none
    of the alternatives fits.
    """
    branches: list[Schema] = []
    beside: Schema = {}
    for schema in alternatives:
        if "anyOf" in schema:
            beside |= {key: value for key, value in schema.items() if key not in ("anyOf", "type")}
        for branch in schema.get("anyOf", [schema]):
            if branch.get("type") in ("array", "object"):
                beside |= {key: value for key, value in branch.items() if key != "type"}
                branch = {"type": branch["type"]}
            branches.extend([branch] if branch not in branches else [])
    branches.sort(key=lambda branch: branch == VARIABLE)
    return {**beside, **(branches[0] if len(branches) == 1 else {"anyOf": branches})}


STACK = {"type": "array", "items": BLOCK, "minItems": 1}
STACKS = {
    "type": "object",
    "propertyNames": {"pattern": IDENTIFIER},
    "additionalProperties": STACK,
    "minProperties": 1,
}
NAME = {"type": "string", "minLength": 1}
COPY = {
    "type": "object",
    "properties": {"copy": NAME},
    "required": ["copy"],
    "additionalProperties": False,
}
KINDS: dict[str, Schema] = {
    "stack": STACK,
    "branches": _any_of([{"type": "array", "items": STACK, "minItems": 1}, STACKS]),
    "metric": _any_of([{"enum": validation_keys()}, VARIABLE]),
    "text_metrics": {
        "type": "array",
        "items": {"enum": text_metrics()},
        "minItems": 1,
        "uniqueItems": True,
    },
    **dict.fromkeys(("name", "memory", "text"), NAME),
    "names": _one_or_list(NAME),  # one that is added twice counts twice
    "memories": {**_one_or_list(NAME), "uniqueItems": True},
    "initial_state": _any_of([NAME, COPY]),
    "texts": _any_of([{"type": "array", "items": NAME, "uniqueItems": True}, VARIABLE]),
    "identifier": _text(IDENTIFIER),
    "recipe_name": _text(
        RECIPE_NAME, f"a name of at most {MAX_NAME} letters, digits, `.`, `_` and `-`"
    ),
    "bases": _one_or_list(NAME, PIN_SCHEMA),
    "run_config": {
        "type": "object",
        "propertyNames": {"pattern": IDENTIFIER},
        "additionalProperties": _any_of(
            [{"type": word} for word in ("string", "number", "boolean")]
        ),
    },
    "any": {"x-open": True},
}
"""The schemas of settings that are more than a scalar, by the name of their `Kind` in an
annotation.
"""
