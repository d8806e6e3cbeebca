"""Blocks and stacks of a recipe by path, by kind or by name, and others in their place.

A selector is a path, `model.decoder` or `model.encoder[1].repeat.stack[0]`, and after it any number of `..WORD`: every
block of the kind WORD below or, where no block below is of that kind, every block that is called so by `as: WORD`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from composer.errors import format_path
from composer.recipe.json_schema import is_stack
from composer.recipe.node import Node
from composer.recipe.overrides import parse_path

Steps = tuple[str | int, ...]
Rules = Mapping[str, Any]

TAKEN_OUT = "identity"


class Selector(NamedTuple):
    """A path, and the words after each `..`."""

    path: Steps
    words: tuple[str, ...]


class Found(NamedTuple):
    """A block or a stack at a path of the recipe as it is written."""

    path: Steps
    node: Node
    is_stack: bool


def selector(text: str) -> Selector | None:
    """What a text selects; None where it is no selector."""
    head, *words = text.split("..")
    parts, end = parse_path(head)
    path = tuple(part.name for part in parts)
    named = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", word) for word in words)
    if end < len(head) or path[:1] != ("model",) or not named:
        return None
    return Selector(path, tuple(words))


# ------------------------------------------------------------------------------------------- finding


def find(root: Node, wanted: Selector, rules: Rules) -> list[Found]:
    """Everything that a selector selects, in the order of the recipe."""
    if not wanted.words:
        return [each for each in everything(root, rules) if _same(each, wanted.path, rules)]
    within = [wanted.path]
    found: list[Found] = []
    for word in wanted.words:
        below = [each for each in everything(root, rules) if any(_below(each.path, path, rules) for path in within)]
        blocks = [each for each in below if not each.is_stack]
        found = [each for each in blocks if word_of(each.node) == word]
        found = found or [each for each in blocks if name_of(each.node) == word]
        within = [each.path for each in found]
    return found


def _same(each: Found, path: Steps, rules: Rules) -> bool:
    """Whether a path leads to it; a block's may end with its word, a stack's leave out its setting's name or not."""
    is_block_word = len(path) > 1 and isinstance(path[-1], str) and isinstance(path[-2], int)
    if each.is_stack:
        return not is_block_word and _bare(each.path, rules) == _bare(path, rules)
    whole = path[:-1] if is_block_word and path[-1] == word_of(each.node) else path
    return isinstance(whole[-1], int) and _bare(whole, rules) == _bare(each.path, rules)


def _below(inner: Steps, outer: Steps, rules: Rules) -> bool:
    inner, outer = _bare(inner, rules), _bare(outer, rules)
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _bare(path: Steps, rules: Rules) -> Steps:
    """A path without the names of first settings, which may be left out: `residual.stack[0]` is `residual[0]`."""
    kept: list[str | int] = []
    for index, step in enumerate(path):
        before = path[index - 1] if index else None
        first = rules["$defs"].get(f"block.{before}", {}).get("x-first")
        is_setting = index > 1 and isinstance(path[index - 2], int) and step == first
        kept.extend([] if is_setting else [step])
    return tuple(kept)


def everything(root: Node, rules: Rules) -> Iterator[Found]:
    """Every stack and every block of a model, the outer before the inner."""
    model = root.value.get("model")
    sections = model.value if model is not None and isinstance(model.value, dict) else {}
    for key in ("encoder", "decoder"):
        if key in sections:
            yield from _stack(sections[key], ("model", key), rules)
    for key in ("encoders", "stacks"):
        named = sections[key].value if key in sections else None
        for name, node in named.items() if isinstance(named, dict) else ():
            yield from _stack(node, ("model", key, name), rules)


def _stack(node: Node, path: Steps, rules: Rules) -> Iterator[Found]:
    if not isinstance(node.value, list):
        return
    yield Found(path, node, is_stack=True)
    for index, item in enumerate(node.value):
        yield Found((*path, index), item, is_stack=False)
        yield from _inside(item, (*path, index), rules)


def _inside(item: Node, path: Steps, rules: Rules) -> Iterator[Found]:
    """The stacks of one block."""
    word = word_of(item)
    entry = rules["$defs"].get(f"block.{word}")
    if entry is None or not isinstance(item.value, dict):
        return
    settings = item.value[word]
    if isinstance(settings.value, dict):
        for key, node in settings.value.items():
            yield from _stacks(node, (*path, word, key), entry["properties"].get(key, {}), rules)
    elif entry.get("x-first"):
        yield from _stacks(settings, (*path, word), entry["properties"][entry["x-first"]], rules)


def _stacks(node: Node, path: Steps, schema: Rules, rules: Rules) -> Iterator[Found]:
    """The stacks in one setting: itself, or its branches."""
    items = schema.get("items", {})
    if is_stack(schema):
        yield from _stack(node, path, rules)
    elif is_stack(items):
        inner = node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
        for key, each in inner if isinstance(node.value, (dict, list)) else ():
            yield from _stack(each, (*path, key), rules)


def word_of(item: Node) -> str:
    """A block's word; "" where it is no block."""
    if isinstance(item.value, dict):
        return next(iter(item.value), "")
    return item.value if isinstance(item.value, str) else ""


def name_of(item: Node) -> str:
    """What a block is called by `as`; "" where it is not."""
    named = _named(item)
    return named.value if named is not None and isinstance(named.value, str) else ""


def _named(item: Node) -> Node | None:
    settings = next(iter(item.value.values()), None) if isinstance(item.value, dict) else None
    return settings.value.get("as") if settings is not None and isinstance(settings.value, dict) else None


# ------------------------------------------------------------------------------------------- replacing


def overlap(one: Sequence[Found], other: Sequence[Found]) -> Steps | None:
    """Where two replacements meet: the path of the inner one."""
    for first in one:
        for second in other:
            shared = min(len(first.path), len(second.path))
            if first.path[:shared] == second.path[:shared]:
                return max(first.path, second.path, key=len)
    return None


class Change(NamedTuple):
    """What is put in place of everything that was found: a block, a list of them, or `identity`, nothing."""

    found: Sequence[Found]
    put: Node


def replaced(root: Node, changes: Sequence[Change], rules: Rules) -> Node:
    """The recipe with all changes at once: every path is one of the recipe as it was before."""
    put, gone = {}, set()
    for change in changes:
        for each in change.found:
            if change.put.value == TAKEN_OUT and not each.is_stack:
                gone.add(_outermost(root, each))
            else:
                put[each.path] = change.put
    return _Rewriter(put, gone, rules).walk(root, ())


def _outermost(root: Node, each: Found) -> Steps:
    """What goes with a block that goes: every `residual` around it, for x + f(x) without f is x."""
    path = each.path
    while (outer := _around(path)) is not None and word_of(_at(root, outer)) == "residual":
        path = outer
    return path


def _around(path: Steps) -> Steps | None:
    """The path of the block in whose stack a block stands."""
    ends = [index for index, step in enumerate(path[:-1]) if isinstance(step, int) and index > 1]
    blocks = [index for index in ends if isinstance(path[index + 1], str)]
    return path[: blocks[-1] + 1] if blocks else None


def _at(root: Node, path: Steps) -> Node:
    for step in path:
        root = root.value[step]
    return root


class _Rewriter(NamedTuple):
    """Copies a tree, with other blocks in some places."""

    put: Mapping[Steps, Node]
    gone: set[Steps]
    rules: Rules

    def walk(self, node: Node, path: Steps) -> Node:
        if path in self.put:  # a stack; blocks are replaced in their lists
            return as_stack(self.put[path])
        if isinstance(node.value, dict):
            return replace(node, value={key: self.walk(each, (*path, key)) for key, each in node.value.items()})
        if isinstance(node.value, list):
            items = [self.item(each, (*path, index)) for index, each in enumerate(node.value)]
            return replace(node, value=[each for inner in items for each in inner])
        return node

    def item(self, node: Node, path: Steps) -> list[Node]:
        if path in self.gone:
            return []
        is_block = path in self.put and not isinstance(node.value, list)
        if not is_block:
            return [self.walk(node, path)]
        blocks = as_stack(self.put[path]).value
        named = _named(node)
        return blocks if named is None or not blocks else [*blocks[:-1], self.called(blocks[-1], named)]

    def called(self, block: Node, name: Node) -> Node:
        """A block that others read by the name of the one whose place it takes, unless it brings its own."""
        word = word_of(block)
        if not word or _named(block) is not None:
            return block
        settings = block.value[word] if isinstance(block.value, dict) else replace(block, value={}, key=block.mark)
        if not isinstance(settings.value, dict):
            first = self.rules["$defs"].get(f"block.{word}", {}).get("x-first")
            if settings.value is not None and first is None:
                return block
            inner = {} if settings.value is None else {first: replace(settings, key=settings.place)}
            settings = replace(settings, value=inner)
        return replace(block, value={word: replace(settings, value={**settings.value, "as": name})}, text="")


def as_stack(put: Node) -> Node:
    """A block as a stack of one, a stack as it is."""
    if isinstance(put.value, list):
        return put
    return replace(put, value=[replace(put, key=None)])


def shown(found: Found) -> str:
    """A place as a reader writes it."""
    return format_path(found.path)
