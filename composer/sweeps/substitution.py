"""The recipe of a point: axes replace blocks and set values, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from composer.errors import KeyPath, RecipeError, error_at, fault_at, format_path
from composer.recipe import schema_generator
from composer.recipe.extends_and_overrides import apply_override, apply_overrides, merge, parse_path
from composer.recipe.interpolation import substitute
from composer.recipe.schema_reader import Schema
from composer.recipe.yaml_reader import Node
from composer.sweeps.selectors import (
    Match,
    as_stack,
    block_name,
    block_settings,
    find_overlap,
    no_match_fault,
    select,
)
from composer.sweeps.sweep import Axis, Sweep, Value


def replace_blocks(
    root: Node, replacements: Sequence[tuple[Sequence[Match], Node]], rules: Schema
) -> Node:
    """Return the recipe with all matches replaced at once by a block or a list of blocks.

    `identity` removes a block. All paths are those of the given recipe.
    """
    inserted: dict[KeyPath, Node] = {}
    for matches, node in replacements:
        for match in matches:
            if node.value == "identity" and not match.is_stack:
                inserted[_outermost_residual(root, match.path)] = replace(node, value=[], key=None)
            else:
                inserted[match.path] = node
    return _Rewriter(inserted, rules).walk(root, ())


def _outermost_residual(root: Node, path: KeyPath) -> KeyPath:
    """Return the path of the outermost `residual` around a block: x + f(x) without f is x."""
    for index in reversed(range(2, len(path) - 1)):
        # the block in whose stack this one is
        if isinstance(path[index], int) and isinstance(path[index + 1], str):
            outer = path[: index + 1]
            if block_name(reduce(lambda node, step: node.value[step], outer, root)) != "residual":
                break
            path = outer
    return path


class _Rewriter(NamedTuple):
    """Copies a tree, with other blocks at some paths."""

    inserted: Mapping[KeyPath, Node]
    rules: Schema

    def walk(self, node: Node, path: KeyPath) -> Node:
        if path in self.inserted:  # a stack; blocks are replaced in their lists
            return as_stack(self.inserted[path])
        if isinstance(node.value, dict):
            items = {key: self.walk(child, (*path, key)) for key, child in node.value.items()}
            return replace(node, value=items)
        if not isinstance(node.value, list):
            return node
        blocks: list[Node] = []
        for index, child in enumerate(node.value):
            blocks += self.item(child, (*path, index))
        if not blocks:  # what has removed the last one is at fault
            removing = (new for place, new in self.inserted.items() if place[:-1] == path)
            return next(removing, node)
        return replace(node, value=blocks)

    def item(self, node: Node, path: KeyPath) -> list[Node]:
        if path not in self.inserted or isinstance(node.value, list):
            return [self.walk(node, path)]
        blocks: list[Node] = as_stack(self.inserted[path]).value
        alias = block_settings(node).get("as")
        if alias is None or not blocks:
            return blocks
        return [*blocks[:-1], self.with_alias(blocks[-1], alias)]

    def with_alias(self, block: Node, alias: Node) -> Node:
        """Return a replacement with the `as:` name of the replaced block, unless it has one."""
        word = block_name(block)
        if not word or "as" in block_settings(block):
            return block
        is_bare = not isinstance(block.value, dict)
        settings = replace(block, value=None, key=block.mark) if is_bare else block.value[word]
        named = settings.value
        if named is not None and not isinstance(named, dict):
            first = self.rules["$defs"].get(f"block.{word}", {}).get("x-first")
            if first is None:
                return block
            named = {first: replace(settings, key=settings.place)}
        settings = replace(settings, value={**(named or {}), "as": alias})
        return replace(block, value={word: settings}, text="")


def apply_point(sweep: Sweep, point: Mapping[str, Value], size: int | None = None) -> Node:
    """Return the resolved mapping of a point's recipe, with the sweep's overrides.

    The order is: recipes that extend the base, `set`, all replacements at once, the axes that set
    values, the `size` that `match` chooses, overrides, and variables last; so replacements may use
    the base's variables, which an axis may set.

    Raises RecipeError if an axis replaces nothing, two overlap, or a path does not exist.
    """
    rules = schema_generator.load()
    values = [(axis, point[axis.name]) for axis in sweep.axes if axis.name in point]
    extending = [axis.choice(value) for axis, value in values if axis.kind == "extend"]
    root = reduce(merge, extending, sweep.base_root)
    settings = sweep.root.value["set"].value if "set" in sweep.root.value else {}
    for key, node in settings.items():
        is_quoted = node.place.text[node.place.column - 1 :].startswith(('"', "'"))
        target = Node(key, node.place, quoted=is_quoted)
        root = _set_value(root, target, node, f"set.{key}", rules)
    root = replace_blocks(root, _replacements(root, values, rules), rules)
    setting: dict[KeyPath, Axis] = {}
    for axis, value in values:
        if axis.kind == "set":
            path = key_path(axis.target.value)
            if setting.setdefault(path, axis) is not axis:
                raise _overlap_error(axis, setting[path], path)
            root = _set_value(root, axis.target, axis.choice(value), f"axes.{axis.name}.set", rules)
    if sweep.match is not None and size is not None:
        by = sweep.match.by
        root = _set_value(root, by, Node(size, by.mark, text=str(size)), "match.by", rules)
    return substitute(apply_overrides(root, sweep.overrides, rules))


def key_path(text: str) -> KeyPath:
    """Return the path at the start of a text: `model.encoder[0]` of `model.encoder[0]..rnn`."""
    return tuple(step for step, *_ in parse_path(text.partition("..")[0])[0])


def _overlap_error(axis: Axis, other: Axis, path: KeyPath) -> RecipeError:
    message = f"`{axis.name}` and `{other.name}` both {axis.kind} `{format_path(path)}`"
    hint = "make one axis of them, or let a third one choose between them, by `when` at both"
    return error_at(axis.target.mark, "overlap", f"axes.{axis.name}.{axis.kind}", message, hint)


def _set_value(root: Node, target: Node, value: Node, path: str, rules: Schema) -> Node:
    mark = target.mark._replace(
        column=target.mark.column + target.quoted, length=max(1, len(target.value))
    )
    try:
        return apply_override(root, target.value, mark, value, rules)
    except RecipeError as error:
        faults = []
        for fault in error.faults:
            if not fault.path:
                fault = fault_at(mark, fault.code, path, fault.message, fault.hint)
            faults.append(fault)
        raise RecipeError(faults) from None


def _replacements(
    root: Node, values: Sequence[tuple[Axis, Value]], rules: Schema
) -> list[tuple[list[Match], Node]]:
    replacing: list[tuple[Axis, list[Match]]] = []
    nodes = []
    for axis, value in values:
        if axis.kind != "replace":
            continue
        matches = select(root, axis.target.value, rules)
        if not matches:
            raise RecipeError([no_match_fault(root, axis, rules)])
        for other, others in replacing:
            both = find_overlap(matches, others)
            if both is not None:
                raise _overlap_error(axis, other, both)
        replacing.append((axis, matches))
        nodes.append((matches, axis.choice(value)))
    return nodes
