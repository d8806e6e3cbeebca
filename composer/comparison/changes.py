"""Changes from recipe or run A to B: settings, blocks (from matched trees) and run.json."""

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
            if self.after is None:
                return f"no longer named {self.before}"
            return f"named {self.after}, was {self.before}"
        if sentence := SENTENCES.get(self.kind):
            return sentence.format(before=self.before, after=self.after, to=self.other_path)
        return f"{self.setting} {self.values}" if self.setting else self.values

    @property
    def is_name(self) -> bool:
        """True for a block's `as`: the name by which others read it."""
        return self.kind == "set" and self.setting == NAME and bool(self.word)

    @property
    def values(self) -> str:
        """`before -> after`."""
        before, after = self.before, self.after
        if self.kind != "set":
            return f"{_blocks_text(before)} -> {_blocks_text(after)}"
        if format_value(before) == format_value(after):
            return f"{before!r} -> {after!r}"
        return f"{format_value(before)} -> {format_value(after)}"

    def text(self) -> str:
        """Return the change in one line."""
        if self.kind == "set" and not self.is_name:
            return f"{'.'.join(filter(None, (self.block, self.setting)))}: {self.values}"
        return f"{self.block if self.is_name else self.where}: {self.what}"


def _blocks_text(value: object) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)


def setting_changes(first: Recipe, second: Recipe) -> list[Change]:
    """Return every setting outside the stacks that differs, section by section."""
    changes: list[Change] = []
    for section in SECTIONS:
        before, after = _without_stacks(first, section), _without_stacks(second, section)
        path = ("decoding",) if section == "decoding" else ()
        schema = first.rules["properties"][section]
        changes += compare_settings(section, before, after, schema, path, first.rules["$defs"])
    # a sweep's axes are in the config at W&B, which says the other changes once more
    return [change for change in changes if not change.setting.startswith("wandb.config.")]


def _without_stacks(recipe: Recipe, section: str) -> dict[str, Any]:
    settings = recipe.canonical[section]
    if section != "model":
        return dict(settings)
    return {key: value for key, value in settings.items() if key not in STACKS}


def compare_settings(
    section: str, before: Any, after: Any, schema: Schema, path: tuple[str | int, ...], defs: Schema
) -> Iterator[Change]:
    """Yield the changes from one value of a section to another, along their JSON Schema."""
    if before == after:
        return
    rules = dereference(defs, schema)
    table = str(rules.get("x-choice") or "")
    if table and before is not None and after is not None:
        word_before, settings_before = word_and_settings(before)
        word_after, settings_after = word_and_settings(after)
        if word_before == word_after:
            inner, path = defs.get(f"{table}.{word_before}", {}), (*path, word_before)
            yield from compare_settings(section, settings_before, settings_after, inner, path, defs)
            return
        texts = _choice_text(before, table, defs), _choice_text(after, table, defs)
        yield Change("replaced", section, format_path(path), format_path(path), "", "", *texts)
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        known, more = rules.get("properties", {}), rules.get("additionalProperties")
        more = more if isinstance(more, Mapping) else {}
        for key in dict.fromkeys((*before, *after)):
            inner = known.get(key, more)
            yield from compare_settings(
                section, before.get(key), after.get(key), inner, (*path, key), defs
            )
    else:
        values = _choice_text(before, table, defs), _choice_text(after, table, defs)
        yield Change("set", section, "", "", "", format_path(path), *values)


def _choice_text(value: Any, table: str, defs: Schema) -> object:
    """Return a choice in short, `adam(learning_rate=0.001)`; any other value unchanged."""
    if not table or value is None:
        return value
    word, settings = word_and_settings(value)
    schema = defs.get(f"{table}.{word}", {})
    defaults = {key: entry.get("default") for key, entry in schema.get("properties", {}).items()}
    return TreeNode(CHOICE, word, (), settings, (), defaults, schema.get("x-first")).head()


EXPLAINING = (
    "start_from",
    "initial_weights",
    "checkpoints_used",
    "finished_early",
    "steps",
    "versions",
    "source",
    "plug_ins",
    "machine",
    "git",
)
"""Keys of run.json that may explain other scores and that no recipe says. The others follow from
the recipe and the data, or differ between any two runs.
"""


def record_changes(
    first: Mapping[str, object], second: Mapping[str, object], path: tuple[str, ...] = ()
) -> list[Change]:
    """Return the differences of two run.json that may explain other scores, such as versions."""
    changes: list[Change] = []
    for key in dict.fromkeys((*first, *second)):
        before, after, inner = first.get(key), second.get(key), (*path, str(key))
        if before == after or (not path and key not in EXPLAINING):
            continue
        if inner == ("checkpoints_used", "checkpoints"):  # names of steps
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += record_changes(before, after, inner)
        elif not isinstance(before, Mapping) and not isinstance(after, Mapping):
            name = "code of seqcomposer" if inner == ("source",) else format_path(inner)
            values = _shorten_hash(before), _shorten_hash(after)
            changes.append(Change("set", "run", "", "", "", name, *values))
    return changes


def _shorten_hash(value: object) -> object:
    is_hash = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value)
    return str(value)[:SHORT_HASH] if is_hash else value


MANY_CHANGES = 2
FAR = 0.5
"""Stacks with more than MANY_CHANGES, and without a match for more than this share of their nodes,
are shown entirely.
"""

Order = list[str]
"""Sort key of a path: its steps, with indices of six digits."""


def model_changes(first: Recipe, second: Recipe) -> list[Change]:
    """Return the changes of the stacks of two models, stack by stack."""
    before, after = stack_trees(first), stack_trees(second)
    partners = match_stacks(before, after)
    changes: list[Change] = []
    for name, partner in partners.items():
        changes += stack_changes(first, second, before[name], after[partner])
    for name, root in before.items():
        if name not in partners:
            text = format_stack(root.children)
            changes.append(Change("removed", "model", name, "", BRANCH, "", text, None))
    for name, root in after.items():
        if name not in partners.values():
            text = format_stack(root.children)
            changes.append(Change("inserted", "model", "", name, BRANCH, "", None, text))
    return changes


def match_stacks(before: Mapping[str, TreeNode], after: Mapping[str, TreeNode]) -> dict[str, str]:
    """Return the stack of B for each of A: of the same name, else the closest one of its kind."""
    partners = {name: name for name in before if name in after}
    left = [name for name in after if name not in partners]
    for name in before:
        candidates = [other for other in left if _kind_of_stack(other) == _kind_of_stack(name)]
        if candidates and name not in partners:
            distances = {}
            for other in candidates:
                pairs = match_trees(before[name], after[other])
                distances[other] = distance(before[name], after[other], pairs)
            partners[name] = min(candidates, key=distances.__getitem__)
            left.remove(partners[name])
    return partners


def _kind_of_stack(name: str) -> str:
    """Return `encoder` also for one of several `encoders`: an only one may become one of them."""
    return name.partition(".")[0].rstrip("s")


def stack_changes(first: Recipe, second: Recipe, before: TreeNode, after: TreeNode) -> list[Change]:
    """Return the changes of one stack; a single one where both have little in common."""
    matching = Matching(first, second, before, after, match_trees(before, after))
    changes = matching.changes()
    has_many = len({change.where for change in changes}) > MANY_CHANGES
    paths = before.word, after.word
    if has_many and distance(before, after, matching.pairs) > FAR:
        blocks = _notations(before), _notations(after)
        changes = [Change("replaced", "model", *paths, BRANCH, "", *blocks)]
    if before.word != after.word:
        changes.insert(0, Change("renamed", "model", *paths, BRANCH, "", before.word, after.word))
    return changes


def _notations(root: TreeNode) -> list[str]:
    return [node.notation() for node in root.children]


@dataclass(frozen=True)
class Matching:
    """Two stacks, and the pairs of nodes that match."""

    first: Recipe
    second: Recipe
    before: TreeNode
    after: TreeNode
    pairs: Pairs

    def changes(self) -> list[Change]:
        """Return all differences below the two roots, in the order of their paths."""
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
        old: TreeNode | None,
        new: TreeNode | None,
        before: object,
        after: object,
        setting: str = "",
    ) -> tuple[Order, Change]:
        """Return a change of a block with its sort key; a node is None if the block is missing."""
        node = old or new
        assert node is not None
        paths = (old.path_in(self.first) if old else "", new.path_in(self.second) if new else "")
        word = BRANCH if kind == "renamed" else node.word
        order = list(map(_sort_key, node.path[:-1]))
        return order, Change(kind, "model", *paths, word, setting, before, after)

    @cached_property
    def matched(self) -> set[int]:
        ids = set[int]()
        for old, new in self.pairs:
            ids |= {id(old), id(new)}
        return ids

    @cached_property
    def with_content(self) -> set[int]:
        """Nodes replaced with everything inside: no node below either of the pair matches."""
        ids = set[int]()
        for old, new in self.pairs:
            if old.word != new.word and not (self._has_match_in(old) or self._has_match_in(new)):
                ids |= {id(old), id(new)}
        return ids

    def _has_match_in(self, node: TreeNode) -> bool:
        return any(id(inner) in self.matched for inner in node.descendants())

    def _changed(self) -> Iterator[tuple[Order, Change]]:
        """Yield the changes of matched nodes themselves."""
        for old, new in self.pairs:
            if old.word != new.word and old.kind == BRANCH:
                yield self._change("renamed", old, new, old.word, new.word)
            elif old.word != new.word:
                yield self._change("replaced", old, new, self._text(old), self._text(new))
            else:
                for key in dict.fromkeys((*old.settings, *new.settings)):
                    before, after = old.settings.get(key), new.settings.get(key)
                    if before != after:
                        yield self._change("set", old, new, before, after, key)

    def _text(self, node: TreeNode) -> str:
        return node.notation() if id(node) in self.with_content else node.head()

    def _unmatched(self) -> Iterator[tuple[Order, Change]]:
        """Yield removed and inserted nodes; a removed one that equals an inserted one has moved."""
        inserted = _lone(self.after, self.matched, self.with_content)
        for old in _lone(self.before, self.matched, self.with_content):
            equal = next((new for new in inserted if new.content == old.content), None)
            if equal is None:
                yield self._change("removed", old, None, old.notation(), None)
            else:
                inserted.remove(equal)
                yield self._change("moved", old, equal, old.notation(), equal.notation())
        for new in inserted:
            yield self._change("inserted", None, new, None, new.notation())


def _sort_key(step: str | int) -> str:
    return f"{step:06}" if isinstance(step, int) else step


def _lone(root: TreeNode, matched: set[int], with_content: set[int]) -> list[TreeNode]:
    """Return the outermost nodes without a match at or below them; none in replaced content."""
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
        if id(node) in matched or node.kind == BRANCH:
            continue
        if inner := list(_outermost(node, matched)):
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
    texts = [f"{number} x {word}" for word, number in counts.items()]
    return ", ".join(text.removeprefix("1 x ") for text in texts)
