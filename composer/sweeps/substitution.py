"""Blocks and stacks of a recipe by path, by kind or by name, and others in their place.

A selector is a path, `model.decoder` or `model.encoder[1].repeat.stack[0]`, and after it any number of `..WORD`: every
block of the kind WORD below or, where no block below is of that kind, every block that is called so by `as: WORD`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from composer.errors import Fault, RecipeError, did_you_mean, format_path
from composer.recipe import schema
from composer.recipe.inheritance import merge
from composer.recipe.interpolation import substitute
from composer.recipe.json_schema import is_stack
from composer.recipe.node import Node, fault_at
from composer.recipe.overrides import FirstSetting, apply_override, apply_overrides, parse_path
from composer.recipe.recipe import first_setting
from composer.sweeps.axes import Axis, Sweep, Value

Steps = tuple[str | int, ...]
Rules = Mapping[str, Any]

IDENTITY = "identity"


class Selector(NamedTuple):
    """A path, and the words after each `..`."""

    path: Steps
    words: tuple[str, ...]


class Match(NamedTuple):
    """A block or a stack at a path of the recipe as it is written."""

    path: Steps
    node: Node
    is_stack: bool


def parse_selector(text: str) -> Selector | None:
    """What a text selects; None where it is no selector."""
    head, *words = text.split("..")
    parts, end = parse_path(head)
    path = tuple(part.name for part in parts)
    named = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", word) for word in words)
    if end < len(head) or path[:1] != ("model",) or not named:
        return None
    return Selector(path, tuple(words))


# ------------------------------------------------------------------------------------------- finding


def select(root: Node, wanted: Selector, rules: Rules) -> list[Match]:
    """Everything that a selector selects, in the order of the recipe."""
    if not wanted.words:
        return [each for each in walk_model(root, rules) if _is_at(each, wanted.path, rules)]
    within = [wanted.path]
    found: list[Match] = []
    for word in wanted.words:
        below = [each for each in walk_model(root, rules) if any(_is_below(each.path, path, rules) for path in within)]
        blocks = [each for each in below if not each.is_stack]
        found = [each for each in blocks if block_name(each.node) == word]
        found = found or [each for each in blocks if alias_of(each.node) == word]
        within = [each.path for each in found]
    return found


def _is_at(each: Match, path: Steps, rules: Rules) -> bool:
    """Whether a path leads to it; a block's may end with its word, a stack's leave out its setting's name or not."""
    is_block_word = len(path) > 1 and isinstance(path[-1], str) and isinstance(path[-2], int)
    if each.is_stack:
        return not is_block_word and _canonical_path(each.path, rules) == _canonical_path(path, rules)
    whole = path[:-1] if is_block_word and path[-1] == block_name(each.node) else path
    return isinstance(whole[-1], int) and _canonical_path(whole, rules) == _canonical_path(each.path, rules)


def _is_below(inner: Steps, outer: Steps, rules: Rules) -> bool:
    inner, outer = _canonical_path(inner, rules), _canonical_path(outer, rules)
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _canonical_path(path: Steps, rules: Rules) -> Steps:
    """A path without the names of first settings, which may be left out: `residual.stack[0]` is `residual[0]`."""
    kept: list[str | int] = []
    for index, step in enumerate(path):
        before = path[index - 1] if index else None
        first = rules["$defs"].get(f"block.{before}", {}).get("x-first")
        is_setting = index > 1 and isinstance(path[index - 2], int) and step == first
        kept.extend([] if is_setting else [step])
    return tuple(kept)


def walk_model(root: Node, rules: Rules) -> Iterator[Match]:
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


def _stack(node: Node, path: Steps, rules: Rules) -> Iterator[Match]:
    if not isinstance(node.value, list):
        return
    yield Match(path, node, is_stack=True)
    for index, item in enumerate(node.value):
        yield Match((*path, index), item, is_stack=False)
        yield from _stacks_of_block(item, (*path, index), rules)


def _stacks_of_block(item: Node, path: Steps, rules: Rules) -> Iterator[Match]:
    """The stacks of one block."""
    word = block_name(item)
    entry = rules["$defs"].get(f"block.{word}")
    if entry is None or not isinstance(item.value, dict):
        return
    settings = item.value[word]
    if isinstance(settings.value, dict):
        for key, node in settings.value.items():
            yield from _stacks_of_setting(node, (*path, word, key), entry["properties"].get(key, {}), rules)
    elif entry.get("x-first"):
        yield from _stacks_of_setting(settings, (*path, word), entry["properties"][entry["x-first"]], rules)


def _stacks_of_setting(node: Node, path: Steps, schema: Rules, rules: Rules) -> Iterator[Match]:
    """The stacks in one setting: itself, or its branches."""
    items = schema.get("items", {})
    if is_stack(schema):
        yield from _stack(node, path, rules)
    elif is_stack(items):
        inner = node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
        for key, each in inner if isinstance(node.value, (dict, list)) else ():
            yield from _stack(each, (*path, key), rules)


def block_name(item: Node) -> str:
    """A block's word; "" where it is no block."""
    if isinstance(item.value, dict):
        return next(iter(item.value), "")
    return item.value if isinstance(item.value, str) else ""


def alias_of(item: Node) -> str:
    """What a block is called by `as`; "" where it is not."""
    named = _alias_node(item)
    return named.value if named is not None and isinstance(named.value, str) else ""


def _alias_node(item: Node) -> Node | None:
    settings = next(iter(item.value.values()), None) if isinstance(item.value, dict) else None
    return settings.value.get("as") if settings is not None and isinstance(settings.value, dict) else None


# ------------------------------------------------------------------------------------------- replacing


def find_overlap(one: Sequence[Match], other: Sequence[Match]) -> Steps | None:
    """Where two replacements meet: the path of the inner one."""
    for first in one:
        for second in other:
            shared = min(len(first.path), len(second.path))
            if first.path[:shared] == second.path[:shared]:
                return max(first.path, second.path, key=len)
    return None


class Replacement(NamedTuple):
    """What is put in place of everything that was found: a block, a list of them, or `identity`, nothing."""

    found: Sequence[Match]
    put: Node


def replace_blocks(root: Node, changes: Sequence[Replacement], rules: Rules) -> Node:
    """The recipe with all changes at once: every path is one of the recipe as it was before."""
    put, gone = {}, set()
    for change in changes:
        for each in change.found:
            if change.put.value == IDENTITY and not each.is_stack:
                gone.add(_outermost_residual(root, each))
            else:
                put[each.path] = change.put
    return _Rewriter(put, gone, rules).walk(root, ())


def _outermost_residual(root: Node, each: Match) -> Steps:
    """What goes with a block that goes: every `residual` around it, for x + f(x) without f is x."""
    path = each.path
    while (outer := _enclosing_block(path)) is not None and block_name(_at(root, outer)) == "residual":
        path = outer
    return path


def _enclosing_block(path: Steps) -> Steps | None:
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
        named = _alias_node(node)
        return blocks if named is None or not blocks else [*blocks[:-1], self.called(blocks[-1], named)]

    def called(self, block: Node, name: Node) -> Node:
        """A block that others read by the name of the one whose place it takes, unless it brings its own."""
        word = block_name(block)
        if not word or _alias_node(block) is not None:
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


def format_match(found: Match) -> str:
    """A place as a reader writes it."""
    return format_path(found.path)


_Values = Sequence[tuple[Axis, Value]]


def apply_point(sweep: Sweep, point: Mapping[str, Value], more: Sequence[str] = ()) -> Node:
    """The resolved mapping of a point, `key=value` settings laid over it. Raises RecipeError."""
    rules = schema.load()
    first: FirstSetting = lambda place: first_setting(rules, place)  # noqa: E731
    chosen = [(axis, point[axis.name]) for axis in sweep.axes if axis.name in point]
    root = apply_settings(sweep.root, apply_extensions(sweep.base_root, chosen), first)
    root = replace_blocks(root, _replacements(root, chosen, rules), rules)
    for axis, value in chosen:
        if axis.kind == "set" and axis.target is not None:
            root = _set_value(root, axis.target, axis.choice(value), f"axes.{axis.name}.set", first)
    return substitute(apply_overrides(root, [*sweep.overrides, *more], first))


def apply_extensions(base: Node, chosen: _Values) -> Node:
    """The base with the recipes laid over it that the point's axes name."""
    for axis, value in chosen:
        if axis.kind == "extend":
            base = merge(base, axis.choice(value))
    return base


def apply_settings(sweep: Node, root: Node, first: FirstSetting) -> Node:
    """The base with what is `set` at every point."""
    written = sweep.value.get("set")
    for key, value in written.value.items() if written is not None and written.value else ():
        target = Node(key, value.place, quoted=value.place.text[value.place.column - 1 :][:1] in ('"', "'"))
        root = _set_value(root, target, value, f"set.{key}", first)
    return root


def _set_value(root: Node, target: Node, value: Node, path: str, first: FirstSetting) -> Node:
    """One value at the path that `target` says."""
    mark = target.mark._replace(column=target.mark.column + target.quoted, length=max(1, len(target.value)))
    try:
        return apply_override(root, target.value, mark, value, first)
    except RecipeError as error:
        raise RecipeError(
            [each if each.path else fault_at(mark, each.code, path, each.message, each.hint) for each in error.faults]
        ) from None


def _replacements(root: Node, chosen: _Values, rules: dict[str, Any]) -> list[Replacement]:
    """What the axes of a point replace. Raises RecipeError where one replaces nothing, or two replace the same."""
    replacing = [(axis, value) for axis, value in chosen if axis.kind == "replace"]
    found = {axis.name: find_matches(root, axis, rules) for axis, _ in replacing}
    for index, (axis, _) in enumerate(replacing):
        if not found[axis.name]:
            raise RecipeError([no_match_fault(root, axis, rules)])
        for other, _ in replacing[:index]:
            both = find_overlap(found[axis.name], found[other.name])
            if both is not None:
                raise RecipeError([_overlap_fault(axis, other, both)])
    return [Replacement(found[axis.name], axis.choice(value)) for axis, value in replacing]


def find_matches(root: Node, axis: Axis, rules: dict[str, Any]) -> list[Match]:
    """What an axis replaces in a recipe."""
    assert axis.target is not None
    wanted = parse_selector(axis.target.value)
    return [] if wanted is None else select(root, wanted, rules)


def no_match_fault(root: Node, axis: Axis, rules: dict[str, Any]) -> Fault:
    """The fault of an axis that replaces nothing."""
    assert axis.target is not None
    here = list(walk_model(root, rules))
    *_, word = axis.target.value.split("..")
    if word == axis.target.value:
        paths = [format_match(each) for each in here]
        close, hint = (
            did_you_mean(word, paths),
            "the stacks are " + ", ".join(format_match(each) for each in here if each.is_stack),
        )
    else:
        names = sorted({block_name(each.node) for each in here if not each.is_stack})
        called = sorted({alias_of(each.node) for each in here if not each.is_stack} - {""})
        close, hint = did_you_mean(word, [*names, *called]), f"the model has the blocks {', '.join(names)}"
        hint += f"; called by `as`: {', '.join(called)}" if called else ""
    message = f"`{axis.target.value}` matches nothing in the base{close}"
    return fault_at(axis.target.mark, "selector", f"axes.{axis.name}.replace", message, hint)


def _overlap_fault(axis: Axis, other: Axis, both: tuple[str | int, ...]) -> Fault:
    assert axis.target is not None
    where = format_match(Match(both, axis.target, is_stack=False))
    message = f"`{axis.name}` and `{other.name}` both replace `{where}`"
    hint = f"make one axis of them, or let `when` say at which labels of `{other.name}` this one is active"
    return fault_at(axis.target.mark, "overlap", f"axes.{axis.name}.replace", message, hint)
