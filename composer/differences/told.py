"""A difference in words: what a reader would say first, then all of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

from composer.differences.changes import Change
from composer.differences.settings import SECTIONS
from composer.differences.trees import NAME, parts
from composer.quantities import count, octets
from composer.sweeps.compare import FEW, MEANING, Comparison

if TYPE_CHECKING:
    from composer.differences.difference import Difference

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
    return wrap(line, WIDE, subsequent_indent=" " * (indent + 4), break_long_words=False, break_on_hyphens=False,
                drop_whitespace=True)  # fmt: skip


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
    return [each for each, group in groups.items()
            if group[0].kind == "set" and [change.block for change in group] == blocks]  # fmt: skip


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


# ------------------------------------------------------------------------------------------- numbers


def costs_told(found: Difference) -> Iterator[str]:
    """What both cost, side by side."""
    one, other = found.costs
    if one == other:
        figures = f"{count(one.parameters)} parameters, {count(one.flops)} FLOPs, {octets(one.state_bytes)} of state"
        yield from (f"costs the same: {figures}", "")
        return
    rows = [("parameters", count(one.parameters), count(other.parameters), apart(one.parameters, other.parameters))]
    for part in dict.fromkeys((*one.parts, *other.parts)):
        before, after = one.parts.get(part, 0), other.parts.get(part, 0)
        if before != after:
            rows.append((f"  {part}", count(before), count(after), apart(before, after)))
    rows.append(("FLOPs", count(one.flops), count(other.flops), apart(one.flops, other.flops)))
    change = apart(one.state_bytes, other.state_bytes, octets)
    rows.append(("state", octets(one.state_bytes), octets(other.state_bytes), change))
    yield from table("costs", rows)
    if one.vocabularies != other.vocabularies or one.trained != other.trained:
        sizes = [f"{name}: {_vocabularies(each.vocabularies)}{'' if each.trained else ' at most'}"
                 for name, each in zip("AB", found.costs, strict=True)]  # fmt: skip
        yield from (f"  vocabularies: {'; '.join(sizes)}",)
    yield ""


def _vocabularies(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {size:,}" for key, size in sizes.items())


def apart(before: int, after: int, form: Callable[[int], str] = count) -> str:
    """A difference, absolute and as a share where there is something to take it of."""
    if before == after:
        return "="
    share = f" ({percent(before, after)})" if before else ""
    return f"{'+' if after > before else '-'}{form(abs(after - before))}{share}"


def percent(before: float, after: float) -> str:
    """A difference in percent, with as many digits as matter."""
    found = 100 * (after - before) / before
    if found >= 900:
        return f"x {after / before:.0f}"
    return f"{found:+.0f} %" if abs(found) >= 10 else f"{found:+.2g} %"


def table(title: str, rows: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    """Rows under the heads A and B."""
    everything = [(title, "A", "B", "")] + [(f"  {name}", *rest) for name, *rest in rows]
    wide = [max(len(row[column]) for row in everything) for column in range(3)]
    for name, before, after, change in everything:
        yield f"{name:<{wide[0]}}  {before:>{wide[1]}}  {after:>{wide[2]}}  {change}".rstrip()


def scores_told(found: Difference) -> Iterator[str]:
    """The scores of two runs side by side, and what the paired tests say."""
    one, other = found.one.scores, found.other.scores
    names = [name for name in one if name in other]
    if names:
        rows = [(name, score(one[name]), score(other[name]), moved(found, name)) for name in names]
        yield from table("scores", rows)
    tested = found.tested
    if isinstance(tested, Comparison):
        yield from ("  " + line for line in tests_told(tested))
    elif tested:
        yield f"  no p: {tested}"
    if names or tested:
        yield ""


def tests_told(tested: Comparison) -> Iterator[str]:
    """What the paired tests mean."""
    few = " So few say little." if tested.lines < FEW else ""
    yield f"p: on {tested.lines:,} test lines, {tested.same_lines:,} of them written alike.{few}"
    one, other = tested.one, tested.other
    bleu = f"{one.bleu:.2f} ± {one.interval:.2f} -> {other.bleu:.2f} ± {other.interval:.2f}"
    right = f"{one.right:,} -> {other.right:,}"
    yield f"BLEU {bleu} (p = {tested.p_value:.2g}); lines right {right} (p = {tested.right_p_value:.2g})"
    yield MEANING
    yield tested.signature


def moved(found: Difference, name: str) -> str:
    """How a score has changed, and how likely chance does that."""
    before, after = found.one.scores[name], found.other.scores[name]
    digits = 2 if abs(after - before) >= 0.1 and abs(before) >= 1 else 4
    change = "=" if before == after else f"{after - before:+.{digits}f}"
    return f"{change}{chance(found, name, '  p = ')}"


def chance(found: Difference, name: str, before: str) -> str:
    """The p-value of a score, where a test gives one."""
    if not isinstance(found.tested, Comparison):
        return ""
    known = {"test/bleu": (found.tested.p_value, "paired bootstrap"),
             "test/exact_match": (found.tested.right_p_value, "sign test")}  # fmt: skip
    if name not in known:
        return ""
    value, how = known[name]
    return f"{before}{value:.2g}" + (f" ({how})" if before.startswith(" ") else "")


def score(value: float) -> str:
    """A score in four digits or so."""
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


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


def costs_said(found: Difference) -> list[str]:
    """Parameters and FLOPs, where they differ."""
    one, other = found.costs
    told = []
    if one.parameters != other.parameters:
        told.append(f"parameters {apart(one.parameters, other.parameters)}")
    if one.flops != other.flops:
        told.append(f"FLOPs {percent(one.flops, other.flops)}" if one.flops else f"FLOPs {apart(0, other.flops)}")
    return told


def scores_said(found: Difference) -> list[str]:
    """The score that readers look at first."""
    one, other = (dict(each.scores) for each in (found.one, found.other))
    if not found.agreement.same("data"):  # of other lines they say nothing of each other
        kept = "test/" if isinstance(found.tested, Comparison) else "nothing"
        one, other = ({name: each[name] for name in each if name.startswith(kept)} for each in (one, other))
    if isinstance(found.tested, Comparison):  # runs whose recipes did not measure the test part
        one.setdefault("test/bleu", found.tested.one.bleu)
        other.setdefault("test/bleu", found.tested.other.bleu)
    names = ("test/bleu", "test/exact_match", "test/loss", "val/bleu", "val/loss")
    name = next((each for each in names
                 if one.get(each) and other.get(each)
                 and one[each] != other[each]), None)  # fmt: skip
    if name is None:
        return []
    tested = chance(found, name, "p = ")
    before, after = score(one[name]), score(other[name])
    if before == after:
        before, after = f"{one[name]:.6g}", f"{other[name]:.6g}"
    return [f"{name} {before} -> {after}{f' ({tested})' if tested else ''}"]
