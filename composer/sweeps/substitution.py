"""The recipe of a point: select blocks and stacks, replace them, and apply axes in order.

A selector is a path, `model.decoder` or `model.encoder[1].repeat.stack[0]`, followed by any number
of `..WORD`: every block of the kind WORD below or, if there is none, every block with `as: WORD`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
"""Most combinations of axes that are searched for one where a `when` holds."""


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
    alias = _alias_node(item)
    return alias.value if alias is not None and isinstance(alias.value, str) else ""


def _alias_node(item: Node) -> Node | None:
    settings = next(iter(item.value.values()), None) if isinstance(item.value, dict) else None
    if settings is None or not isinstance(settings.value, dict):
        return None
    return settings.value.get("as")


def find_overlap(matches: Sequence[Match], others: Sequence[Match]) -> KeyPath | None:
    """Return the inner path where two replacements overlap, or None."""
    for first, second in product(matches, others):
        outer, inner = sorted((first.path, second.path), key=len)
        if inner[: len(outer)] == outer:
            return inner
    return None


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
            return _as_stack(self.inserted[path])
        if isinstance(node.value, dict):
            items = node.value.items()
            return replace(
                node, value={key: self.walk(child, (*path, key)) for key, child in items}
            )
        if isinstance(node.value, list):
            blocks: list[Node] = []
            for index, child in enumerate(node.value):
                blocks += self.item(child, (*path, index))
            if not blocks and (removing := self.removing(path)) is not None:
                return removing
            return replace(node, value=blocks)
        return node

    def removing(self, path: KeyPath) -> Node | None:
        """Return the first node that removes a block of a list, at fault if none is left."""
        for place, node in self.inserted.items():
            if place[:-1] == path and node.value == []:
                return node
        return None

    def item(self, node: Node, path: KeyPath) -> list[Node]:
        if path not in self.inserted or isinstance(node.value, list):
            return [self.walk(node, path)]
        blocks: list[Node] = _as_stack(self.inserted[path]).value
        alias = _alias_node(node)
        if alias is None or not blocks:
            return blocks
        return [*blocks[:-1], self.with_alias(blocks[-1], alias)]

    def with_alias(self, block: Node, alias: Node) -> Node:
        """Return a replacement with the `as:` name of the replaced block, unless it has one."""
        word = block_name(block)
        if not word or _alias_node(block) is not None:
            return block
        settings = replace(block, value={}, key=block.mark)
        if isinstance(block.value, dict):
            settings = block.value[word]
        if not isinstance(settings.value, dict):
            first = self.rules["$defs"].get(f"block.{word}", {}).get("x-first")
            if settings.value is not None and first is None:
                return block
            inner = {} if settings.value is None else {first: replace(settings, key=settings.place)}
            settings = replace(settings, value=inner)
        settings = replace(settings, value={**settings.value, "as": alias})
        return replace(block, value={word: settings}, text="")


def _as_stack(node: Node) -> Node:
    return node if isinstance(node.value, list) else replace(node, value=[replace(node, key=None)])


def apply_point(space: SearchSpace, point: Mapping[str, Value], size: int | None = None) -> Node:
    """Return the resolved mapping of a point's recipe, with the sweep's overrides.

    The order is: recipes that extend the base, `set`, all replacements at once, the axes that set
    values, the `size` that `match` chooses, overrides, and variables last; so replacements may use
    the base's variables, which an axis may set.

    Raises RecipeError if an axis replaces nothing, two overlap, or a path does not exist.
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
    if space.match is not None and size is not None:
        by = space.match.by
        root = _set_value(root, by, Node(size, by.mark, text=str(size)), "match.by", rules)
    return substitute(apply_overrides(root, space.overrides, rules))


def key_path(text: str) -> KeyPath:
    """Return the path at the start of a text: `model.encoder[0]` of `model.encoder[0]..rnn`."""
    return tuple(step for step, *_ in parse_path(text.partition("..")[0])[0])


def _overlap_error(axis: Axis, other: Axis, path: KeyPath) -> RecipeError:
    message = f"`{axis.name}` and `{other.name}` both {axis.kind} `{format_path(path)}`"
    hint = "make one axis of them, or let a third one choose between them, by `when` at both"
    return error_at(axis.target.mark, "overlap", f"axes.{axis.name}.{axis.kind}", message, hint)


def apply_extensions(base: Node, values: Sequence[tuple[Axis, Value]]) -> Node:
    """Return the base, extended by the recipes that axes name."""
    recipes = [axis.choice(value) for axis, value in values if axis.kind == "extend"]
    return reduce(merge, recipes, base)


def apply_settings(sweep: Node, root: Node, rules: Schema) -> Node:
    """Return a recipe with the sweep's `set`, which applies to every point."""
    settings = sweep.value.get("set")
    for key, value in settings.value.items() if settings is not None and settings.value else ():
        place = value.place
        is_quoted = place.text[place.column - 1 :].startswith(('"', "'"))
        target = Node(key, place, quoted=is_quoted)
        root = _set_value(root, target, value, f"set.{key}", rules)
    return root


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
    """Return the fault of an axis that replaces nothing, with the blocks that it could select."""
    text, everything = axis.target.value, list(walk_model(root, rules))
    head, *words = text.split("..")
    blocks = [match.node for match in everything if not match.is_stack]
    names, aliases = sorted({*map(block_name, blocks)}), sorted({*map(alias_of, blocks)} - {""})
    paths = [format_path(match.path) for match in everything]
    close = [closest_word(head, ["model", *paths])]
    close += [closest_word(word, [*names, *aliases]) for word in words]
    message = f"`{text}` matches nothing in the base"
    if select(root, "..".join(close), rules):
        pairs = zip((head, *words), close, strict=True)
        part, meant = next((part, meant) for part, meant in pairs if part != meant)
        message += f"; instead of `{part}` did you mean `{meant}`?"
        hint = f"write `{'..'.join(close)}`"
    elif words:
        hint = f"the model has the blocks {', '.join(names)}"
        hint += f"; named by `as`: {', '.join(aliases)}" if aliases else ""
    else:
        stacks = [format_path(match.path) for match in everything if match.is_stack]
        hint = f"the stacks are {', '.join(stacks)}"
    return fault_at(axis.target.mark, "selector", f"axes.{axis.name}.replace", message, hint)


def value_faults(space: SearchSpace) -> set[Fault]:
    """Return the faults of a sweep's values and blocks by the recipe language, without planning.

    Each value is tried at two points, with the first values of the other axes and with their last.
    A fault at both is the value's; a fault at all points that were tried is the base's.
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
    """Return the faults common to both probe points, changed to give the axis that value.

    tried: Combinations of the axes on which this one depends. None if the axis has the value at
    none of them.
    """
    # jsonschema takes a tenth of a second to import
    from composer.recipe.validation import schema_faults

    faults: list[set[Fault]] = []
    for end in (0, -1):
        others = {other.name: other.ends[end] for other in space.axes}
        for combination in tried:
            point = space.complete(others | combination | {axis.name: value})
            if axis.name in point and same_value(point[axis.name], value):
                break
        else:
            continue
        try:
            root = apply_point(space, point)
            faults.append(set(schema_faults(root, schema_generator.load())))
        except RecipeError as error:
            faults.append(set(error.faults))
    return set.intersection(*faults) if faults else None


def _dependency_points(space: SearchSpace, axis: Axis) -> list[Point]:
    """Return combinations of the axes on which one depends, directly or not; of ranges, ends."""
    names = reachable([axis], {other.name: other for other in space.axes}, dependencies)
    values = {other.name: other.labels or other.ends for other in space.axes if other.name in names}
    return list(islice(combinations(values), MAX_TRIED))


@lru_cache(maxsize=8)
def default_warnings(space: SearchSpace) -> tuple[Fault, ...]:
    """Return a warning if `model.dropout` reaches some of an axis's replacements, not others."""
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
        if axis.kind != "replace":
            continue
        reached, others = [], []
        for label, node in zip(axis.labels or (), axis.choices, strict=False):
            if _drops(node, rules):
                reached.append(label)
            elif _blocks_in(node, rules):
                others.append((label, node))
        for label, node in others if reached else ():
            message = f"`model.dropout` reaches `{reached[0]}` and not `{label}`, which then differ"
            message += " in more than blocks"
            hint = f"put `- dropout` behind the blocks of `{label}`, or `dropout: 0` at those of"
            hint += f" `{reached[0]}`"
            path = f"axes.{axis.name}.with.{label}"
            warnings.append(fault_at(node.place, "default", path, message, hint).as_warning())
    return tuple(warnings)


def _drops(node: Node, rules: Schema) -> bool:
    """True if any of the blocks drops values, by its own dropout or by the model's."""
    for name, settings in _blocks(node):
        if name == "dropout":
            return True
        if "dropout" not in rules["$defs"].get(f"block.{name}", {}).get("properties", {}):
            continue
        own = settings.get("dropout")
        if own is None or own.value != 0:
            return True
    return False


def _blocks_in(node: Node, rules: Schema) -> set[str]:
    """Return the names of a replacement's blocks, also nested ones, without `identity`."""
    names = {name for name, _ in _blocks(node)}
    return {name for name in names if f"block.{name}" in rules["$defs"]} - {"identity"}


def _blocks(node: Node) -> Iterator[tuple[str, dict[str, Node]]]:
    """Yield the name and the settings of each block of a replacement, also of nested stacks."""
    if isinstance(node.value, list):
        for block in node.value:
            yield from _blocks(block)
        return
    name = block_name(node)
    if not isinstance(node.value, dict):
        yield name, {}
        return
    settings = node.value[name]
    yield name, settings.value if isinstance(settings.value, dict) else {}
    yield from _stacks(settings)


def _stacks(node: Node) -> Iterator[tuple[str, dict[str, Node]]]:
    """Yield the blocks of a setting that is a stack, or a mapping of stacks."""
    if isinstance(node.value, list):
        yield from _blocks(node)
    for value in node.value.values() if isinstance(node.value, dict) else ():
        yield from _stacks(value)
