"""From two trees that are aligned to what has changed: blocks inserted, removed, moved, replaced, wrapped; settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from composer.comparison.changes import Change
from composer.comparison.tree import BRANCH, TreeNode, listed, parts, place
from composer.comparison.tree_match import GONE, Pairs, aligned, cost
from composer.recipe.recipe import Recipe

MANY = 4
"""Changes of one part above which it may be told as another part altogether."""
FAR = 0.5
"""What share of rewriting everything two parts may cost before they are told side by side."""

Order = tuple[int, int]
"""A place among the nodes of the first and, of what is only in the second, among those of the second."""
Placed = tuple[Order, Change]


def model_changes(one: Recipe, other: Recipe) -> list[Change]:
    """What differs in the stacks of two models, part by part."""
    before, after = parts(one), parts(other)
    found: list[Change] = []
    matches = partners(before, after)
    for name, partner in matches.items():
        found += part_changes(one, other, before[name], after[partner])
    gone = [before[name] for name in before if name not in matches]
    come = [after[name] for name in after if name not in matches.values()]
    found += [Change("removed", "model", each.word, "", BRANCH, "", listed(each.inner), None) for each in gone]
    found += [Change("inserted", "model", "", each.word, BRANCH, "", None, listed(each.inner)) for each in come]
    return found


def partners(before: Mapping[str, TreeNode], after: Mapping[str, TreeNode]) -> dict[str, str]:
    """Which part of the second is which of the first: by name; those left over, by what is in them."""
    found = {name: name for name in before if name in after}
    left = [name for name in after if name not in found]
    for name in before:
        close = [] if name in found else [each for each in left if _kind(each) == _kind(name)]
        if close:
            found[name] = min(close, key=lambda each: distance(before[name], after[each]))
            left.remove(found[name])
    return found


def _kind(name: str) -> str:
    """Encoders are each other's, whether there is one or several; stacks are."""
    return name.partition(".")[0].rstrip("s")


def distance(one: TreeNode, other: TreeNode) -> float:
    """What it costs to make one part of another, as a share of removing all of it and inserting all of the other."""
    return distance_by(aligned(one, other), one, other)


def distance_by(pairs: Pairs, one: TreeNode, other: TreeNode) -> float:
    """The same, by the pairs that are each other's."""
    nodes = sum(1 for root in (one, other) for _ in root.below())
    return (sum(cost(*pair) for pair in pairs) + GONE * (nodes - 2 * len(pairs))) / (GONE * max(nodes, 1))


def part_changes(one: Recipe, other: Recipe, before: TreeNode, after: TreeNode) -> list[Change]:
    """What differs in one part; the parts side by side where they have little in common."""
    compared = Compared(one, other, before, after, aligned(before, after))
    found = compared.changes()
    if len({change.where for change in found}) > MANY and distance_by(compared.aligned, before, after) > FAR:
        told = [[each.whole() for each in root.inner] for root in (before, after)]
        found = [Change("replaced", "model", before.word, after.word, BRANCH, "", *told)]
    if before.word != after.word:
        found.insert(0, Change("renamed", "model", before.word, after.word, BRANCH, "", before.word, after.word))
    return found


@dataclass(frozen=True)
class Compared:
    """Two parts of two models, and which of their nodes are each other's."""

    one: Recipe
    other: Recipe
    before: TreeNode
    after: TreeNode
    aligned: Pairs

    def changes(self) -> list[Change]:
        """All that differs below the two roots, in the order in which a reader comes by."""
        found = [*self._changed(), *self._across(), *self._alone(), *self._around()]
        return [change for _, change in sorted(found, key=lambda each: each[0])]

    # --------------------------------------------------------------------------------------- who is whose

    @cached_property
    def pairs(self) -> Pairs:
        """The aligned nodes, and blocks around some of them that are the same but for what else is inside."""
        return [*self.aligned, *self.regrown]

    @cached_property
    def regrown(self) -> Pairs:
        """Blocks of one word, one lost and one new, around nodes that are each other's."""
        partner = {id(a): b for a, b in self.aligned}
        matched = {id(each) for pair in self.aligned for each in pair}
        found: Pairs = []
        new = list(_around(self.after, matched))
        for node, inner in _around(self.before, matched):
            within = {id(partner[id(each)]) for each in inner}
            for at, (other, others) in enumerate(new):
                if other.word == node.word and any(id(each) in within for each in others):
                    found.append((node, other))
                    del new[at]
                    break
        return found

    @cached_property
    def matched(self) -> set[int]:
        return {id(each) for pair in self.pairs for each in pair}

    @cached_property
    def told_whole(self) -> set[int]:
        """The nodes that have become others, together with all that is inside."""
        return {
            id(node)
            for pair in self.pairs
            if pair[0].word != pair[1].word and not any(id(each) in self.matched for x in pair for each in x.below())
            for node in pair
        }

    @cached_property
    def order(self) -> dict[int, Order]:
        """The place of each node in the order of the first; one of the second alone stands after what it follows."""
        places = {id(node): (at, -1) for at, node in enumerate(self.before.below())}
        partner = {id(b): a for a, b in self.pairs}
        last = -1
        for at, node in enumerate(self.after.below()):
            known = partner.get(id(node))
            last = places[id(known)][0] if known is not None else last
            places[id(node)] = (last, -1 if known is not None else at)
        return places

    # --------------------------------------------------------------------------------------- what both have

    def _changed(self) -> Iterator[Placed]:
        for one, other in self.pairs:
            at = self.order[id(one)]
            if one.word != other.word:
                yield at, self._replaced(one, other)
                continue
            for key in dict.fromkeys((*one.settings, *other.settings)):
                before, after = one.settings.get(key), other.settings.get(key)
                if before != after:
                    yield at, Change("set", "model", *self._both(one, other), one.word, key, before, after)

    def _replaced(self, one: TreeNode, other: TreeNode) -> Change:
        if one.kind == BRANCH:
            return Change("renamed", "model", *self._both(one, other), BRANCH, "", one.word, other.word)
        told = [node.whole() if id(node) in self.told_whole else node.here() for node in (one, other)]
        return Change("replaced", "model", *self._both(one, other), one.word, "", *told)

    def _both(self, one: TreeNode, other: TreeNode) -> tuple[str, str]:
        return place(self.one, one), place(self.other, other)

    def _across(self) -> Iterator[Placed]:
        """Nodes that have come into a block that was there, or gone out of it."""
        partner = {id(a): b for a, b in self.aligned} | {id(b): a for a, b in self.aligned}
        for one, other in self.regrown:
            held = {id(each): each for each in _outermost(one, self.matched)}
            holds = {id(each): each for each in _outermost(other, self.matched)}
            left = [each for key, each in held.items() if key in partner and id(partner[key]) not in holds]
            come = [partner[key] for key, each in holds.items() if key in partner and id(partner[key]) not in held]
            for node in (*left, *come):
                yield self.order[id(node)], self._move(node, partner[id(node)])

    # --------------------------------------------------------------------------------------- what one has alone

    def _alone(self) -> Iterator[Placed]:
        """What was removed and what was inserted; what was both has moved."""
        come = _lone(self.after, self.matched, self.told_whole)
        for one in _lone(self.before, self.matched, self.told_whole):
            there = next((each for each in come if each.content == one.content), None)
            if there is not None:
                come.remove(there)
                yield self.order[id(one)], self._move(one, there)
            else:
                removed = Change("removed", "model", place(self.one, one), "", one.word, "", one.whole(), None)
                yield self.order[id(one)], removed
        for other in come:
            inserted = Change("inserted", "model", "", place(self.other, other), other.word, "", None, other.whole())
            yield self.order[id(other)], inserted

    def _move(self, one: TreeNode, other: TreeNode) -> Change:
        return Change("moved", "model", *self._both(one, other), one.word, "", one.whole(), other.whole())

    def _around(self) -> Iterator[Placed]:
        """Blocks that were lost around others, or are new around them."""
        for node, inner in _around(self.before, self.matched):
            told = (place(self.one, node), "", node.word, "", node.here(), _told(inner))
            yield self.order[id(node)], Change("unwrapped", "model", *told)
        for node, inner in _around(self.after, self.matched):
            told = ("", place(self.other, node), node.word, "", _told(inner), node.here())
            yield self.order[id(node)], Change("wrapped", "model", *told)


def _lone(root: TreeNode, matched: set[int], whole: set[int]) -> list[TreeNode]:
    """The outermost nodes of which nothing is matched, nor anything inside; none inside what is told as a whole."""
    found: list[TreeNode] = []
    for each in root.inner:
        if id(each) in matched or any(id(inner) in matched for inner in each.below()):
            found += [] if id(each) in whole else _lone(each, matched, whole)
        else:
            found.append(each)
    return found


def _around(root: TreeNode, matched: set[int]) -> Iterator[tuple[TreeNode, list[TreeNode]]]:
    """Blocks that are not matched, each with the outermost nodes inside that are."""
    for node in root.below():
        inner = [] if id(node) in matched or node.kind == BRANCH else list(_outermost(node, matched))
        if inner:
            yield node, inner


def _outermost(node: TreeNode, matched: set[int]) -> Iterator[TreeNode]:
    for each in node.inner:
        if id(each) in matched:
            yield each
        else:
            yield from _outermost(each, matched)


def _told(inner: list[TreeNode]) -> str:
    """The words of some blocks, those of a kind together: `3 x residual, norm`."""
    counted = Counter(each.word for each in inner)
    return ", ".join(word if number == 1 else f"{number} x {word}" for word, number in counted.items())
