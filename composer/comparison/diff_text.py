"""A difference in words: what a reader would say first, then all of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

from composer.comparison.changes import Change
from composer.comparison.settings import SECTIONS
from composer.comparison.tables import costs_said, costs_told, scores_said, scores_told
from composer.comparison.tree import NAME, parts

if TYPE_CHECKING:
    from composer.comparison.diff import Difference

WIDE = 110
"""Characters of a line above which what is on both sides of an arrow stands in lines of its own."""
PLACES = 6
"""Places that are listed where the same has changed in many."""
Key = tuple[str, str]
"""Whose change it is, and what: the same for all places where the same has changed."""
FIRST = 4
"""Changes that the one sentence tells."""
DECIDES_NOTHING = ("trainer", "logging")
HEADS: Mapping[str, str] = {
    "trainer": "trainer (how it is run)",
    "logging": "logging",
    "run": "runs",
}


def text(found: Difference) -> str:
    """All of a difference, for people to read."""
    lines, words = [f"A  {found.one.name}", f"B  {found.other.name}", ""], words_of(found)
    for section in (*SECTIONS, "run"):
        told = list(lines_of([change for change in found.changes if change.section == section], words))
        if told:
            lines += [HEADS.get(section, section), *(part for line in told for part in folded(f"  {line}")), ""]
    lines += [*costs_told(found), *scores_told(found)]
    lines += [f"fingerprints: {found.agreement.text()}", "", sentence(found)]
    return "\n".join(lines)


def folded(line: str) -> list[str]:
    """A line that is too long in several, the later ones further in."""
    indent = len(line) - len(line.lstrip())
    return wrap(
        line,
        WIDE,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


# ------------------------------------------------------------------------------------------- changes


def lines_of(changes: Sequence[Change], words: Mapping[str, int]) -> Iterator[str]:
    """Changes in lines: what is the same in many places once, the settings of one block together.

    words: how many blocks of each word the first has.
    """
    groups = grouped(changes)
    shown: set[Key] = set()
    for change in changes:
        key = key_of(change)
        if key in shown:
            continue
        together = beside(key, groups)
        shown.update(together)
        if len(groups[key]) > 1:
            yield from several([groups[each] for each in together], words)
        else:
            yield from one_block([groups[each][0] for each in together])


def beside(key: Key, groups: Mapping[Key, Sequence[Change]]) -> list[Key]:
    """A group and those after it whose settings have changed in the very same blocks."""
    blocks = [change.block for change in groups[key]]
    first = groups[key][0]
    if first.kind != "set" or not first.word:
        return [key]
    return [
        each
        for each, group in groups.items()
        if group[0].kind == "set" and [change.block for change in group] == blocks
    ]


def grouped(changes: Iterable[Change]) -> dict[Key, list[Change]]:
    """The same change in several places under one key."""
    found: dict[Key, list[Change]] = {}
    for change in changes:
        found.setdefault(key_of(change), []).append(change)
    return found


def key_of(change: Change) -> Key:
    """Whose change it is, and what; dropout is the same whoever drops."""
    if change.kind != "set":
        return change.kind, change.what
    if is_dropout(change):
        return "", f"dropout {change.values}"
    return (change.word, change.what) if change.word else (change.section, change.text())


def is_dropout(change: Change) -> bool:
    """Whether a setting is the probability of dropping something: `model.dropout` sets them all."""
    whose = (change.word, change.setting)
    return change.section == "model" and (change.setting == "dropout" or whose == ("dropout", "rate"))


def title(group: Sequence[Change], words: Mapping[str, int]) -> tuple[str, bool]:
    """What has changed alike in several places, and whether that says where."""
    first = group[0]
    whole = next((change for change in group if change.kind == "set" and not change.word), None)
    if whole is not None:
        return f"{whole.section}.{whole.text()}, and so in {blocks_told(len(group) - 1)}", True
    if first.kind != "set":
        return f"{first.what}, in {len(group)} places", False
    if is_dropout(first):
        return f"dropout {first.values}, in {blocks_told(len(group))}", False
    if len(group) == words.get(first.word):
        return f"every {first.word}: {first.what}", True
    return f"{first.word}: {first.what}, in {blocks_told(len(group))}", False


def title_of(groups: Sequence[Sequence[Change]], words: Mapping[str, int]) -> str:
    """What has changed alike in some blocks of a kind."""
    first = groups[0][0]
    if len(groups) == 1:
        return title(groups[0], words)[0]
    return f"{first.word}: {', '.join(group[0].what for group in groups)}, in {blocks_told(len(groups[0]))}"


def blocks_told(number: int) -> str:
    """So many blocks."""
    return "1 block" if number == 1 else f"{number} blocks"


def several(groups: Sequence[Sequence[Change]], words: Mapping[str, int]) -> Iterator[str]:
    """What has changed alike in several places, the same for all groups, and where."""
    group = groups[0]
    head, is_all = title(group, words)
    head = ", ".join([head, *(other[0].what for other in groups[1:])]) if is_all else title_of(groups, words)
    if is_all:
        yield head
        return
    yield f"{head}:"
    places = [change.block if change.kind == "set" else change.where for change in group]
    yield from (f"  {place}" for place in places[:PLACES])
    if len(places) > PLACES:
        yield f"  and {len(places) - PLACES} more"


def one_block(group: Sequence[Change]) -> Iterator[str]:
    """Changes of one block in one line, if it is not too long."""
    first = group[0]
    if len(group) > 1:
        line = f"{first.block}: {', '.join(change.what for change in group)}"
        if len(line) <= WIDE:
            yield line
        else:
            yield f"{first.block}:"
            yield from (f"  {change.what}" for change in group)
        return
    if isinstance(first.before, list) and first.kind == "replaced":
        yield f"{first.where}, all of it:"
        yield from (f"  - {each}" for each in first.before)
        yield from (f"  + {each}" for each in first.after)
    elif len(first.text()) > WIDE and first.kind == "replaced":
        yield f"{first.where}:"
        yield from (f"  {first.before}", f"  -> {first.after}")
    else:
        yield first.text()


def words_of(found: Difference) -> Counter[str]:
    """How many blocks of each word the first has."""
    return Counter(node.word for root in parts(found.one.recipe).values() for node in root.below())


# ------------------------------------------------------------------------------------------- the one sentence


def sentence(found: Difference) -> str:
    """What a reader would say of it."""
    told = [*changes_said(found), *costs_said(found), *scores_said(found)]
    if not told and found.same:
        return "They are the same: model, data and run."
    if not changes_said(found):
        alike = found.agreement.same("data") and found.agreement.by_content
        told.insert(0, "the same recipe and data" if alike else "the same recipe")
    return f"{'; '.join(told)}."


def changes_said(found: Difference) -> list[str]:
    """The changes that decide, the first of them."""
    deciding = [change for change in found.changes if change.section not in (*DECIDES_NOTHING, "run")]
    if not deciding:
        return []
    words = words_of(found)
    clauses = list(dict.fromkeys(said(group, words) for group in clusters(deciding)))
    more = len(clauses) - FIRST
    told = clauses[:FIRST]
    return [*told, f"and {more} more change{'' if more == 1 else 's'}"] if more > 0 else told


def clusters(changes: Iterable[Change]) -> list[list[list[Change]]]:
    """What is told in one clause each: blocks before their settings, the model before all else, and names at last."""
    groups = grouped(sorted(changes, key=rank))
    found: list[list[list[Change]]] = []
    shown: set[Key] = set()
    for key in groups:
        together = [] if key in shown else beside(key, groups)
        shown.update(together)
        found += [[groups[each] for each in together]] if together else []
    return found


def rank(change: Change) -> int:
    """How early a change is told."""
    if change.kind == "set" and change.setting in (NAME, "of", "from"):
        return 3
    return 0 if change.section == "model" and change.kind != "set" else 1 if change.section == "model" else 2


def said(groups: Sequence[Sequence[Change]], words: Mapping[str, int]) -> str:
    """The same changes in several places, or those of one block, in a clause."""
    first = groups[0][0]
    if len(groups[0]) > 1:
        return next(several(groups, words)).removesuffix(":")
    if len(groups) > 1:
        return f"{first.block}: {', '.join(group[0].what for group in groups)}"
    if isinstance(first.before, list) and first.kind == "replaced":
        return f"another {first.where}"
    told = first.text() if len(first.text()) <= WIDE else shortened(first)
    return told if first.word or told.startswith((first.section, "another ")) else f"{first.section}.{told}"


def shortened(change: Change) -> str:
    """A change without what is inside the blocks, or without values that are long."""
    if change.kind == "set":
        return f"another {change.block or change.section}.{change.setting}"
    before, after = (re.split(r"[(\[{]", str(each))[0] for each in (change.before, change.after))
    return replace(change, before=before, after=after).text()
