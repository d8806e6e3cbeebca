"""Generate a page for each kind of choice besides blocks (tasks, tokenizers, ...), and one for all other keys."""

from __future__ import annotations

from typing import Any

from composer.recipe import schema_generator
from composer.recipe.registry import CHOICES
from docs.hooks.block_pages import settings_table
from docs.hooks.equations import typeset
from docs.hooks.markdown import join_parts


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
    parts = ["# All keys", "The sections of a recipe and their settings. `seqcomposer schema` prints them for editors."]
    top = {key: value for key, value in rules["properties"].items() if not value.get("$ref")}
    parts += ["## Top level", settings_table({"properties": top, "required": rules.get("required", ())})]
    for name, definition in rules["$defs"].items():
        if "." not in name and name not in (*CHOICES, "block", "variable"):
            properties = without_block_defaults(definition["properties"])
            table = settings_table({**definition, "properties": properties})
            parts += [f"## {name}", typeset(definition.get("description", "")), table]
    return join_parts(*parts)


def without_block_defaults(properties: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the properties except defaults of blocks, which are on the blocks' own pages."""
    prefix = "#/$defs/defaults."
    return {key: value for key, value in properties.items() if not value.get("$ref", "").startswith(prefix)}
