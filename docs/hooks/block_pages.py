"""A page for each block, from its code: what it is, its equation, settings, an example, who uses it, its source."""

# ruff: noqa: RUF001
from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from blocks.core.contract import Block, Kind
from composer.errors import RecipeError
from composer.recipe import schema
from composer.recipe.json_schema import describe, scalar_text
from composer.recipe.recipe import load_text
from composer.recipe.registry import blocks
from composer.recipe.yaml_reader import dump
from docs.hooks.corpus import ROOT, Shown, blocks_in, shown, stacks
from docs.hooks.equations import paragraph, typeset
from docs.hooks.pages import code, folded, page, table

DECODER = ["rnn", "cross_attention"]
MANY = 6
"""Digits from which on an upper bound is there to catch slips and worth no word."""
ROOM = 16
"""Lines of an example."""
GATE = {"linear": {"activation": "sigmoid", "as": "gate"}}
REQUIRED: dict[str, Any] = {"stack": [{"linear": {"activation": "tanh"}}], "names": ["gate"]}
"""What stands for a setting without a default in an example, by its kind."""
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
"""
}
"""An example of a block that a stack alone cannot show."""


class Told(NamedTuple):
    """A block's docstring in its parts."""

    body: list[str]
    shapes: str
    state: str
    raises: str


def told(name: str) -> Told:
    """The docstring of a block, without its settings, which the schema tells."""
    whole = inspect.getdoc(blocks()[name]) or ""
    body, _, rest = whole.partition("\nSettings:\n")
    body, found, shapes = body.partition("\nShapes:")
    end = shapes if found else rest.partition("\nShapes:")[2]
    parts = re.split(r"\bState: |\bState on a causal site: |\nRaises BlockError ", end)
    kinds = re.findall(r"\b(State: |State on a causal site: )|\n(Raises BlockError )", end)
    by_kind = dict(zip(["shapes", *("raises" if raised else "state" for _, raised in kinds)], parts, strict=True))
    flat = {key: " ".join(text.split()) for key, text in by_kind.items()}
    return Told(body.strip().split("\n\n"), flat["shapes"], flat.get("state", ""), flat.get("raises", ""))


def definitions() -> dict[str, Any]:
    """What the schema says of every block, by its name."""
    return {
        key.removeprefix("block."): value for key, value in schema.load()["$defs"].items() if key.startswith("block.")
    }


def settings(described: Mapping[str, Any]) -> str:
    """The table of settings; all that is in it is the schema's."""
    required = described.get("required", ())
    rows = [
        (f"`{name}`", taken(each), default(name, each, required), typeset(each.get("description", "")))
        for name, each in described["properties"].items()
    ]
    return table(("setting", "takes", "default", "meaning"), rows) if rows else "It has no settings."


def taken(setting: Mapping[str, Any]) -> str:
    """What a setting takes, with its bounds."""
    reference = setting.get("$ref", "").rpartition("/")[2]
    told = f"a {reference}" if reference else describe(dict(setting), "maximum")
    return re.sub(rf" and at most (\d{{{MANY},}})$", "", told)


def default(name: str, setting: Mapping[str, Any], required: Any) -> str:
    """The default as a recipe writes it."""
    if name in required:
        return "required"
    return "–" if setting.get("default") is None else f"`{scalar_text(setting['default'])}`"


# ------------------------------------------------------------------------------------------- examples


@cache
def uses() -> dict[str, tuple[Shown, ...]]:
    """The recipes that use each block."""
    found: dict[str, list[Shown]] = {name: [] for name in blocks()}
    for each in shown():
        for name in {name for name, _ in blocks_in(stacks(each.recipe.model), frozenset(blocks()))}:
            found[name].append(each)
    return {name: tuple(recipes) for name, recipes in found.items()}


def fragments(name: str) -> Iterator[tuple[str, Shown]]:
    """A block as each recipe writes it, in YAML."""
    for each in uses()[name]:
        for found, item in blocks_in(stacks(each.recipe.explicit["model"]), frozenset(blocks())):
            if found == name:
                yield dump([item]), each


@cache
def example(name: str) -> tuple[str, Shown | None]:
    """The fragment that shows most in little room, and the recipe that it is from; else one of our own."""
    found = sorted(fragments(name), key=lambda pair: (-worth(pair[0]), len(pair[0]), pair[1].place))
    return found[0] if found else (MODELS.get(name) or derived_example(name), None)


def derived_example(name: str) -> str:
    """Return an encoder's stack with a block that no recipe uses: the first of a few around it that a plan accepts."""
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
        each
        for each in inspect.signature(block).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
    ]
    notes = {each.name: get_args(hints[each.name]) for each in required}
    return {name: next(note.name for note in kinds if isinstance(note, Kind)) for name, kinds in notes.items()}


def worth(text: str) -> int:
    """How much a fragment shows: settings and blocks, unless it is too long to be read at once."""
    lines = text.count("\n")
    return min(text.count(":"), 6) if lines <= ROOM else -lines


# ------------------------------------------------------------------------------------------- pages


def block_page(name: str, source: str) -> str:
    """The page of a block; `source` is the address of the repository's files, or ""."""
    block, described = told(name), definitions()[name]
    first = described.get("x-first")
    short = f"`- {name}: VALUE` sets `{first}`." if first else ""
    return page(
        f"---\ntitle: {name}\n---",
        f"# `{name}`",
        *map(paragraph, block.body),
        "## Settings",
        settings(described),
        short,
        "## Example",
        _example(name),
        "## Shapes and state",
        _shapes(block),
        "## Used by",
        _users(name),
        "## Source",
        _source(name, source),
    )


def _example(name: str) -> str:
    text, recipe = example(name)
    if recipe is None:
        return code(text, "yaml", "" if name in MODELS else "model.encoder")
    return page(f"From [{recipe.place}](../gallery/{recipe.place}.md):", code(text, "yaml"))


def _shapes(block: Told) -> str:
    rows = [
        ("**Shapes**", typeset(block.shapes)),
        ("**State**", typeset(block.state or "none")),
        ("**Refused**", typeset(block.raises)),
    ]
    return page(
        *(f"{name}: {text}" for name, text in rows if text),
        "(*B* rows, *T* positions, *D* features, *W* columns, *H* heads.)",
    )


def _users(name: str) -> str:
    links = [f"[{each.place}](../gallery/{each.place}.md)" for each in uses()[name]]
    more = f"{len(links)} recipes: " if len(links) > 1 else ""
    return more + ", ".join(links) if links else "No recipe of the repository."


def _source(name: str, source: str) -> str:
    text = (ROOT / f"blocks/{name}.py").read_text(encoding="utf-8")
    where = f"[blocks/{name}.py]({source}/blocks/{name}.py)" if source else f"`blocks/{name}.py`"
    lines = len(text.splitlines())
    return page(
        f"{where}, {lines} lines. Its test of the equation is in `tests/blocks`.",
        folded(f"blocks/{name}.py", code(text, "python")),
    )


def index_page() -> str:
    """All blocks in one table."""
    rows = [(f"[`{name}`]({name}.md)", typeset(each["description"])) for name, each in definitions().items()]
    return page(
        "# Blocks",
        "A block is one item of a stack: `- name`, or `- name: {settings}`. "
        "Every page here is made from the block's own code.",
        table(("block", "what it is"), rows),
    )
