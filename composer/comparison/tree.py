"""A model as trees: each block a node, the blocks of its stacks below it, and how a block is written in short."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from composer.errors import format_path
from composer.recipe.json_schema import is_stack, scalar_text
from composer.recipe.recipe import Recipe, Steps

BRANCH, CHOICE = "branch", "choice"
NAME = "as"
STACKS = ("encoder", "encoders", "decoder", "stacks")
"""The keys of `model` that trees are made of."""
SHORTENED = 160
"""Characters of a value that is told in one line."""


@dataclass(frozen=True, eq=False)
class TreeNode:
    """A block; or one of several stacks inside a block, a branch; or what a section chooses, an optimizer.

    `word` is the block's, or the branch's name; `settings` what it has beside its stacks; `defaults` what these are
    where nothing is written; `first` the setting by which it is written in short.
    """

    kind: str
    word: str
    path: Steps
    settings: Mapping[str, Any]
    inner: tuple[TreeNode, ...] = ()
    defaults: Mapping[str, Any] | None = None
    first: str | None = None

    @cached_property
    def content(self) -> str:
        """The same for whatever is the same, wherever it stands."""
        return json.dumps([self.kind, self.word, self.settings, [each.content for each in self.inner]], sort_keys=True)

    def below(self) -> Iterator[TreeNode]:
        """Everything inside, the outer before the inner."""
        for each in self.inner:
            yield each
            yield from each.below()

    def here(self) -> str:
        """This block alone: `residual(norm=pre)`."""
        if self.kind == BRANCH:
            return f"branch {self.word}"
        told = [*self._first(), *self._others()]
        return f"{self.word}({', '.join(told)})" if told else self.word

    def whole(self) -> str:
        """This block and all that is inside: `residual(norm=pre)[self_attention(heads=8), dropout(0.1)]`."""
        if self.kind == BRANCH:
            return f"{self.word}: {listed(self.inner)}"
        if any(each.kind == BRANCH for each in self.inner):
            return f"{self.here()}{{{', '.join(each.whole() for each in self.inner)}}}"
        return f"{self.here()}{listed(self.inner)}" if self.inner else self.here()

    def _first(self) -> list[str]:
        value = self.settings.get(self.first or "")
        if value is None:
            return []
        alone = isinstance(value, str) or (self.kind != CHOICE and set(self.settings) <= {self.first, NAME})
        return [value_text(value) if alone else f"{self.first}={value_text(value)}"]

    def _others(self) -> list[str]:
        usual = self.defaults or {}
        return [
            f"{key}={value_text(value)}"
            for key, value in self.settings.items()
            if key != self.first and value != usual.get(key)
        ]


def listed(stack: tuple[TreeNode, ...]) -> str:
    """A stack in short."""
    return f"[{', '.join(each.whole() for each in stack)}]"


def value_text(value: Any) -> str:
    """A value as a recipe writes it, on one line."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {value_text(each)}" for key, each in value.items() if each is not None)
        text = f"{{{text}}}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(value_text, value))}]"
    elif isinstance(value, float):
        text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    else:
        text = scalar_text(value)
    return text if len(text) <= SHORTENED else f"{text[: SHORTENED - 4]} ..."


# ------------------------------------------------------------------------------------------- from a recipe


def parts(recipe: Recipe) -> dict[str, TreeNode]:
    """Every stack that stands by itself, below a root of its own: `encoder`, `encoders.x`, `decoder`, `stacks.x`."""
    model = recipe.model
    found: dict[str, TreeNode] = {}
    for key in STACKS:
        value = model.get(key)
        named = (
            {(key,): value} if isinstance(value, list) else {(key, name): each for name, each in (value or {}).items()}
        )
        for steps, stack in named.items():
            path = ("model", *steps)
            found[".".join(steps)] = TreeNode(BRANCH, ".".join(steps), path, {}, twigs(recipe, stack, path))
    return found


def twigs(recipe: Recipe, stack: list[Any], path: Steps) -> tuple[TreeNode, ...]:
    """The blocks of one frozen stack."""
    return tuple(twig(recipe, item, (*path, at)) for at, item in enumerate(stack))


def twig(recipe: Recipe, item: Mapping[str, Any], path: Steps) -> TreeNode:
    """One frozen block: what of its settings are stacks stands below it."""
    ((word, settings),) = item.items()
    entry = recipe.rules["$defs"].get(f"block.{word}", {})
    known, here = entry.get("properties", {}), (*path, word)
    inner: list[TreeNode] = []
    own = dict(settings)
    for key, schema in known.items():
        if is_stack(schema) and isinstance(settings.get(key), list):
            inner += twigs(recipe, own.pop(key), (*here, key))
        elif is_stack(schema.get("items", {})) and settings.get(key) is not None:
            inner += branches(recipe, own.pop(key), (*here, key))
    defaults = {key: each.get("default") for key, each in known.items()}
    return TreeNode("block", word, here, own, tuple(inner), defaults, entry.get("x-first"))


def branches(recipe: Recipe, written: Any, path: Steps) -> Iterator[TreeNode]:
    """Several stacks of one setting, by name or by number."""
    for name, stack in written.items() if isinstance(written, Mapping) else enumerate(written):
        yield TreeNode(BRANCH, str(name), (*path, name), {}, twigs(recipe, stack, (*path, name)))


def place(recipe: Recipe, node: TreeNode) -> str:
    """Where it stands, as the recipe writes it: `decoder[1].repeat.stack[0].residual[0]`."""
    _, steps, _ = recipe.written_at(node.path)
    if node.kind != BRANCH and steps[-1:] == (node.word,):
        steps = steps[:-1]
    return format_path(steps[1:])
