"""Generate a page for each block from its code: description, equation, settings, example, recipes,
source.
"""

# ruff: noqa: RUF001
from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from blocks.core.contract import Block, Kind
from composer.errors import RecipeError
from composer.recipe import schema_generator
from composer.recipe.recipe import load_text
from composer.recipe.registry import blocks
from composer.recipe.schema_reader import describe, scalar_text
from composer.recipe.yaml_reader import dump
from docs.hooks.corpus import GalleryRecipe, find_blocks, gallery_recipes, model_stacks
from docs.hooks.equations import render_paragraph, typeset
from docs.hooks.markdown import code, file_link, join_parts, table

DECODER = ["rnn", "cross_attention"]
MIN_HIDDEN_DIGITS = 6
"""Upper bounds with so many digits only catch typos and are not shown."""
MAX_EXAMPLE_LINES = 16
"""Maximal lines of an example."""
GATE = {"linear": {"activation": "sigmoid", "as": "gate"}}
REQUIRED: dict[str, Any] = {"stack": [{"linear": {"activation": "tanh"}}], "names": ["gate"]}
"""Example values of required settings, by their kind."""
MODELS = {
    "use": """\
model:
  stacks:
    twice:
      - residual: [{feed_forward: {hidden: 128}}]
  encoder:
    - use: {stack: twice}
    - rnn: {cell: gru, bidirectional: true}
    - use: {stack: twice}
""",
}
"""Examples of blocks that need more than a stack."""


class BlockDoc(NamedTuple):
    """The parts of a block's docstring."""

    body: list[str]
    shapes: str
    state: str
    raises: str


def parse_docstring(name: str) -> BlockDoc:
    """Parse a block's docstring, without its settings, which are in the schema."""
    docstring = inspect.getdoc(blocks()[name]) or ""
    body, _, rest = docstring.partition("\nSettings:\n")
    body, separator, shapes = body.partition("\nShapes:")
    end = shapes if separator else rest.partition("\nShapes:")[2]
    parts = re.split(r"\bState: |\bState on a causal site: |\nRaises BlockError ", end)
    kinds = re.findall(r"\b(State: |State on a causal site: )|\n(Raises BlockError )", end)
    by_kind = dict(
        zip(
            ["shapes", *("raises" if raised else "state" for _, raised in kinds)],
            parts,
            strict=True,
        )
    )
    flat = {key: " ".join(text.split()) for key, text in by_kind.items()}
    return BlockDoc(
        body.strip().split("\n\n"), flat["shapes"], flat.get("state", ""), flat.get("raises", "")
    )


def block_schemas() -> dict[str, Any]:
    """Return the schema of every block by its name."""
    return {
        key.removeprefix("block."): value
        for key, value in schema_generator.load()["$defs"].items()
        if key.startswith("block.")
    }


def settings_table(block_schema: Mapping[str, Any]) -> str:
    """Return the table of settings of a schema."""
    required = block_schema.get("required", ())
    rows = [
        (
            f"`{name}`",
            format_type(rule),
            format_default(name, rule, required),
            typeset(rule.get("description", "")),
        )
        for name, rule in block_schema["properties"].items()
    ]
    return (
        table(("setting", "takes", "default", "meaning"), rows) if rows else "It has no settings."
    )


def format_type(setting: Mapping[str, Any]) -> str:
    """Return the type of a setting with its bounds."""
    reference = setting.get("$ref", "").rpartition("/")[2]
    type_text = f"a {reference}" if reference else describe(dict(setting), "maximum")
    return re.sub(rf" and at most (\d{{{MIN_HIDDEN_DIGITS},}})$", "", type_text)


def format_default(name: str, setting: Mapping[str, Any], required: Any) -> str:
    """Return the default as a recipe writes it."""
    if name in required:
        return "required"
    return "–" if setting.get("default") is None else f"`{scalar_text(setting['default'])}`"


# -------------------------------------------------------------------------------------------
# examples


@cache
def recipes_by_block() -> dict[str, tuple[GalleryRecipe, ...]]:
    """Return the recipes that use each block."""
    recipes: dict[str, list[GalleryRecipe]] = {name: [] for name in blocks()}
    for recipe in gallery_recipes():
        stacks = model_stacks(recipe.recipe.canonical["model"])
        for name in {name for name, _ in find_blocks(stacks, frozenset(blocks()))}:
            recipes[name].append(recipe)
    return {name: tuple(recipes) for name, recipes in recipes.items()}


def block_fragments(name: str) -> Iterator[tuple[str, GalleryRecipe]]:
    """Yield a block as each recipe writes it, in YAML."""
    for recipe in recipes_by_block()[name]:
        for block, item in find_blocks(
            model_stacks(recipe.recipe.explicit["model"]), frozenset(blocks())
        ):
            if block == name:
                yield dump([item]), recipe


@cache
def example(name: str) -> tuple[str, GalleryRecipe | None]:
    """Return the most informative short fragment and its recipe, else a derived example."""
    candidates = sorted(
        block_fragments(name),
        key=lambda pair: (-example_score(pair[0]), len(pair[0]), pair[1].slug),
    )
    if name in MODELS:
        return MODELS[name], None
    return candidates[0] if candidates else (derived_example(name), None)


def derived_example(name: str) -> str:
    """Return an encoder's stack with a block that no recipe uses, the first that a plan accepts."""
    settings = {setting: REQUIRED[kind] for setting, kind in required_kinds(blocks()[name]).items()}
    before = [GATE] if "gate" in repr(settings) else []
    block = {name: settings} if settings else name
    around: list[tuple[list[Any], list[Any]]] = [([], []), ([{"grid": {"columns": 4}}], [])]
    for first, last in (*around, ([{"grid": {"columns": 4}}], ["sum_columns"])):
        stack = [*first, *before, block, *last]
        model = {"width": 64, "encoder": stack, "decoder": DECODER}
        recipe = {"recipe": 1, "name": name, "data": {"generate": {"copy": {}}}, "model": model}
        try:
            load_text(dump(recipe), f"{name}.yaml").plan()
        except RecipeError:
            continue
        return dump(stack)
    raise ValueError(f"no example of `{name}` can be derived: use it in a recipe")


def required_kinds(block: type[Block]) -> dict[str, str]:
    """Return the kind of each setting of a block that has no default."""
    hints = get_type_hints(block.__init__, include_extras=True)
    required = [
        parameter
        for parameter in inspect.signature(block).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and parameter.default is inspect.Parameter.empty
    ]
    annotations = {parameter.name: get_args(hints[parameter.name]) for parameter in required}
    return {
        name: next(note.name for note in notes if isinstance(note, Kind))
        for name, notes in annotations.items()
    }


def example_score(text: str) -> int:
    """Score a fragment by its settings and blocks; long ones get a negative score."""
    lines = text.count("\n")
    return min(text.count(":"), 6) if lines <= MAX_EXAMPLE_LINES else -lines


# ------------------------------------------------------------------------------------------- pages


def block_page(name: str) -> str:
    """Return the page of a block."""
    block, block_schema = parse_docstring(name), block_schemas()[name]
    first = block_schema.get("x-first")
    shorthand = f"`- {name}: VALUE` sets `{first}`." if first else ""
    return join_parts(
        f"# `{name}`",
        *map(render_paragraph, block.body),
        "## Settings",
        settings_table(block_schema),
        shorthand,
        "## Example",
        _example(name),
        "## Shapes and state",
        _shapes(block),
        "## Used by",
        _users(name),
        "## Source",
        file_link(f"blocks/{name}.py", f"blocks/{name}.md"),
        "Its test of the equation is in `tests/blocks`.",
    )


def _example(name: str) -> str:
    text, recipe = example(name)
    if recipe is None:
        return code(text, "yaml", "" if name in MODELS else "model.encoder")
    return join_parts(f"From {recipe_link(recipe)}:", code(text, "yaml"))


def _shapes(block: BlockDoc) -> str:
    rows = [
        ("**Shapes**", typeset(block.shapes)),
        ("**State**", typeset(block.state or "none")),
        ("**Errors**", typeset(block.raises)),
    ]
    return join_parts(
        *(f"{name}: {text}" for name, text in rows if text),
        "(*B* rows, *T* positions, *D* features, *W* columns, *H* heads.)",
    )


def _users(name: str) -> str:
    links = [recipe_link(recipe) for recipe in recipes_by_block()[name]]
    more = f"{len(links)} recipes: " if len(links) > 1 else ""
    return more + ", ".join(links) if links else "No recipe of the repository."


def recipe_link(recipe: GalleryRecipe) -> str:
    """Return a link to a recipe's file, which leads to its page in the gallery on the site."""
    return f"[{recipe.slug}](../../recipes/{recipe.slug}.yaml)"


def index_page() -> str:
    """Return the tables of all blocks, by family."""
    families: dict[str, list[tuple[str, str]]] = {}
    for name, rules in block_schemas().items():
        row = (f"[`{name}`]({name}.md)", typeset(rules["description"]))
        families.setdefault(rules["x-family"].capitalize(), []).append(row)
    return join_parts(
        "# Blocks",
        "A block is one item of a stack: `- name`, or `- name: {settings}`. "
        "These pages are generated from the code of the blocks (`python -m docs.hooks.pages`).",
        *(
            f"## {family}\n\n{table(('block', 'what it is'), rows)}"
            for family, rows in sorted(families.items())
        ),
    )
