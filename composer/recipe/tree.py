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
    """Node of a model's tree: a block, a branch (a stack inside a block) or a choice.

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
            is_lone = self.kind != CHOICE and set(self.settings) <= {self.first, NAME}
            name = "" if is_lone or isinstance(first, str) else f"{self.first}="
            settings.append(f"{name}{format_value(first)}")
        for key, value in self.settings.items():
            if key != self.first and value != usual.get(key):
                settings.append(f"{key}={format_value(value)}")
        return f"{self.word}({', '.join(settings)})" if settings else self.word

    def notation(self) -> str:
        """Return the subtree in short: `residual(norm=pre)[self_attention(heads=8)]`."""
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
    """Return a tree for each top-level stack, `encoder`, `stacks.x`, ...; its root is a branch."""
    trees: dict[str, TreeNode] = {}
    for key in STACKS:
        value = getattr(recipe.model, key)
        named: dict[tuple[Any, ...], Any] = {(key,): value}
        if isinstance(value, Mapping):
            named = {(key, name): entry for name, entry in value.items()}
        for steps, stack in named.items() if value else ():
            name, path = ".".join(steps), ("model", *steps)
            trees[name] = TreeNode(BRANCH, name, path, {}, to_nodes(recipe, stack, path))
    return trees


def to_nodes(recipe: Recipe, stack: Sequence[object], path: KeyPath) -> tuple[TreeNode, ...]:
    """Return the blocks of one stack of a canonical recipe as nodes."""
    return tuple(to_node(recipe, block) for block in read_stack(stack, path))


def to_node(recipe: Recipe, block: BlockSpec) -> TreeNode:
    """Return a block of a canonical recipe as a node; stacks among its settings become children."""
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


def match_trees(first: TreeNode, second: TreeNode) -> Pairs:
    """Return the pairs of matched nodes below two roots, parents before children."""
    return _match_forests(first.children, second.children)


def distance(first: TreeNode, second: TreeNode, pairs: Pairs) -> float:
    """Return the share of the nodes below two roots that have no match of their own word."""
    nodes = len([*first.descendants(), *second.descendants()])
    return 1 - 2 * sum(a.word == b.word for a, b in pairs) / max(nodes, 1)


def _match_forests(first: Forest, second: Forest) -> Pairs:
    """Match equal trees in their order, then what lies between them.

    Equal trees out of order have moved.
    """
    pairs: Pairs = []
    gaps: list[tuple[Forest, Forest]] = []
    start_a, start_b = 0, 0
    for a, b, size in _common_runs(_contents(first), _contents(second)):
        gaps.append((first[start_a:a], second[start_b:b]))
        for offset in range(size):
            pairs += _pair_equal(first[a + offset], second[b + offset])
        start_a, start_b = a + size, b + size
    before, after = set[str](), set[str]()
    for gap_a, gap_b in gaps:
        before.update(_contents(gap_a))
        after.update(_contents(gap_b))
    moved = before & after
    for gap_a, gap_b in gaps:
        left_a = [node for node in gap_a if node.content not in moved]
        left_b = [node for node in gap_b if node.content not in moved]
        pairs += _match_different(left_a, left_b)
    return pairs


def _contents(forest: Forest) -> list[str]:
    return [node.content for node in forest]


def _match_different(first: Forest, second: Forest) -> Pairs:
    """Match blocks of one word in their order, then trees that others surround, then the rest."""
    by_content = (partial(_inside, key="content"), partial(_around, key="content"))
    by_word = (partial(_inside, key="word"), partial(_around, key="word"))
    pairs: Pairs = []
    for step in (_in_order, *by_content, *by_word, _in_place):
        matched = set[int]()
        for a, b in pairs:
            matched |= {id(a), id(b)}
        for a, b in step(_without(first, matched), _without(second, matched)):
            pairs += [(a, b), *match_trees(a, b)]
    return pairs


def _without(forest: Forest, matched: set[int]) -> Forest:
    """Return the trees that have no matched node."""
    return [tree for tree in forest if matched.isdisjoint(map(id, (tree, *tree.descendants())))]


def _in_order(first: Forest, second: Forest) -> Pairs:
    """Return blocks of one word, unless one is the other with a block of that word around it."""
    words_a = [f"{node.kind} {node.word}" for node in first]
    words_b = [f"{node.kind} {node.word}" for node in second]
    pairs = []
    for start_a, start_b, size in _common_runs(words_a, words_b):
        for offset in range(size):
            a, b = first[start_a + offset], second[start_b + offset]
            if not _inside([a], [b], "content") and not _around([a], [b], "content"):
                pairs.append((a, b))
    return pairs


def _inside(trees: Forest, others: Forest, key: str) -> Pairs:
    """Return each tree whose `key` a node inside of the others has, with the first such node."""
    pairs: Pairs = []
    nodes: Forest = []
    for other in others:
        nodes = [*nodes, *other.descendants()]
    for tree in trees:
        keys = [(node.kind, getattr(node, key)) for node in nodes]
        if (wanted := (tree.kind, getattr(tree, key))) in keys:
            node, *rest = nodes[keys.index(wanted) :]
            nodes = rest[sum(1 for _ in node.descendants()) :]  # what is in it belongs to it
            pairs.append((tree, node))
    return pairs


def _around(first: Forest, second: Forest, key: str) -> Pairs:
    """Return the same, of the second trees inside of the first."""
    return [(node, tree) for tree, node in _inside(second, first, key)]


def _in_place(first: Forest, second: Forest) -> Pairs:
    """Return each tree with the one in its place, if both forests have the same kinds."""
    same_kinds = [node.kind for node in first] == [node.kind for node in second]
    return list(zip(first, second, strict=True)) if same_kinds else []


def _pair_equal(first: TreeNode, second: TreeNode) -> Pairs:
    """Return the pairs of two equal trees."""
    return [(first, second), *zip(first.descendants(), second.descendants(), strict=True)]


def _common_runs(first: Sequence[str], second: Sequence[str]) -> list[Match]:
    """Return the matching runs of two sequences; the last one is empty, at their ends."""
    return SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
