"""The numbers of a difference in words: what both cost, and what they score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from composer.formatting import format_bytes, si
from composer.sweeps.significance import FEW, MEANING, Comparison

if TYPE_CHECKING:
    from composer.comparison.diff import Difference


def costs_told(found: Difference) -> Iterator[str]:
    """What both cost, side by side."""
    one, other = found.costs
    if one == other:
        figures = f"{si(one.parameters)} parameters, {si(one.flops)} FLOPs, {format_bytes(one.state_bytes)} of state"
        yield from (f"costs the same: {figures}", "")
        return
    rows = [("parameters", si(one.parameters), si(other.parameters), apart(one.parameters, other.parameters))]
    for part in dict.fromkeys((*one.parts, *other.parts)):
        before, after = one.parts.get(part, 0), other.parts.get(part, 0)
        if before != after:
            rows.append((f"  {part}", si(before), si(after), apart(before, after)))
    rows.append(("FLOPs", si(one.flops), si(other.flops), apart(one.flops, other.flops)))
    change = apart(one.state_bytes, other.state_bytes, format_bytes)
    rows.append(("state", format_bytes(one.state_bytes), format_bytes(other.state_bytes), change))
    yield from table("costs", rows)
    if one.vocabularies != other.vocabularies or one.trained != other.trained:
        sizes = [
            f"{name}: {_vocabularies(each.vocabularies)}{'' if each.trained else ' at most'}"
            for name, each in zip("AB", found.costs, strict=True)
        ]
        yield from (f"  vocabularies: {'; '.join(sizes)}",)
    yield ""


def _vocabularies(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {size:,}" for key, size in sizes.items())


def apart(before: int, after: int, form: Callable[[int], str] = si) -> str:
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
    known = {
        "test/bleu": (found.tested.p_value, "paired bootstrap"),
        "test/exact_match": (found.tested.right_p_value, "sign test"),
    }
    if name not in known:
        return ""
    value, how = known[name]
    return f"{before}{value:.2g}" + (f" ({how})" if before.startswith(" ") else "")


def score(value: float) -> str:
    """A score in four digits or so."""
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


# ------------------------------------------------------------------------------------------- in the one sentence


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
    name = next((each for each in names if one.get(each) and other.get(each) and one[each] != other[each]), None)
    if name is None:
        return []
    tested = chance(found, name, "p = ")
    before, after = score(one[name]), score(other[name])
    if before == after:
        before, after = f"{one[name]:.6g}", f"{other[name]:.6g}"
    return [f"{name} {before} -> {after}{f' ({tested})' if tested else ''}"]
