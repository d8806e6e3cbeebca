"""Generate a page for each kind of choice besides blocks (tasks, tokenizers, ...), and one for all
other keys.
"""

from __future__ import annotations

from typing import Any

from composer.recipe import schema_generator
from composer.recipe.registry import CHOICES
from composer.sweeps.spec import RESERVED, load_schema
from docs.hooks.block_pages import settings_table
from docs.hooks.equations import typeset
from docs.hooks.markdown import join_parts

CONDITIONS = """\
`where`, `when` and `seeds_where` compare the values of axes and the costs `parameters`, `flops` and
`state_bytes` (not in `when`) by `<`, `<=`, `>`, `>=`, `==`, `!=`, `in [...]` and `not in [...]`,
with `+`, `-`, `*` and `/`, joined by `and`, `or` and `not`. Numbers may end in `k`, `M`, `G` or
`T`; texts are in quotes; an axis without a value is `none`, and no other comparison with it
holds."""

SWEEP_KINDS = {
    "conditions": "condition, or a list of them",
    "searches": "search (below)",
    "prunings": "pruning (below)",
}
"""What the keys of a sweep refer to, in words."""


def choice_page(table: str) -> str:
    """Return the page of one kind of choice, with the settings of each."""
    key = ".".join(CHOICES[table].key)
    parts = [f"# {table.capitalize()}", f"Values of `{key}`: a name, or a name with settings."]
    for name, definition in schema_generator.load()["$defs"].items():
        if name.startswith(f"{table}."):
            title = name.removeprefix(f"{table}.")
            parts += [f"## {title}", typeset(definition["description"]), settings_table(definition)]
    return join_parts(*parts)


def sections_page() -> str:
    """Return the page of every key of a recipe that is neither a block nor a choice."""
    rules = schema_generator.load()
    parts = [
        "# All keys",
        (
            "The sections of a recipe and their settings. `seqcomposer schema` prints them for"
            " editors."
        ),
    ]
    top = {key: value for key, value in rules["properties"].items() if not value.get("$ref")}
    parts += [
        "## Top level",
        settings_table({"properties": top, "required": rules.get("required", ())}),
    ]
    for name, definition in rules["$defs"].items():
        if "." not in name and name not in (*CHOICES, "block", "variable"):
            properties = without_block_defaults(definition["properties"])
            table = settings_table({**definition, "properties": properties})
            parts += [f"## {name}", typeset(definition.get("description", "")), table]
    return join_parts(*parts)


def sweep_page() -> str:
    """Return the page of every key of a sweep's file."""
    rules = load_schema()
    intro = (
        "The keys of a sweep's file ([how sweeps work](../sweeps.md)), and"
        " `schemas/sweep.schema.json` for editors."
    )
    top = {key: describe_reference(rule) for key, rule in rules["properties"].items()}
    parts = [
        "# Keys of sweeps",
        intro,
        "## Top level",
        settings_table({**rules, "properties": top}),
    ]
    for key in ("match", "resources", "study"):
        parts += [f"## {key}", settings_table(rules["properties"][key])]
    definitions = rules["$defs"]
    axis = {**definitions["axis"], "required": ()}
    parts += [
        "## axis",
        "A mapping under `axes`. " + typeset(axis["description"]),
        settings_table(axis),
    ]
    parts += [
        "An axis cannot be called " + ", ".join(f"`{name}`" for name in sorted(RESERVED)) + "."
    ]
    for key, table in (("search", "searches"), ("prune", "prunings")):
        parts += [f"## {key}", f"`{key}` takes a name, or a name with settings."]
        for name, definition in definitions.items():
            if name.startswith(f"{table}."):
                settings = settings_table({"properties": {}, **definition})
                parts += [
                    f"### {name.removeprefix(f'{table}.')}",
                    typeset(definition["description"]),
                    settings,
                ]
    parts += ["## Conditions", CONDITIONS]
    return join_parts(*parts)


def describe_reference(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of a key of a sweep, with what it refers to in words."""
    name = rule.get("$ref", "").rpartition("/")[2]
    return {**rule, "$ref": SWEEP_KINDS[name]} if name in SWEEP_KINDS else rule


def without_block_defaults(properties: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the properties except defaults of blocks, which are on the blocks' own pages."""
    prefix = "#/$defs/defaults."
    return {
        key: value
        for key, value in properties.items()
        if not value.get("$ref", "").startswith(prefix)
    }
