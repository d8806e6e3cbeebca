"""Selectors of blocks and stacks in the model of a recipe.

A selector is a path, `model.decoder` or `model.encoder[1].repeat.stack[0]`, followed by any number
of `..WORD`: every block of the kind WORD below or, if there is none, every block with `as: WORD`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from composer.errors import Fault, KeyPath, fault_at, format_path
from composer.recipe.extends_and_overrides import parse_path
from composer.recipe.schema_reader import BLOCK, Schema, first_setting, is_stack
from composer.recipe.yaml_reader import Node, items_of
from composer.suggest import closest_word
from composer.sweeps.sweep import Axis


class Match(NamedTuple):
    """A block or a stack, with its path in the recipe as written."""

    path: KeyPath
    node: Node
    is_stack: bool


def parse_selector(text: str) -> tuple[KeyPath, tuple[str, ...]] | None:
    """Return the path of a selector and the words after each `..`; None for another text."""
    head, *words = text.split("..")
    parts, end = parse_path(head)
    path = tuple(step for step, *_ in parts)
    are_words = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", word) for word in words)
    if end != len(head) or path[:1] != ("model",) or not are_words:
        return None
    return path, tuple(words)


def select(root: Node, text: str, rules: Schema) -> list[Match]:
    """Return the matches of a selector, in the order of the recipe; none for another text."""
    if (selector := parse_selector(text)) is None:
        return []
    everything = [(match, _canonical_path(match.path, rules)) for match in walk_model(root, rules)]
    path, words = selector
    if not words:
        *outer, last = path
        # `encoder[0].rnn`
        has_name = bool(outer) and isinstance(outer[-1], int) and isinstance(last, str)
        canonical = _canonical_path(tuple(outer) if has_name else path, rules)
        matches = [match for match, place in everything if place == canonical]
        if has_name:
            matches = [match for match in matches if block_name(match.node) == last]
        return matches
    blocks = [pair for pair in everything if not pair[0].is_stack]
    prefixes = {_canonical_path(path, rules)}
    for word in words:
        below = [pair for pair in blocks if _is_below(pair[1], prefixes)]
        selected = [pair for pair in below if block_name(pair[0].node) == word]
        if not selected:
            selected = [pair for pair in below if alias_of(pair[0].node) == word]
        prefixes = {place for _, place in selected}
    return [match for match, _ in selected]


def _is_below(path: KeyPath, prefixes: Collection[KeyPath]) -> bool:
    return any(path[:end] in prefixes for end in range(len(path)))


def _canonical_path(path: KeyPath, rules: Schema) -> KeyPath:
    """Return a path without optional names of first settings: `residual[0]`, not `.stack[0]`."""
    steps = enumerate(path)
    return tuple(step for index, step in steps if step != first_setting(rules, path[:index]))


def walk_model(root: Node, rules: Schema) -> Iterator[Match]:
    """Yield every stack and every block of a model, the outer before the inner."""
    return _walk(root, (), {"properties": {"model": rules["$defs"]["model"]}}, rules)


def inserted_blocks(node: Node, rules: Schema) -> list[Node]:
    """Return the blocks of a replacement, a block or a stack, with those inside of them."""
    matches = _walk(as_stack(node), (), {"items": BLOCK}, rules)
    return [match.node for match in matches if not match.is_stack]


def as_stack(node: Node) -> Node:
    """Return a stack, or a block as a stack of it alone."""
    return node if isinstance(node.value, list) else replace(node, value=[replace(node, key=None)])


def _walk(node: Node, path: KeyPath, schema: Schema, rules: Schema) -> Iterator[Match]:
    """Yield the stacks and blocks at a node and below it, by the schema of the node."""
    if is_stack(schema) and isinstance(node.value, list):
        yield Match(path, node, is_stack=True)
        for index, item in enumerate(node.value):
            yield Match((*path, index), item, is_stack=False)
            if isinstance(item.value, dict) and (word := block_name(item)):
                inner = rules["$defs"].get(f"block.{word}", {})
                yield from _walk(item.value[word], (*path, index, word), inner, rules)
    elif "x-first" in schema and not isinstance(node.value, dict):
        # the first setting, without its name
        yield from _walk(node, path, schema["properties"][schema["x-first"]], rules)
    else:
        others = schema.get("items") or schema.get("additionalProperties") or {}
        for step, child in items_of(node.value):
            inner = schema.get("properties", {}).get(step, others)
            yield from _walk(child, (*path, step), inner, rules)


def block_name(item: Node) -> str:
    """Return the name of a block, or "" for another node."""
    if isinstance(item.value, dict):
        return next(iter(item.value), "")
    return item.value if isinstance(item.value, str) else ""


def alias_of(item: Node) -> str:
    """Return the name that `as` gives a block, or ""."""
    alias = block_settings(item).get("as")
    return alias.value if alias is not None and isinstance(alias.value, str) else ""


def block_settings(item: Node) -> dict[str, Node]:
    """Return the settings of a block that are written with their names."""
    settings = next(iter(item.value.values()), None) if isinstance(item.value, dict) else None
    return settings.value if settings is not None and isinstance(settings.value, dict) else {}


def find_overlap(matches: Sequence[Match], others: Sequence[Match]) -> KeyPath | None:
    """Return the inner path where two replacements overlap, or None."""
    for first, second in product(matches, others):
        outer, inner = sorted((first.path, second.path), key=len)
        if inner[: len(outer)] == outer:
            return inner
    return None


def no_match_fault(root: Node, axis: Axis, rules: Schema) -> Fault:
    """Return the fault of an axis that replaces nothing, with what it could replace."""
    text, everything = axis.target.value, list(walk_model(root, rules))
    blocks = [match.node for match in everything if not match.is_stack]
    words = sorted({*map(block_name, blocks), *map(alias_of, blocks)} - {""})
    head, *rest = text.split("..")
    paths = ["model", *(format_path(match.path) for match in everything)]
    close = [closest_word(head, paths), *(closest_word(word, words) for word in rest)]
    meant = "..".join(close)
    message = f"`{text}` matches nothing in the base"
    if select(root, meant, rules):
        message, hint = f"{message}; did you mean `{meant}`?", f"write `{meant}`"
    else:
        stacks = [format_path(match.path) for match in everything if match.is_stack]
        hint = f"the stacks are {', '.join(stacks)}; the blocks and names {', '.join(words)}"
    return fault_at(axis.target.mark, "selector", f"axes.{axis.name}.replace", message, hint)
