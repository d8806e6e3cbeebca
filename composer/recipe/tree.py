"""Models as trees of blocks, their short notation, and which nodes of two trees match."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from functools import cached_property, partial
from typing import Any

from composer.errors import KeyPath, format_path
from composer.recipe.recipe import Recipe
from composer.recipe.schema_reader import is_stack, scalar_text
from composer.recipe.section import BlockSpec, read_stack

BRANCH, CHOICE = "branch", "choice"
NAME = "as"
STACKS = ("encoder", "encoders", "decoder", "stacks")
"""The keys of `model` that hold stacks of blocks."""
MAX_VALUE_CHARACTERS = 160
"""Longest value in the notation; longer ones are cut."""


@dataclass(frozen=True, eq=False)
class TreeNode:
    """Node of a model's tree: a block, a branch (one of several stacks inside a block), or a choice
    (an optimizer).

    `word` is the block's word in the recipe, or the branch's name; `settings` are those that are no
    stacks; `defaults` their default values; `first` the setting that a recipe may write without its
    name (`dropout: 0.1`).
    """

    kind: str
    word: str
    path: KeyPath
    settings: Mapping[str, Any]
    children: tuple[TreeNode, ...] = ()
    defaults: Mapping[str, object] | None = None
    first: str | None = None

    @cached_property
    def content(self) -> str:
        """The subtree as JSON: equal for equal subtrees, wherever they are."""
        children = [child.content for child in self.children]
        return json.dumps([self.kind, self.word, self.settings, children], sort_keys=True)

    def descendants(self) -> Iterator[TreeNode]:
        """Yield all nodes below this one, parents before children."""
        for child in self.children:
            yield child
            yield from child.descendants()

    def path_in(self, recipe: Recipe) -> str:
        """Return its path as the recipe writes it: `decoder[1].repeat.stack[0].residual[0]`."""
        steps = recipe.locate(self.path).path
        is_word = self.kind != BRANCH and steps[-1:] == (self.word,)
        return format_path(steps[1:-1] if is_word else steps[1:])

    def head(self) -> str:
        """Return this node without its children: `residual(norm=pre)`."""
        if self.kind == BRANCH:
            return f"branch {self.word}"
        usual = self.defaults or {}
        settings = []
        first = self.settings.get(self.first or "")
        if first is not None:
            # `rnn(lstm)` is clear without the setting's name; a lone number is clear only where
            # nothing else is set
            unnamed = isinstance(first, str) or (
                self.kind != CHOICE and set(self.settings) <= {self.first, NAME}
            )
            settings = [format_value(first) if unnamed else f"{self.first}={format_value(first)}"]
        changed = {
            key: x for key, x in self.settings.items() if key != self.first and x != usual.get(key)
        }
        settings += [f"{key}={format_value(value)}" for key, value in changed.items()]
        return f"{self.word}({', '.join(settings)})" if settings else self.word

    def notation(self) -> str:
        """Return the whole subtree in short: `residual(norm=pre)[self_attention(heads=8),
        dropout(rate=0.1)]`.
        """
        if self.kind == BRANCH:
            return f"{self.word}: {format_stack(self.children)}"
        if any(child.kind == BRANCH for child in self.children):
            return f"{self.head()}{{{', '.join(child.notation() for child in self.children)}}}"
        return f"{self.head()}{format_stack(self.children)}" if self.children else self.head()


def format_stack(stack: tuple[TreeNode, ...]) -> str:
    """Return a stack in short: `[rnn(lstm), norm(layer)]`."""
    return f"[{', '.join(node.notation() for node in stack)}]"


def format_value(value: object) -> str:
    """Return a value as a recipe writes it, on one line, cut after MAX_VALUE_CHARACTERS."""
    if isinstance(value, Mapping):
        items = (f"{key}: {format_value(item)}" for key, item in value.items() if item is not None)
        text = f"{{{', '.join(items)}}}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(format_value, value))}]"
    elif isinstance(value, float):
        text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    else:
        text = scalar_text(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[: MAX_VALUE_CHARACTERS - 4]} ..."


def stack_trees(recipe: Recipe) -> dict[str, TreeNode]:
    """Return a tree for each top-level stack: `encoder`, `encoders.x`, `decoder`, `stacks.x`; its
    root is a branch.
    """
    trees: dict[str, TreeNode] = {}
    for key in STACKS:
        value = getattr(recipe.model, key)
        named = (
            {(key, name): x for name, x in value.items()}
            if isinstance(value, Mapping)
            else {(key,): value}
        )
        for steps, stack in named.items() if value else ():
            name, path = ".".join(steps), ("model", *steps)
            trees[name] = TreeNode(BRANCH, name, path, {}, to_nodes(recipe, stack, path))
    return trees


def to_nodes(recipe: Recipe, stack: Sequence[object], path: KeyPath) -> tuple[TreeNode, ...]:
    """Return the blocks of one stack of a canonical recipe as nodes."""
    return tuple(to_node(recipe, block) for block in read_stack(stack, path))


def to_node(recipe: Recipe, block: BlockSpec) -> TreeNode:
    """Return one block of a canonical recipe as a node; stacks among its settings become children."""
    word, settings, here = block.word, block.settings, block.path
    schema = recipe.rules["$defs"].get(f"block.{word}", {})
    known = schema.get("properties", {})
    children: list[TreeNode] = []
    scalars = dict(settings)
    for key, entry in known.items():
        if is_stack(entry) and isinstance(settings.get(key), list):
            children += to_nodes(recipe, scalars.pop(key), (*here, key))
        elif is_stack(entry.get("items", {})) and settings.get(key) is not None:
            stacks = scalars.pop(key)  # by name or as a list
            for name, stack in stacks.items() if isinstance(stacks, Mapping) else enumerate(stacks):
                steps = (*here, key, name)
                children.append(
                    TreeNode(BRANCH, str(name), steps, {}, to_nodes(recipe, stack, steps))
                )
    defaults = {key: entry.get("default") for key, entry in known.items()}
    return TreeNode("block", word, here, scalars, tuple(children), defaults, schema.get("x-first"))


Forest = Sequence[TreeNode]
Pairs = list[tuple[TreeNode, TreeNode]]


def match_trees(one: TreeNode, other: TreeNode) -> Pairs:
    """Return the pairs of matched nodes below two roots, parents before children; the roots are
    left out.
    """
    return _match_forests(one.children, other.children)


def distance(one: TreeNode, other: TreeNode, pairs: Pairs) -> float:
    """Return the share of the nodes below two roots that have no match of their own word."""
    nodes = sum(1 for root in (one, other) for _ in root.descendants())
    return 1 - 2 * sum(a.word == b.word for a, b in pairs) / max(nodes, 1)


def _match_forests(one: Forest, other: Forest) -> Pairs:
    """Match equal trees in their order, then what lies between them; equal trees out of order have
    moved.
    """
    pairs: Pairs = []
    gaps: list[tuple[Forest, Forest]] = []
    last, end = 0, 0
    for a, b, size in _common_runs(
        [node.content for node in one], [node.content for node in other]
    ):
        gaps.append((one[last:a], other[end:b]))
        pairs += [pair for i in range(size) for pair in _pair_equal(one[a + i], other[b + i])]
        last, end = a + size, b + size
    before, after = ({node.content for gap in gaps for node in gap[side]} for side in (0, 1))
    moved = before & after
    for gap in gaps:
        pairs += _match_different(
            *([node for node in forest if node.content not in moved] for forest in gap)
        )
    return pairs


def _match_different(one: Forest, other: Forest) -> Pairs:
    """Match blocks of one word in their order, then trees with others around them now or before,
    then what is left.
    """
    by_content = (partial(_inside, key="content"), partial(_around, key="content"))
    by_word = (partial(_inside, key="word"), partial(_around, key="word"))
    pairs: Pairs = []
    for step in (_in_order, *by_content, *by_word, _in_place):
        matched = {id(node) for pair in pairs for node in pair}
        rest = (
            [x for x in forest if matched.isdisjoint(map(id, (x, *x.descendants())))]
            for forest in (one, other)
        )
        pairs += [pair for nodes in step(*rest) for pair in (nodes, *match_trees(*nodes))]
    return pairs


def _in_order(one: Forest, other: Forest) -> Pairs:
    """Return blocks of one word; not one that is the other with a block of that word around it."""
    words = ([f"{node.kind} {node.word}" for node in forest] for forest in (one, other))
    pairs = [(one[a + i], other[b + i]) for a, b, size in _common_runs(*words) for i in range(size)]
    return [
        (a, b)
        for a, b in pairs
        if not _inside([a], [b], "content") and not _around([a], [b], "content")
    ]


def _inside(trees: Forest, others: Forest, key: str) -> Pairs:
    """Return the trees whose `key` a node inside of the others has, each with the first such node,
    in order.
    """
    pairs: Pairs = []
    nodes = [node for other in others for node in other.descendants()]
    for tree in trees:
        keys = [(node.kind, getattr(node, key)) for node in nodes]
        if (wanted := (tree.kind, getattr(tree, key))) in keys:
            node, *rest = nodes[keys.index(wanted) :]
            nodes = rest[sum(1 for _ in node.descendants()) :]  # what is in it belongs to it
            pairs.append((tree, node))
    return pairs


def _around(one: Forest, other: Forest, key: str) -> Pairs:
    """Return the same, of the other trees inside of the first."""
    return [(node, tree) for tree, node in _inside(other, one, key)]


def _in_place(one: Forest, other: Forest) -> Pairs:
    """Return each with each, where there are as many on both sides."""
    is_each = len(one) == len(other) and all(
        a.kind == b.kind for a, b in zip(one, other, strict=True)
    )
    return list(zip(one, other, strict=True)) if is_each else []


def _pair_equal(one: TreeNode, other: TreeNode) -> Pairs:
    """Return the pairs of two equal trees."""
    return [(one, other), *zip(one.descendants(), other.descendants(), strict=True)]


def _common_runs(one: Sequence[str], other: Sequence[str]) -> list[Match]:
    """Return the matching runs of two sequences; the last one is empty, at their ends."""
    return SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
