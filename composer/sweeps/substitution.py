"""The recipe of a point: selectors for blocks and stacks, their replacement, and the order in which
axes are applied.

A selector is a path, `model.decoder` or `model.encoder[1].repeat.stack[0]`, and after it any number
of `..WORD`: every block of the kind WORD below or, if no block below is of that kind, every block
named so by `as: WORD`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import islice, product
from typing import NamedTuple

from composer.errors import Fault, KeyPath, RecipeError, error_at, fault_at, format_path
from composer.recipe import schema_generator
from composer.recipe.extends_and_overrides import apply_override, apply_overrides, merge, parse_path
from composer.recipe.interpolation import substitute
from composer.recipe.schema_reader import Schema, first_setting, is_stack
from composer.recipe.yaml_reader import Node, items_of, reachable
from composer.suggest import closest_word
from composer.sweeps.progress import with_progress
from composer.sweeps.sweep import (
    Axis,
    Point,
    SearchSpace,
    Value,
    combinations,
    dependencies,
    same_value,
)

MAX_TRIED = 256
"""Combinations of the axes that a `when` depends on in which it is looked for one where it holds.
"""


class Match(NamedTuple):
    """A block or a stack, with its path in the recipe as written."""

    path: KeyPath
    node: Node
    is_stack: bool


def parse_selector(text: str) -> tuple[KeyPath, tuple[str, ...]] | None:
    """Return the path of a selector and the words after each `..`, or None if the text is no
    selector.
    """
    head, *words = text.split("..")
    parts, end = parse_path(head)
    path = tuple(step for step, *_ in parts)
    are_words = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", word) for word in words)
    return (
        (path, tuple(words)) if end == len(head) and path[:1] == ("model",) and are_words else None
    )


def select(root: Node, text: str, rules: Schema) -> list[Match]:
    """Return everything that a selector selects, in the order of the recipe; nothing by a text that
    is none.
    """
    if (selector := parse_selector(text)) is None:
        return []
    everything = [(match, _canonical_path(match.path, rules)) for match in walk_model(root, rules)]
    path, words = selector
    if not words:
        *outer, last = path
        # `encoder[0].rnn`
        has_name = bool(outer) and isinstance(outer[-1], int) and isinstance(last, str)
        canonical = _canonical_path(tuple(outer) if has_name else path, rules)
        matches = [match for match, other in everything if other == canonical]
        return [match for match in matches if not has_name or block_name(match.node) == last]
    blocks = [pair for pair in everything if not pair[0].is_stack]
    prefixes = {_canonical_path(path, rules)}
    for word in words:
        below = [
            (match, inner)
            for match, inner in blocks
            if any(inner[:end] in prefixes for end in range(len(inner)))
        ]
        named = [pair for pair in below if block_name(pair[0].node) == word]
        named = named or [pair for pair in below if alias_of(pair[0].node) == word]
        prefixes = {inner for _, inner in named}
    return [match for match, _ in named]


def _canonical_path(path: KeyPath, rules: Schema) -> KeyPath:
    """Return a path without the names of first settings, which are optional: `residual.stack[0]` is
    `residual[0]`.
    """
    return tuple(
        step for index, step in enumerate(path) if step != first_setting(rules, path[:index])
    )


def walk_model(root: Node, rules: Schema) -> Iterator[Match]:
    """Yield every stack and every block of a model, the outer before the inner."""
    return _walk(root, (), {"properties": {"model": rules["$defs"]["model"]}}, rules)


def _walk(node: Node, path: KeyPath, schema: Schema, rules: Schema) -> Iterator[Match]:
    """Yield the stacks and blocks at a node and below it, by the schema of the node."""
    if is_stack(schema) and isinstance(node.value, list):
        yield Match(path, node, is_stack=True)
        for index, item in enumerate(node.value):
            yield Match((*path, index), item, is_stack=False)
            if isinstance(item.value, dict) and (word := block_name(item)):
                yield from _walk(
                    item.value[word],
                    (*path, index, word),
                    rules["$defs"].get(f"block.{word}", {}),
                    rules,
                )
    elif "x-first" in schema and not isinstance(
        node.value, dict
    ):  # the first setting, without its name
        yield from _walk(node, path, schema["properties"][schema["x-first"]], rules)
    else:
        others = schema.get("items") or schema.get("additionalProperties") or {}
        for step, child in items_of(node.value):
            yield from _walk(
                child, (*path, step), schema.get("properties", {}).get(step, others), rules
            )


def block_name(item: Node) -> str:
    """Return the name of a block, or "" for what is no block."""
    if isinstance(item.value, dict):
        return next(iter(item.value), "")
    return item.value if isinstance(item.value, str) else ""


def alias_of(item: Node) -> str:
    """Return the name that `as` gives a block, or ""."""
    alias = _alias_node(item)
    return alias.value if alias is not None and isinstance(alias.value, str) else ""


def _alias_node(item: Node) -> Node | None:
    settings = next(iter(item.value.values()), None) if isinstance(item.value, dict) else None
    return (
        settings.value.get("as")
        if settings is not None and isinstance(settings.value, dict)
        else None
    )


def find_overlap(one: Sequence[Match], other: Sequence[Match]) -> KeyPath | None:
    """Return the inner path where two replacements meet, or None."""
    for first, second in product(one, other):
        if all(a == b for a, b in zip(first.path, second.path, strict=False)):
            return max(first.path, second.path, key=len)
    return None


def replace_blocks(
    root: Node, replacements: Sequence[tuple[Sequence[Match], Node]], rules: Schema
) -> Node:
    """Return the recipe with all matches replaced at once: by a block, a list of blocks, or
    `identity`: by nothing.

    Each path is one of the recipe as it was before.
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
    """Return the path of what is removed with a block: every `residual` around it, since x + f(x)
    without f is x.
    """
    indices = [index for index, step in enumerate(path[:-1]) if isinstance(step, int) and index > 1]
    for index in reversed(indices):
        if isinstance(path[index + 1], str):  # the block in whose stack this one is
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
            return _as_stack(self.inserted[path])
        if isinstance(node.value, dict):
            return replace(
                node,
                value={key: self.walk(child, (*path, key)) for key, child in node.value.items()},
            )
        if isinstance(node.value, list):
            items = [self.item(child, (*path, index)) for index, child in enumerate(node.value)]
            blocks = [child for inner in items for child in inner]
            # what leaves no block is at fault, not the list that had one
            removing = [
                own
                for place, own in self.inserted.items()
                if place[:-1] == path and own.value == []
            ]
            return removing[0] if removing and not blocks else replace(node, value=blocks)
        return node

    def item(self, node: Node, path: KeyPath) -> list[Node]:
        if path not in self.inserted or isinstance(node.value, list):
            return [self.walk(node, path)]
        blocks: list[Node] = _as_stack(self.inserted[path]).value
        alias = _alias_node(node)
        return (
            blocks
            if alias is None or not blocks
            else [*blocks[:-1], self.with_alias(blocks[-1], alias)]
        )

    def with_alias(self, block: Node, alias: Node) -> Node:
        """Return a replacement with the `as:` name of the block it replaces, unless it has one of
        its own.
        """
        word = block_name(block)
        if not word or _alias_node(block) is not None:
            return block
        settings = (
            block.value[word]
            if isinstance(block.value, dict)
            else replace(block, value={}, key=block.mark)
        )
        if not isinstance(settings.value, dict):
            first = self.rules["$defs"].get(f"block.{word}", {}).get("x-first")
            if settings.value is not None and first is None:
                return block
            inner = {} if settings.value is None else {first: replace(settings, key=settings.place)}
            settings = replace(settings, value=inner)
        return replace(
            block, value={word: replace(settings, value={**settings.value, "as": alias})}, text=""
        )


def _as_stack(node: Node) -> Node:
    return node if isinstance(node.value, list) else replace(node, value=[replace(node, key=None)])


def apply_point(space: SearchSpace, point: Mapping[str, Value]) -> Node:
    """Return the resolved mapping of a point's recipe, with the sweep's overrides on top.

    The order is: recipes that extend the base, `set`, all replacements at once, the axes that set
    values, overrides, and variables last; so replacements may use the base's variables, which an
    axis may set.

    Raises RecipeError if an axis replaces nothing, two change the same, or a path does not exist.
    """
    rules = schema_generator.load()
    values = [(axis, point[axis.name]) for axis in space.axes if axis.name in point]
    root = apply_settings(space.root, apply_extensions(space.base_root, values), rules)
    root = replace_blocks(root, _replacements(root, values, rules), rules)
    setting: dict[KeyPath, Axis] = {}
    for axis, value in values:
        if axis.kind == "set":
            path = key_path(axis.target.value)
            if setting.setdefault(path, axis) is not axis:
                raise _overlap_error(axis, setting[path], path)
            root = _set_value(root, axis.target, axis.choice(value), f"axes.{axis.name}.set", rules)
    return substitute(apply_overrides(root, space.overrides, rules))


def key_path(text: str) -> KeyPath:
    """Return the path at which a text begins: `model.encoder[0]..rnn` is below `model.encoder[0]`."""
    return tuple(step for step, *_ in parse_path(text.partition("..")[0])[0])


def _overlap_error(axis: Axis, other: Axis, path: KeyPath) -> RecipeError:
    message = f"`{axis.name}` and `{other.name}` both {axis.kind} `{format_path(path)}`"
    hint = "make one axis of them, or let a third one choose between them, by `when` at both"
    return error_at(axis.target.mark, "overlap", f"axes.{axis.name}.{axis.kind}", message, hint)


def apply_extensions(base: Node, values: Sequence[tuple[Axis, Value]]) -> Node:
    """Return the base, extended by the recipes that axes name."""
    return reduce(
        merge, (axis.choice(value) for axis, value in values if axis.kind == "extend"), base
    )


def apply_settings(sweep: Node, root: Node, rules: Schema) -> Node:
    """Return a recipe with what the sweep's `set` changes at every point."""
    settings = sweep.value.get("set")
    for key, value in settings.value.items() if settings is not None and settings.value else ():
        target = Node(
            key, value.place, quoted=value.place.text[value.place.column - 1 :][:1] in ('"', "'")
        )
        root = _set_value(root, target, value, f"set.{key}", rules)
    return root


def _set_value(root: Node, target: Node, value: Node, path: str, rules: Schema) -> Node:
    mark = target.mark._replace(
        column=target.mark.column + target.quoted, length=max(1, len(target.value))
    )
    try:
        return apply_override(root, target.value, mark, value, rules)
    except RecipeError as error:
        faults = (
            old if old.path else fault_at(mark, old.code, path, old.message, old.hint)
            for old in error.faults
        )
        raise RecipeError(faults) from None


def _replacements(
    root: Node, values: Sequence[tuple[Axis, Value]], rules: Schema
) -> list[tuple[list[Match], Node]]:
    replacing = [(axis, value) for axis, value in values if axis.kind == "replace"]
    matches = {axis.name: select(root, axis.target.value, rules) for axis, _ in replacing}
    for index, (axis, _) in enumerate(replacing):
        if not matches[axis.name]:
            raise RecipeError([no_match_fault(root, axis, rules)])
        for other, _ in replacing[:index]:
            both = find_overlap(matches[axis.name], matches[other.name])
            if both is not None:
                raise _overlap_error(axis, other, both)
    return [(matches[axis.name], axis.choice(value)) for axis, value in replacing]


def no_match_fault(root: Node, axis: Axis, rules: Schema) -> Fault:
    """Return the fault of an axis that replaces nothing, with what it could select."""
    text, everything = axis.target.value, list(walk_model(root, rules))
    head, *words = text.split("..")
    blocks = [match.node for match in everything if not match.is_stack]
    names, aliases = sorted({*map(block_name, blocks)}), sorted({*map(alias_of, blocks)} - {""})
    close = [closest_word(word, [*names, *aliases]) for word in words]
    close = [
        closest_word(head, ["model", *(format_path(match.path) for match in everything)]),
        *close,
    ]
    message = f"`{text}` matches nothing in the base"
    if select(root, "..".join(close), rules):
        part, meant = next(
            pair for pair in zip((head, *words), close, strict=True) if pair[0] != pair[1]
        )
        message, hint = (
            f"{message}; instead of `{part}` did you mean `{meant}`?",
            f"write `{'..'.join(close)}`",
        )
    elif words:
        hint = f"the model has the blocks {', '.join(names)}"
        hint += f"; named by `as`: {', '.join(aliases)}" if aliases else ""
    else:
        hint = "the stacks are " + ", ".join(
            format_path(match.path) for match in everything if match.is_stack
        )
    return fault_at(axis.target.mark, "selector", f"axes.{axis.name}.replace", message, hint)


def value_faults(space: SearchSpace) -> set[Fault]:
    """Return what the recipe language has against the values and blocks of a sweep, before any
    point is planned.

    Each value is tried at two points, among the first values of the other axes and among their
    last. What is wrong at both is the value's fault; what is wrong at all points that were tried is
    the base's.
    """
    own: set[Fault] = set()
    everywhere: set[Fault] | None = None
    for axis in space.axes:
        tried = _dependency_points(space, axis)
        labels = with_progress(axis.labels or axis.ends, f"read values of `{axis.name}`")
        values = [_common_faults(space, axis, value, tried) for value in labels]
        active = [faults for faults in values if faults is not None]
        for faults in active:
            own |= {fault for fault in faults if fault.file == str(space.file)}
            everywhere = faults if everywhere is None else everywhere & faults
        has_ranges = any(other.labels is None for other in space.axes if other.name in tried[0])
        if axis.when is not None and not active and len(tried) < MAX_TRIED and not has_ranges:
            mark, path = axis.node.value["when"].mark, f"axes.{axis.name}.when"
            hint = "write one that holds somewhere, or remove the axis"
            own.add(fault_at(mark, "condition", path, "this condition never holds", hint))
    return own | (everywhere or set())


def _common_faults(
    space: SearchSpace, axis: Axis, value: Value, tried: Sequence[Point]
) -> set[Fault] | None:
    """Return the faults of both probe points, changed as little as it takes for the axis to have
    that value.

    tried: Combinations of the axes on which this one depends. None if the axis has the value at
    none of them.
    """
    # jsonschema takes a tenth of a second to import
    from composer.recipe.validation import schema_faults

    faults: list[set[Fault]] = []
    for end in (0, -1):
        others = {other.name: other.ends[end] for other in space.axes}
        points = (
            space.complete(others | combination | {axis.name: value}) for combination in tried
        )
        point = next(
            (one for one in points if axis.name in one and same_value(one[axis.name], value)), None
        )
        if point is not None:
            try:
                faults.append(
                    set(schema_faults(apply_point(space, point), schema_generator.load()))
                )
            except RecipeError as error:
                faults.append(set(error.faults))
    return set.intersection(*faults) if faults else None


def _dependency_points(space: SearchSpace, axis: Axis) -> list[Point]:
    """Return the first combinations of the axes on which one depends, directly and through others;
    of ranges, ends.
    """
    names = reachable([axis], {other.name: other for other in space.axes}, dependencies)
    values = {other.name: other.labels or other.ends for other in space.axes if other.name in names}
    return list(islice(combinations(values), MAX_TRIED))


@lru_cache(maxsize=8)
def default_warnings(space: SearchSpace) -> tuple[Fault, ...]:
    """Return a warning of each replacement that `model.dropout` does not reach, but reaches another
    of the axis.
    """
    rules = schema_generator.load()
    try:
        root = apply_point(space, space.probe_points()[0])
    except RecipeError:
        return ()
    dropout = root.value["model"].value.get("dropout") if "model" in root.value else None
    if dropout is None or not dropout.value:
        return ()
    warnings = []
    for axis in space.axes:
        labels = (
            [*zip(axis.labels or (), axis.choices, strict=False)] if axis.kind == "replace" else []
        )
        without = [
            (label, node)
            for label, node in labels
            if _blocks_in(node, rules) and not _drops(node, rules)
        ]
        reached = [label for label, node in labels if _drops(node, rules)]
        for label, node in without if reached else ():
            message = (
                f"`model.dropout` reaches `{reached[0]}` and not `{label}`, which then differ in"
                " more than blocks"
            )
            hint = (
                f"put `- dropout` behind the blocks of `{label}`, or `dropout: 0` at those of"
                f" `{reached[0]}`"
            )
            path = f"axes.{axis.name}.with.{label}"
            warnings.append(fault_at(node.place, "default", path, message, hint).as_warning())
    return tuple(warnings)


def _drops(node: Node, rules: Schema) -> bool:
    """Return whether any of the blocks takes a dropout, its own or the model's."""
    return any(
        "dropout" in rules["$defs"][f"block.{name}"]["properties"] or name == "dropout"
        for name in _blocks_in(node, rules)
    )


def _blocks_in(node: Node, rules: Schema) -> set[str]:
    """Return the names of the blocks of a replacement, those in its stacks too; `identity` is none."""
    names = {block_name(node)} if not isinstance(node.value, list) else set[str]()
    names |= {name for _, child in items_of(node.value) for name in _blocks_in(child, rules)}
    return {name for name in names if f"block.{name}" in rules["$defs"]} - {"identity"}
