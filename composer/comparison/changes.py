"""Changes from one recipe or run to another: settings, the model's blocks (from matched trees), and
run.json.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from composer.errors import format_path
from composer.recipe.cache import SHORT_HASH
from composer.recipe.recipe import Recipe
from composer.recipe.registry import word_and_settings
from composer.recipe.schema_reader import Schema, dereference
from composer.recipe.tree import (
    BRANCH,
    CHOICE,
    NAME,
    STACKS,
    Pairs,
    TreeNode,
    distance,
    format_stack,
    format_value,
    match_trees,
    stack_trees,
)

SECTIONS = ("model", "data", "training", "decoding", "evaluation", "trainer", "logging")
Kind = Literal["set", "replaced", "inserted", "removed", "moved", "wrapped", "unwrapped", "renamed"]
SENTENCES: Mapping[str, str] = {
    "inserted": "inserted {after}",
    "removed": "removed {before}",
    "moved": "{before} moved to {to}",
    "wrapped": "{before} now inside {after}",
    "unwrapped": "{after} no longer inside {before}",
    "renamed": "now called {after}",
}


@dataclass(frozen=True)
class Change:
    """One difference.

    `path` is its path in A, `other_path` in B; "" where it is not there. `word` is the block's word
    in the recipe, `setting` the setting of that block or of the section, `before` and `after` its
    values; of blocks, their notation.
    """

    kind: Kind
    section: str
    path: str
    other_path: str
    word: str
    setting: str
    before: Any
    after: Any

    @property
    def where(self) -> str:
        """The path that is printed: A's, where it has one."""
        return self.path or self.other_path

    @property
    def block(self) -> str:
        """The path of the block whose setting it is: `encoder[0].repeat`."""
        return ".".join(filter(None, (self.where, self.word)))

    @property
    def what(self) -> str:
        """What happened there; equal for all places where the same happened."""
        if self.is_name and self.before is None:
            return f"now named {self.after}"
        if self.is_name:
            return (
                f"no longer named {self.before}"
                if self.after is None
                else f"named {self.after}, was {self.before}"
            )
        if self.kind in SENTENCES:
            return SENTENCES[self.kind].format(
                before=self.before, after=self.after, to=self.other_path
            )
        return f"{self.setting} {self.values}" if self.setting else self.values

    @property
    def is_name(self) -> bool:
        """True for a block's `as`: the name by which others read it."""
        return self.kind == "set" and self.setting == NAME and bool(self.word)

    @property
    def values(self) -> str:
        """`before -> after`."""
        pair = (self.before, self.after)
        if self.kind != "set":
            return " -> ".join(f"[{', '.join(x)}]" if isinstance(x, list) else str(x) for x in pair)
        texts = [format_value(value) for value in pair]
        return " -> ".join(texts if texts[0] != texts[1] else map(repr, pair))

    def text(self) -> str:
        """Return the change in one line."""
        if self.kind == "set" and not self.is_name:
            return f"{'.'.join(filter(None, (self.block, self.setting)))}: {self.values}"
        return f"{self.block if self.is_name else self.where}: {self.what}"


def setting_changes(one: Recipe, other: Recipe) -> list[Change]:
    """Return every setting outside the stacks that differs, section by section."""
    changes: list[Change] = []
    for section in SECTIONS:
        hidden = STACKS if section == "model" else ()
        sections = (recipe.canonical[section].items() for recipe in (one, other))
        before, after = (
            {key: value for key, value in items if key not in hidden} for items in sections
        )
        path = ("decoding",) if section == "decoding" else ()
        changes += compare_settings(
            section, before, after, one.rules["properties"][section], path, one.rules["$defs"]
        )
    # a sweep's axes are in the config at W&B, which says the other changes once more
    return [change for change in changes if not change.setting.startswith("wandb.config.")]


def compare_settings(
    section: str, before: Any, after: Any, schema: Schema, path: tuple[str | int, ...], defs: Schema
) -> Iterator[Change]:
    """Yield the changes from one value of a section to another, side by side with their JSON
    Schema.
    """
    if before == after:
        return
    rules = dereference(defs, schema)
    table = str(rules.get("x-choice") or "")
    if table and before is not None and after is not None:
        (one, settings), (other, others) = word_and_settings(before), word_and_settings(after)
        if one == other:
            inner = defs.get(f"{table}.{one}", {})
            yield from compare_settings(section, settings, others, inner, (*path, one), defs)
            return
        texts = (_choice_text(value, table, defs) for value in (before, after))
        yield Change("replaced", section, format_path(path), format_path(path), "", "", *texts)
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        known, more = rules.get("properties", {}), rules.get("additionalProperties")
        for key in dict.fromkeys((*before, *after)):
            inner = known.get(key, more if isinstance(more, Mapping) else {})
            yield from compare_settings(
                section, before.get(key), after.get(key), inner, (*path, key), defs
            )
    else:
        values = (_choice_text(value, table, defs) for value in (before, after))
        yield Change("set", section, "", "", "", format_path(path), *values)


def _choice_text(value: Any, table: str, defs: Schema) -> object:
    """Return a choice in short, `adam(learning_rate=0.001)`; any other value unchanged."""
    if not table or value is None:
        return value
    word, settings = word_and_settings(value)
    schema = defs.get(f"{table}.{word}", {})
    defaults = {key: entry.get("default") for key, entry in schema.get("properties", {}).items()}
    return TreeNode(CHOICE, word, (), settings, (), defaults, schema.get("x-first")).head()


SHOWN_ELSEWHERE: tuple[str, ...] = (
    "name",
    "fingerprints",
    "scores",
    "by_length",
    "parameters",
    "vocabularies",
    "wandb_id",
    "seed",
)
SHOWN_ELSEWHERE += ("canonical", "fingerprint_parts")
"""Keys of run.json whose differences the recipes, the scores and the costs already show."""
ALWAYS_DIFFERENT: tuple[str, ...] = (
    "started_at",
    "ended_at",
    "folders",
    "checkpoints",
    "cwd",
    "weights",
    "run",
)
ALWAYS_DIFFERENT += (
    "weights_sha256",
    "recipe_sha256",
    "results_sha256",
    "hypotheses_sha256",
    "val_unknown",
)
"""Keys of run.json that explain nothing: they differ between any two runs, or follow from another
key.
"""


def record_changes(
    one: Mapping[str, object], other: Mapping[str, object], path: tuple[str, ...] = ()
) -> list[Change]:
    """Return what differs in two run.json that may explain other scores: budget, versions, the
    content of the data.
    """
    changes: list[Change] = []
    for key in dict.fromkeys((*one, *other)):
        before, after, inner = one.get(key), other.get(key), (*path, str(key))
        if before == after or key in ALWAYS_DIFFERENT or (not path and key in SHOWN_ELSEWHERE):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += record_changes(before, after, inner)
        elif not isinstance(before, Mapping) and not isinstance(after, Mapping):
            name = "code of seqcomposer" if inner == ("source",) else format_path(inner)
            changes.append(
                Change("set", "run", "", "", "", name, _shorten_hash(before), _shorten_hash(after))
            )
    return changes


def _shorten_hash(value: object) -> object:
    return (
        value[:SHORT_HASH]
        if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value)
        else value
    )


MANY_CHANGES = 2
FAR = 0.5
"""Stacks with more than MANY_CHANGES, of whose nodes more than this share have no match, are shown
whole.
"""

Order = list[str]
"""Sort key of a path: its steps, with indices of six digits."""


def model_changes(one: Recipe, other: Recipe) -> list[Change]:
    """Return what differs in the stacks of two models, stack by stack."""
    before, after = stack_trees(one), stack_trees(other)
    partners = match_stacks(before, after)
    changes: list[Change] = []
    for name, partner in partners.items():
        changes += stack_changes(one, other, before[name], after[partner])
    for name, root in before.items():
        if name not in partners:
            changes.append(
                Change("removed", "model", name, "", BRANCH, "", format_stack(root.children), None)
            )
    for name, root in after.items():
        if name not in partners.values():
            changes.append(
                Change("inserted", "model", "", name, BRANCH, "", None, format_stack(root.children))
            )
    return changes


def match_stacks(before: Mapping[str, TreeNode], after: Mapping[str, TreeNode]) -> dict[str, str]:
    """Return which stack of B belongs to which of A: the one of its name, else the closest one left
    of its kind.
    """
    partners = {name: name for name in before if name in after}
    left = [name for name in after if name not in partners]
    for name in before:
        # an only `encoder` may become one of several `encoders`
        candidates = [
            x for x in left if x.partition(".")[0].rstrip("s") == name.partition(".")[0].rstrip("s")
        ]
        if candidates and name not in partners:
            costs = {
                x: distance(before[name], after[x], match_trees(before[name], after[x]))
                for x in candidates
            }
            partners[name] = min(candidates, key=costs.__getitem__)
            left.remove(partners[name])
    return partners


def stack_changes(one: Recipe, other: Recipe, before: TreeNode, after: TreeNode) -> list[Change]:
    """Return what differs in one stack; both of them whole where they have little in common."""
    matching = Matching(one, other, before, after, match_trees(before, after))
    changes = matching.changes()
    many = len({change.where for change in changes}) > MANY_CHANGES
    if many and distance(before, after, matching.pairs) > FAR:
        blocks = [[node.notation() for node in root.children] for root in (before, after)]
        changes = [Change("replaced", "model", before.word, after.word, BRANCH, "", *blocks)]
    if before.word != after.word:
        changes.insert(
            0,
            Change(
                "renamed", "model", before.word, after.word, BRANCH, "", before.word, after.word
            ),
        )
    return changes


@dataclass(frozen=True)
class Matching:
    """Two stacks, and which of their nodes match."""

    one: Recipe
    other: Recipe
    before: TreeNode
    after: TreeNode
    pairs: Pairs

    def changes(self) -> list[Change]:
        """Return all that differs below the two roots, in the order of their paths."""
        changes = []
        # unmatched blocks around matched ones: lost ones, then new ones
        for node, inner in _wrapping(self.before, self.matched):
            changes.append(self._change("unwrapped", node, None, node.head(), _count_words(inner)))
        for node, inner in _wrapping(self.after, self.matched):
            changes.append(self._change("wrapped", None, node, _count_words(inner), node.head()))
        changes += [*self._changed(), *self._unmatched()]
        return [change for _, change in sorted(changes, key=lambda item: item[0])]

    def _change(
        self,
        kind: Kind,
        one: TreeNode | None,
        other: TreeNode | None,
        before: object,
        after: object,
        setting: str = "",
    ) -> tuple[Order, Change]:
        """Return a change of a block with its sort key. A node is None where the block is not
        there.
        """
        node = one or other
        assert node is not None
        paths = (one.path_in(self.one) if one else "", other.path_in(self.other) if other else "")
        word = BRANCH if kind == "renamed" else node.word
        order = [f"{step:06}" if isinstance(step, int) else step for step in node.path[:-1]]
        return order, Change(kind, "model", *paths, word, setting, before, after)

    @cached_property
    def matched(self) -> set[int]:
        return {id(node) for pair in self.pairs for node in pair}

    @cached_property
    def with_content(self) -> set[int]:
        """Nodes that were replaced with everything inside: nothing below either of the two matches."""
        return {
            id(node)
            for pair in self.pairs
            if pair[0].word != pair[1].word
            and not any(id(inner) in self.matched for root in pair for inner in root.descendants())
            for node in pair
        }

    def _changed(self) -> Iterator[tuple[Order, Change]]:
        """Yield what differs between matched nodes themselves."""
        for one, other in self.pairs:
            if one.word != other.word and one.kind == BRANCH:
                yield self._change("renamed", one, other, one.word, other.word)
            elif one.word != other.word:
                texts = [
                    node.notation() if id(node) in self.with_content else node.head()
                    for node in (one, other)
                ]
                yield self._change("replaced", one, other, *texts)
            else:
                for key in dict.fromkeys((*one.settings, *other.settings)):
                    before, after = one.settings.get(key), other.settings.get(key)
                    if before != after:
                        yield self._change("set", one, other, before, after, key)

    def _unmatched(self) -> Iterator[tuple[Order, Change]]:
        """Yield what was removed and inserted; what is equal on both sides has moved."""
        inserted = _lone(self.after, self.matched, self.with_content)
        for one in _lone(self.before, self.matched, self.with_content):
            equal = next((other for other in inserted if other.content == one.content), None)
            if equal is None:
                yield self._change("removed", one, None, one.notation(), None)
            else:
                inserted.remove(equal)
                yield self._change("moved", one, equal, one.notation(), equal.notation())
        for other in inserted:
            yield self._change("inserted", None, other, None, other.notation())


def _lone(root: TreeNode, matched: set[int], with_content: set[int]) -> list[TreeNode]:
    """Return the outermost nodes without a match at or below them; none inside what is replaced
    entirely.
    """
    nodes: list[TreeNode] = []
    for child in root.children:
        if id(child) in matched or any(id(inner) in matched for inner in child.descendants()):
            nodes += [] if id(child) in with_content else _lone(child, matched, with_content)
        else:
            nodes.append(child)
    return nodes


def _wrapping(root: TreeNode, matched: set[int]) -> Iterator[tuple[TreeNode, list[TreeNode]]]:
    """Yield unmatched blocks that hold matched nodes, each with the outermost of those."""
    for node in root.descendants():
        inner = (
            [] if id(node) in matched or node.kind == BRANCH else list(_outermost(node, matched))
        )
        if inner:
            yield node, inner


def _outermost(node: TreeNode, matched: set[int]) -> Iterator[TreeNode]:
    for child in node.children:
        if id(child) in matched:
            yield child
        else:
            yield from _outermost(child, matched)


def _count_words(nodes: list[TreeNode]) -> str:
    """Return the words of some blocks with their numbers: `3 x residual, norm`."""
    counts = Counter(node.word for node in nodes)
    return ", ".join(
        word if number == 1 else f"{number} x {word}" for word, number in counts.items()
    )
