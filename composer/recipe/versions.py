"""Versions of the recipe language, and how a text of an older one is rewritten.

There is version 1 alone: no older one exists, and `STEPS` is empty. When a key changes its meaning, the number goes up,
and the step from the number before tells, for a text whose values have places, what to write instead and where. So
comments, order and layout of a recipe stay its author's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from composer.errors import Fault, RecipeError
from composer.recipe.node import Mark, Node, fault_at
from composer.recipe.yaml_reader import parse

VERSION = 1
"""The version that is read here."""


class Edit(NamedTuple):
    """`length` characters from a place on, which give way to `text`. `why` tells the reader, in a few words."""

    mark: Mark
    length: int
    text: str
    why: str


Step = Callable[[Node], Iterable[Edit]]
"""From a recipe of a version to the edits that make one of the next; raises RecipeError for what has no other form."""

STEPS: Mapping[int, Step] = {}
"""The step that leaves each older version."""


class Change(NamedTuple):
    """What was changed at a place of a text."""

    mark: Mark
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        before, after = (" ".join(each.split()) for each in (self.before, self.after))
        done = f"`{before}` -> `{after}`" if after else f"`{before}` is removed"
        return f"{self.mark.file}:{self.mark.line}:{self.mark.column}: {done if before else f'+ `{after}`'}: {self.why}"


class Upgraded(NamedTuple):
    """A recipe's text in the newest version, and what was changed, in order."""

    text: str
    changes: tuple[Change, ...]


def upgraded(text: str, file: str, steps: Mapping[int, Step] = STEPS) -> Upgraded:
    """A recipe's text in the newest version to which `steps` lead. Raises RecipeError where there is no such text."""
    newest = max(steps, default=VERSION - 1) + 1
    root = parse(text, file)
    changes: list[Change] = []
    while (version := _version(root, newest)) < newest:
        text, done = _edited(text, [*steps[version](root), _numbered(root, version + 1)])
        changes.extend(done)
        root = parse(text, file)
    return Upgraded(text, tuple(changes))


def version_fault(root: Node, newest: int = VERSION) -> Fault | None:
    """What is wrong with the version that a file says, if it is another than the one that is read here."""
    node = root.value.get("recipe")
    if node is None or type(node.value) is not int or not 0 < node.value != newest:
        return None
    return other_version(node.mark, "recipe", node.value, newest)


def other_version(mark: Mark, subject: str, version: int, newest: int = VERSION) -> Fault:
    """The fault of a recipe (or a sweep) of an older or a newer version."""
    message = f"this {subject} is written in version {version} of its language; this seqcomposer reads"
    if version > newest:
        message += f" version {newest}" if newest == 1 else f" versions up to {newest}"
        return fault_at(mark, "version", subject, message, "install a newer seqcomposer")
    return fault_at(mark, "version", subject, f"{message} version {newest}", f"run `seqcomposer upgrade {mark.file}`")


def no_version(mark: Mark, subject: str, code: str = "missing", said: str = "") -> Fault:
    """The fault of a recipe (or a sweep) that says no version, or something that is none."""
    if not said:
        message = f"a {subject} begins with the version of its language"
        return fault_at(mark, code, "", message, f"write `{subject}: {VERSION}` as the first line")
    message = f"`{subject}` is the version of the language, and the only one is {VERSION}; {said}"
    return fault_at(mark, code, subject, message, f"write `{subject}: {VERSION}`")


def _version(root: Node, newest: int) -> int:
    """The version that a recipe says, which is no newer one. Raises RecipeError."""
    if "sweep" in root.value:  # its language is another, and has one version only
        return newest
    node = root.value.get("recipe")
    if node is None:
        raise RecipeError([no_version(root.mark._replace(length=1), "recipe")])
    if type(node.value) is not int or node.value < 1:
        raise RecipeError([no_version(node.mark, "recipe", "value", f"`{node.text}` is none")])
    fault = version_fault(root, newest)
    if fault is not None and node.value > newest:
        raise RecipeError([fault])
    return node.value


def _numbered(root: Node, version: int) -> Edit:
    node = root.value["recipe"]
    return Edit(node.mark, len(node.text), str(version), "the version of the language")


_BREAK = re.compile(r"\r\n|\r|\n")  # as the reader counts lines


def _edited(text: str, edits: list[Edit]) -> tuple[str, list[Change]]:
    """A text after edits, all of whose places are those in the text before."""
    starts = [0, *(found.end() for found in _BREAK.finditer(text))]
    pieces: list[str] = []
    changes: list[Change] = []
    done = 0
    for edit in sorted(edits, key=lambda each: (each.mark.line, each.mark.column)):
        begin = starts[edit.mark.line - 1] + edit.mark.column - 1
        if begin < done:
            raise ValueError(f"two edits of one step overlap in line {edit.mark.line}")
        pieces += [text[done:begin], edit.text]
        done = begin + edit.length
        changes.append(Change(edit.mark, text[begin:done], edit.text, edit.why))
    return "".join([*pieces, text[done:]]), changes
