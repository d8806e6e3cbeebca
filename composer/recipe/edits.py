"""Edits of a recipe's text that do what a fix says, so that a program can make them."""

from __future__ import annotations

import re

from blocks.core.fixes import Change, Remove, Set
from composer.errors import Edit, KeyPath, Mark, format_path
from composer.recipe.locations import Location
from composer.recipe.schema_reader import flow_text
from composer.recipe.yaml_reader import Node, items_of


def of_change(root: Node, location: Location, change: Change) -> Edit | None:
    """Return the edit for a change of the setting at a location; None where it is unclear."""
    node, path, is_written = location
    if isinstance(change, Set):
        text = flow_text(change.value)
        return replace_value(node, path, text) if is_written else set_value(root, change.path, text)
    if not is_written:
        return None
    if isinstance(change, Remove):
        # of `dropout: 0.1` for `dropout: {rate: 0.1}` the setting is not there to be removed
        is_short = path[-1:] != change.path[-1:] and node.value != change.path[-1]
        return None if is_short else remove(root, path)
    for name in (node, *(child for _, child in items_of(node.value))):
        if name.value == change.old:
            return replace_value(name, path, change.new)
    return None


def rename(mark: Mark, path: KeyPath, old: str, word: str) -> Edit | None:
    """Return the edit that writes another word in place of a key or a name, in the same quotes."""
    text = mark.text[mark.column - 1 : mark.column - 1 + mark.length]
    quote = text[:1] if text[:1] in ("'", '"') else ""
    if text != f"{quote}{old}{quote}":
        return None
    return _edit(path, mark, _after(mark), f"{quote}{word}{quote}")


def replace_value(node: Node, path: KeyPath, text: str) -> Edit | None:
    """Return the edit that replaces a value, on one line; None if it is not in a text."""
    if node.end is None or not _is_written(node):
        return None
    if node.value is None and not node.text:
        # not `{heads, ...}`
        has_colon = node.end.text[: node.end.column - 1].rstrip().endswith(":")
        return _edit(path, node.end, node.end, f" {text}" if has_colon else f": {text}")
    return _edit(path, node.mark, node.end, text)


def remove(root: Node, path: KeyPath) -> Edit | None:
    """Return the edit that removes a key or a list item; None if it is not in a text."""
    parent = find(root, path[:-1])
    node = find(root, path)
    if parent is None or node is None or node.end is None or not path:
        return None
    is_item = isinstance(parent.value, list)
    start, end = node.mark if is_item else node.place, node.end
    siblings = _written_beside(parent, node)
    if not _has_key(parent, start):
        return None
    opening = start.text[: start.column - 1]
    stands_alone = re.fullmatch(r" *- +" if is_item else " *", opening) or not opening.strip()
    ends_line = re.fullmatch(r" *,? *(#.*)?", end.text[end.column - 1 :]) is not None
    ends_before = end.column == 1 and end.line > start.line  # a text after `|`
    if siblings and stands_alone and (ends_line or ends_before):
        past = end.line if ends_before else end.line + 1
        return Edit(start.file, format_path(path), (start.line, 1), (past, 1), "")
    later = [sibling for sibling in siblings if _start(sibling) > _start(node)]
    if later:
        following = min(later, key=_start)
        return _edit(path, start, following.mark if is_item else following.place, "")
    if siblings and (previous := max(siblings, key=_start).end) is not None:
        return _edit(path, previous, end, "")
    in_brackets = parent.mark.text[parent.mark.column - 1 :][:1] in ("{", "[")
    if in_brackets or not is_item:
        return _edit(path, start, end, "" if in_brackets else "{}")
    return None


def set_value(root: Node, path: KeyPath, text: str) -> Edit | None:
    """Return the edit that gives a key, old or new, a value; None where that is not clear."""
    node = root
    for index, step in enumerate(path):
        child = find(node, (step,))
        if child is None:
            return _insert(node, path[:index], path[index:], text)
        node = child
    return replace_value(node, path, text)


def _insert(node: Node, path: KeyPath, rest: KeyPath, text: str) -> Edit | None:
    """Return the edit that writes the keys `rest` below a node at `path`."""
    if not all(isinstance(step, str) for step in rest):
        return None
    inner = text
    for key in reversed(rest[1:]):
        inner = f"{{{key}: {inner}}}"
    if isinstance(node.value, dict):
        first = min(_written_beside(node, node), key=_start, default=None)
        if first is None:
            return replace_value(node, path, f"{{{rest[0]}: {inner}}}")
        mark = first.place
        if not _has_key(node, mark):
            return None
        in_brackets = bool(mark.text[: mark.column - 1].strip(" -"))
        between = ", " if in_brackets else "\n" + " " * (mark.column - 1)
        entry = f"{rest[0]}: {inner}{between}"
        return _edit((*path, *rest), mark, mark._replace(length=0), entry)
    if len(rest) > 1 and node.value == rest[0]:  # a name without settings
        return replace_value(node, path, f"{{{rest[0]}: {inner}}}")
    return None


def find(root: Node, path: KeyPath) -> Node | None:
    """Return the node at a path, or None."""
    node = root
    for step in path:
        children = dict(items_of(node.value))
        if step not in children:
            return None
        node = children[step]
    return node


def _written_beside(parent: Node, node: Node) -> list[Node]:
    """Return the other items of a list or a mapping that are in the same file."""
    siblings, file = [], node.place.file
    for _, child in items_of(parent.value):
        if child is not node and child.end and child.place.file == file:
            siblings.append(child)
    return siblings


def _has_key(parent: Node, mark: Mark) -> bool:
    """True unless a key is a part of a dotted path, on the command line or in a sweep."""
    if isinstance(parent.value, list):
        return True
    rest = mark.text[mark.column - 1 + mark.length :]
    return not mark.text[: mark.column - 1].endswith(".") and rest.lstrip().startswith(":")


def _start(node: Node) -> tuple[int, int]:
    return node.place.line, node.place.column


def _after(mark: Mark) -> Mark:
    return mark._replace(column=mark.column + mark.length, length=0)


def _is_written(node: Node) -> bool:
    """True if the text has the value where its mark is, and not the name of a variable or axis."""
    if isinstance(node.value, (dict, list)) or node.value is None:
        return True
    shown = node.mark.text[node.mark.column - 1 :]
    return shown.startswith(node.text) or shown[:1] in ("'", '"', "|", ">")


def _edit(path: KeyPath, start: Mark, end: Mark, replacement: str) -> Edit | None:
    """Return an edit between two locations of one file."""
    if start.file != end.file:
        return None
    places = (start.line, start.column), (end.line, end.column)
    if places[0] > places[1]:
        return None
    return Edit(start.file, format_path(path), *places, replacement)
