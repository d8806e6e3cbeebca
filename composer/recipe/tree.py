"""Models as trees of blocks, their short notation, and a minimum-cost matching of two trees (tree edit distance)."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from functools import cached_property
from typing import Any

from composer.errors import KeyPath, format_path
from composer.recipe.recipe import Recipe
from composer.recipe.schema_reader import is_stack, scalar_text

BRANCH, CHOICE = "branch", "choice"
NAME = "as"
STACKS = ("encoder", "encoders", "decoder", "stacks")
"""The keys of `model` that hold stacks of blocks."""
MAX_VALUE_CHARACTERS = 160
"""Longest value in the notation; longer ones are cut."""


@dataclass(frozen=True, eq=False)
class TreeNode:
    """Node of a model's tree: a block, a branch (one of several stacks inside a block), or a choice (an optimizer).

    `word` is the block's word in the recipe, or the branch's name; `settings` are those that are no stacks; `defaults`
    their default values; `first` the setting that a recipe may write without its name (`dropout: 0.1`).
    """

    kind: str
    word: str
    path: KeyPath
    settings: Mapping[str, Any]
    children: tuple[TreeNode, ...] = ()
    defaults: Mapping[str, Any] | None = None
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
        _, steps, _ = recipe.locate(self.path)
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
            # `rnn(lstm)` is clear without the setting's name; a lone number is clear only where nothing else is set
            unnamed = isinstance(first, str) or (self.kind != CHOICE and set(self.settings) <= {self.first, NAME})
            settings = [format_value(first) if unnamed else f"{self.first}={format_value(first)}"]
        changed = {key: x for key, x in self.settings.items() if key != self.first and x != usual.get(key)}
        settings += [f"{key}={format_value(value)}" for key, value in changed.items()]
        return f"{self.word}({', '.join(settings)})" if settings else self.word

    def notation(self) -> str:
        """Return the whole subtree in short: `residual(norm=pre)[self_attention(heads=8), dropout(rate=0.1)]`."""
        if self.kind == BRANCH:
            return f"{self.word}: {format_stack(self.children)}"
        if any(child.kind == BRANCH for child in self.children):
            return f"{self.head()}{{{', '.join(child.notation() for child in self.children)}}}"
        return f"{self.head()}{format_stack(self.children)}" if self.children else self.head()


def format_stack(stack: tuple[TreeNode, ...]) -> str:
    """Return a stack in short: `[rnn(lstm), norm(layer)]`."""
    return f"[{', '.join(node.notation() for node in stack)}]"


def format_value(value: Any) -> str:
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
    """Return a tree for each top-level stack: `encoder`, `encoders.x`, `decoder`, `stacks.x`; its root is a branch."""
    trees: dict[str, TreeNode] = {}
    for key in STACKS:
        value = recipe.model.get(key)
        named = {(key,): value} if isinstance(value, list) else {(key, name): x for name, x in (value or {}).items()}
        for steps, stack in named.items():
            name, path = ".".join(steps), ("model", *steps)
            trees[name] = TreeNode(BRANCH, name, path, {}, to_nodes(recipe, stack, path))
    return trees


def to_nodes(recipe: Recipe, stack: list[Any], path: KeyPath) -> tuple[TreeNode, ...]:
    """Return the blocks of one stack of a canonical recipe as nodes."""
    return tuple(to_node(recipe, item, (*path, index)) for index, item in enumerate(stack))


def to_node(recipe: Recipe, item: Mapping[str, Any], path: KeyPath) -> TreeNode:
    """Return one block of a canonical recipe as a node; stacks among its settings become children."""
    ((word, settings),) = item.items()
    schema = recipe.rules["$defs"].get(f"block.{word}", {})
    known, here = schema.get("properties", {}), (*path, word)
    children: list[TreeNode] = []
    scalars = dict(settings)
    for key, entry in known.items():
        if is_stack(entry) and isinstance(settings.get(key), list):
            children += to_nodes(recipe, scalars.pop(key), (*here, key))
        elif is_stack(entry.get("items", {})) and settings.get(key) is not None:
            stacks = scalars.pop(key)  # by name or as a list
            for name, stack in stacks.items() if isinstance(stacks, Mapping) else enumerate(stacks):
                steps = (*here, key, name)
                children.append(TreeNode(BRANCH, str(name), steps, {}, to_nodes(recipe, stack, steps)))
    defaults = {key: entry.get("default") for key, entry in known.items()}
    return TreeNode("block", word, here, scalars, tuple(children), defaults, schema.get("x-first"))


# Zhang & Shasha 1989, "Simple fast algorithms for the editing distance between trees", SIAM Journal on Computing 18(6),
# section 3. Deleting a node leaves its children in its place, so that a `residual` around a block costs one edit.

Pairs = list[tuple[TreeNode, TreeNode]]
Table = list[list[int]]

DELETE_COST = 100
"""Cost of a node that only one side has."""
REPLACE_COST = 150
"""Cost of one block in place of another: less than to delete one and insert the other."""
REPLACE_KIND_COST = 190
"""The same, of a block that computes and one of PREPARING."""
PREPARING = frozenset(["add", "no_input", "select_column", "concat", "dropout", "flatten", "identity", "multiply"])
PREPARING |= {"norm", "positions", "reverse", "scale", "sum_columns", "concat_columns", "split_columns"}
"""Blocks that only prepare what others compute with."""
SETTING_COST, MAX_SETTINGS_COST = 10, 50
"""Cost of one changed setting, and of all together."""
RENAME_COST = 60
"""Cost of another name of a branch."""
FORBIDDEN = 10_000
MAX_CELLS = 250_000
"""Cells of all tables above which forests are matched level by level: their minimum would take seconds."""


def match_trees(one: TreeNode, other: TreeNode) -> Pairs:
    """Return the pairs of matched nodes below two roots, parents before children; the roots are left out."""
    before, after = deque(one.children), deque(other.children)
    # equal trees at both ends are matched at once: most edits are small, and the tables are cubic
    pairs: Pairs = []
    while before and after and before[0].content == after[0].content:
        pairs += pair_equal(before.popleft(), after.popleft())
    tail: Pairs = []
    while before and after and before[-1].content == after[-1].content:
        tail = pair_equal(before.pop(), after.pop()) + tail
    return pairs + _match_forests(tuple(before), tuple(after)) + tail


def distance(one: TreeNode, other: TreeNode, pairs: Pairs) -> float:
    """Return the cost of a matching as a share of deleting and inserting everything."""
    nodes = sum(1 for root in (one, other) for _ in root.descendants())
    cost = sum(relabel_cost(*pair) for pair in pairs) + DELETE_COST * (nodes - 2 * len(pairs))
    return cost / (DELETE_COST * max(nodes, 1))


def pair_equal(one: TreeNode, other: TreeNode) -> Pairs:
    """Return the pairs of two equal trees."""
    return [(one, other), *zip(one.descendants(), other.descendants(), strict=True)]


def _match_forests(one: tuple[TreeNode, ...], other: tuple[TreeNode, ...]) -> Pairs:
    """Match two forests whose first trees differ, and whose last trees differ."""
    if len(one) == len(other) == 1 and relabel_cost(one[0], other[0]) == 0:
        return [(one[0], other[0]), *match_trees(one[0], other[0])]
    if not one or not other:
        return []
    if Counter(node.content for node in one) == Counter(node.content for node in other):
        # as many equal trees as keep their order; the others have moved, however large they are
        runs = _common_runs([node.content for node in one], [node.content for node in other])
        matched = [(one[a + i], other[b + i]) for a, b, size in runs for i in range(size)]
        return [pair for nodes in matched for pair in pair_equal(*nodes)]
    a, b = to_post_order(one), to_post_order(other)
    return _match_by_level(one, other) if a.cells * b.cells > MAX_CELLS else _match_exactly(a, b)


def _match_by_level(one: tuple[TreeNode, ...], other: tuple[TreeNode, ...]) -> Pairs:
    """Match equal trees in order, then blocks of one word between them, and what is inside those."""
    pairs: Pairs = []
    last, end = 0, 0
    for a, b, size in _common_runs([node.content for node in one], [node.content for node in other]):
        between = one[last:a], other[end:b]
        words = ([f"{node.kind} {node.word}" for node in forest] for forest in between)
        for c, d, length in _common_runs(*words):
            for nodes in zip(between[0][c : c + length], between[1][d : d + length], strict=True):
                pairs += [nodes, *match_trees(*nodes)]
        pairs += [pair for i in range(size) for pair in pair_equal(one[a + i], other[b + i])]
        last, end = a + size, b + size
    return pairs


def _common_runs(one: Sequence[str], other: Sequence[str]) -> list[Match]:
    """Return the matching runs of two sequences; the last one is empty, at their ends."""
    return SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()


def relabel_cost(one: TreeNode, other: TreeNode) -> int:
    """Return what it costs to turn one node into the other, whatever is below them."""
    if one.kind != other.kind:
        return FORBIDDEN
    if one.word != other.word:
        if one.kind == BRANCH:
            return RENAME_COST
        return REPLACE_COST if (one.word in PREPARING) == (other.word in PREPARING) else REPLACE_KIND_COST
    changed = sum(one.settings.get(key) != other.settings.get(key) for key in {*one.settings, *other.settings})
    return min(SETTING_COST * changed, MAX_SETTINGS_COST)


@dataclass(frozen=True)
class PostOrder:
    """A forest's nodes, children before parents, each with its leftmost leaf. Both lists count from 1."""

    nodes: list[TreeNode]
    leftmost: list[int]

    @property
    def key_roots(self) -> list[int]:
        """The last node of each leftmost leaf."""
        last = {leaf: index for index, leaf in enumerate(self.leftmost) if index}
        return sorted(last.values())

    @property
    def cells(self) -> int:
        """Rows or columns of all tables of this forest together."""
        return sum(index - self.leftmost[index] + 1 for index in self.key_roots)


def to_post_order(forest: tuple[TreeNode, ...]) -> PostOrder:
    """Return the nodes of a forest, under a common root that comes last."""
    root = TreeNode("root", "", (), {}, forest)
    order = PostOrder([root], [0])

    def append(node: TreeNode) -> int:
        leaves = [append(child) for child in node.children]
        order.nodes.append(node)
        order.leftmost.append(leaves[0] if leaves else len(order.nodes) - 1)
        return order.leftmost[-1]

    append(root)
    return order


def _match_exactly(a: PostOrder, b: PostOrder) -> Pairs:
    """Return the pairs of a minimum-cost matching, parents before children."""
    trees = [[0] * len(b.nodes) for _ in a.nodes]
    for i in a.key_roots:
        for j in b.key_roots:
            _forest_distances(a, b, i, j, trees)
    roots = (len(a.nodes) - 1, len(b.nodes) - 1)
    pairs = sorted(pair for pair in _trace_back(a, b, trees) if pair != roots)
    order = {id(node): index for index, node in enumerate(a.nodes[-1].descendants())}
    return sorted(((a.nodes[i], b.nodes[j]) for i, j in pairs), key=lambda pair: order[id(pair[0])])


def _forest_distances(a: PostOrder, b: PostOrder, i: int, j: int, trees: Table) -> Table:
    """Return the distances of all prefixes of two trees; fill in `trees` for the subtrees that begin where they do."""
    top, left = a.leftmost[i], b.leftmost[j]
    table = [[DELETE_COST * (column + row) for column in range(j - left + 2)] for row in range(i - top + 2)]
    for x in range(top, i + 1):
        row, above = table[x - top + 1], table[x - top]
        for y in range(left, j + 1):
            column = y - left + 1
            are_trees = a.leftmost[x] == top and b.leftmost[y] == left
            if are_trees:
                both = above[column - 1] + relabel_cost(a.nodes[x], b.nodes[y])
            else:
                both = table[a.leftmost[x] - top][b.leftmost[y] - left] + trees[x][y]
            row[column] = min(above[column] + DELETE_COST, row[column - 1] + DELETE_COST, both)
            if are_trees:
                trees[x][y] = row[column]
    return table


def _trace_back(a: PostOrder, b: PostOrder, trees: Table) -> Iterator[tuple[int, int]]:
    """Yield the pairs by which the minimum cost came about."""
    todo = [(len(a.nodes) - 1, len(b.nodes) - 1)]
    while todo:
        i, j = todo.pop()
        top, left = a.leftmost[i], b.leftmost[j]
        table = _forest_distances(a, b, i, j, trees)
        x, y = i, j
        while x >= top and y >= left:
            are_trees = a.leftmost[x] == top and b.leftmost[y] == left
            row, column = x - top + 1, y - left + 1
            cost = table[row][column]
            # of several edits of one cost, the one that keeps the outer blocks matched
            if are_trees and cost == table[row - 1][column - 1] + relabel_cost(a.nodes[x], b.nodes[y]):
                yield x, y
                x, y = x - 1, y - 1
            elif cost == table[row - 1][column] + DELETE_COST:
                x -= 1
            elif cost == table[row][column - 1] + DELETE_COST:
                y -= 1
            else:
                todo.append((x, y))
                x, y = a.leftmost[x] - 1, b.leftmost[y] - 1
