"""Which blocks of two models are the same: the least costly edit from one tree to the other.

Zhang & Shasha 1989, "Simple fast algorithms for the editing distance between trees", SIAM Journal on Computing 18(6),
section 3. A node that goes leaves its children where it stood, so that a `residual` around what stood bare costs one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher

from composer.comparison.tree import BRANCH, TreeNode

Pairs = list[tuple[TreeNode, TreeNode]]
Table = list[list[int]]

GONE = 100
"""What it costs that a node is there on one side alone."""
OTHER_WORD = 150
"""What it costs that one block has become another: less than to remove one and insert the other."""
OTHER_KIND = 190
"""The same, of one that computes and one that only prepares what others compute with."""
LIGHT = frozenset(
    [
        "add",
        "blank",
        "column",
        "concat",
        "dropout",
        "flatten",
        "identity",
        "multiply",
        "norm",
        "positions",
        "reverse",
        "scale",
        "sum",
    ]
)
"""Blocks that prepare what others compute with."""
SETTING, MOST_SETTINGS = 10, 50
"""What each other setting costs, and all together."""
RENAMED = 60
"""What another name of a branch costs."""
NEVER = 10_000
MOST = 250_000
"""Cells of all tables above which two forests are taken level by level: their least edit would take seconds."""


def aligned(one: TreeNode, other: TreeNode) -> Pairs:
    """The pairs of nodes below two roots that are each other's, the outer before the inner; not the roots."""
    before, after = deque(one.inner), deque(other.inner)
    pairs: Pairs = []
    while before and after and before[0].content == after[0].content:
        pairs += twins(before.popleft(), after.popleft())
    ends: Pairs = []
    while before and after and before[-1].content == after[-1].content:
        ends = twins(before.pop(), after.pop()) + ends
    return pairs + _between(tuple(before), tuple(after)) + ends


def _between(one: tuple[TreeNode, ...], other: tuple[TreeNode, ...]) -> Pairs:
    """The pairs of two forests that begin and end with other trees."""
    if len(one) == len(other) == 1 and cost(one[0], other[0]) == 0:
        return [(one[0], other[0]), *aligned(one[0], other[0])]
    if not one or not other:
        return []
    if Counter(each.content for each in one) == Counter(each.content for each in other):
        return _in_order(one, other)
    a, b = ordered(one), ordered(other)
    return _level_by_level(one, other) if a.cells * b.cells > MOST else _edited(a, b)


def _level_by_level(one: tuple[TreeNode, ...], other: tuple[TreeNode, ...]) -> Pairs:
    """Of the same trees those that keep their order; of those between them, blocks of one word, and what is inside."""
    found: Pairs = []
    last, end = 0, 0
    for a, b, size in _common([each.content for each in one], [each.content for each in other]):
        found += _of_one_word(one[last:a], other[end:b])
        found += [pair for i in range(size) for pair in twins(one[a + i], other[b + i])]
        last, end = a + size, b + size
    return found


def _of_one_word(one: tuple[TreeNode, ...], other: tuple[TreeNode, ...]) -> Pairs:
    words = ([f"{each.kind} {each.word}" for each in forest] for forest in (one, other))
    paired = [(one[a + i], other[b + i]) for a, b, size in _common(*words) for i in range(size)]
    return [each for pair in paired for each in (pair, *aligned(*pair))]


def _common(one: Sequence[str], other: Sequence[str]) -> list[Match]:
    """Where two sequences have the same, and how much of it; at last their ends."""
    return SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()


def _in_order(one: tuple[TreeNode, ...], other: tuple[TreeNode, ...]) -> Pairs:
    """Of the same trees in another order the most that keep theirs: the others have moved, however large they are."""
    kept = _common([each.content for each in one], [each.content for each in other])
    matched = [(a + at, b + at) for a, b, size in kept for at in range(size)]
    return [pair for i, j in matched for pair in twins(one[i], other[j])]


def twins(one: TreeNode, other: TreeNode) -> Pairs:
    """The pairs of two trees that are the same."""
    return [(one, other), *zip(one.below(), other.below(), strict=True)]


def cost(one: TreeNode, other: TreeNode) -> int:
    """What it costs to make one node of the other, whatever is below them."""
    if one.kind != other.kind:
        return NEVER
    if one.word != other.word:
        if one.kind == BRANCH:
            return RENAMED
        return OTHER_WORD if (one.word in LIGHT) == (other.word in LIGHT) else OTHER_KIND
    changed = sum(one.settings.get(key) != other.settings.get(key) for key in {*one.settings, *other.settings})
    return min(SETTING * changed, MOST_SETTINGS)


@dataclass(frozen=True)
class Ordered:
    """A forest's nodes, the inner before the outer; of each the first leaf below it. Both count from 1."""

    nodes: list[TreeNode]
    first: list[int]

    @property
    def key_roots(self) -> list[int]:
        """The last node for each first leaf."""
        last = {leaf: at for at, leaf in enumerate(self.first) if at}
        return sorted(last.values())

    @property
    def cells(self) -> int:
        """How many rows or columns all tables have that are made of it."""
        return sum(at - self.first[at] + 1 for at in self.key_roots)


def ordered(forest: tuple[TreeNode, ...]) -> Ordered:
    """The nodes of a forest below a root that is the last of them."""
    root = TreeNode("root", "", (), {}, forest)
    found = Ordered([root], [0])
    _add(root, found)
    return found


def _add(node: TreeNode, found: Ordered) -> int:
    leaves = [_add(each, found) for each in node.inner]
    found.nodes.append(node)
    found.first.append(leaves[0] if leaves else len(found.nodes) - 1)
    return found.first[-1]


def _edited(a: Ordered, b: Ordered) -> Pairs:
    """The pairs of two forests, the outer before the inner."""
    trees = [[0] * len(b.nodes) for _ in a.nodes]
    for i in a.key_roots:
        for j in b.key_roots:
            _forests(a, b, i, j, trees)
    ends = (len(a.nodes) - 1, len(b.nodes) - 1)
    found = sorted(pair for pair in _traced(a, b, trees) if pair != ends)
    order = {id(node): at for at, node in enumerate(a.nodes[-1].below())}
    return sorted(((a.nodes[i], b.nodes[j]) for i, j in found), key=lambda pair: order[id(pair[0])])


def _forests(a: Ordered, b: Ordered, i: int, j: int, trees: Table) -> Table:
    """The distances of all beginnings of two trees; fills in those of the trees that begin where these do."""
    top, left = a.first[i], b.first[j]
    table = [[GONE * (column + row) for column in range(j - left + 2)] for row in range(i - top + 2)]
    for x in range(top, i + 1):
        row, above = table[x - top + 1], table[x - top]
        for y in range(left, j + 1):
            column = y - left + 1
            whole = a.first[x] == top and b.first[y] == left
            if whole:
                both = above[column - 1] + cost(a.nodes[x], b.nodes[y])
            else:
                both = table[a.first[x] - top][b.first[y] - left] + trees[x][y]
            row[column] = min(above[column] + GONE, row[column - 1] + GONE, both)
            if whole:
                trees[x][y] = row[column]
    return table


def _traced(a: Ordered, b: Ordered, trees: Table) -> Iterator[tuple[int, int]]:
    """The pairs that the least cost is made of."""
    todo = [(len(a.nodes) - 1, len(b.nodes) - 1)]
    while todo:
        i, j = todo.pop()
        top, left = a.first[i], b.first[j]
        table = _forests(a, b, i, j, trees)
        x, y = i, j
        while x >= top and y >= left:
            whole = a.first[x] == top and b.first[y] == left
            step = _step(table, x - top + 1, y - left + 1, whole=whole, pair=cost(a.nodes[x], b.nodes[y]))
            if step == "pair":
                yield x, y
                x, y = x - 1, y - 1
            elif step == "gone":
                x -= 1
            elif step == "come":
                y -= 1
            else:
                todo.append((x, y))
                x, y = a.first[x] - 1, b.first[y] - 1


def _step(table: Table, row: int, column: int, *, whole: bool, pair: int) -> str:
    """How a distance came about; where several ways cost the same, the one that keeps the outer blocks together."""
    here = table[row][column]
    if whole and here == table[row - 1][column - 1] + pair:
        return "pair"
    if here == table[row - 1][column] + GONE:
        return "gone"
    if here == table[row][column - 1] + GONE:
        return "come"
    return "trees"
