"""Two runs side by side: what run.json records, paired significance tests, and tables of costs and scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.comparison.changes import Change, Costs, Side
from composer.errors import ComposerError, format_path
from composer.formatting import align_columns, format_bytes, si
from composer.recipe.cache import SHORT_HASH
from composer.run_dir import RunDir
from composer.sweeps.leaderboard import FEW_LINES, P_VALUE_MEANING, Comparison, compare_trials

SHOWN_ELSEWHERE = ("name", "fingerprints", "scores", "by_length", "parameters", "vocabularies", "wandb", "seed")
"""Keys of run.json whose differences the recipes, the scores and the costs already show."""
ALWAYS_DIFFERENT = ("started_at", "ended_at", "folders", "checkpoints", "cwd", "weights", "run")
"""Keys of run.json that differ between any two runs, and explain nothing."""
HEADLINE_SCORES = ("test/bleu", "test/exact_match", "test/loss", "val/bleu", "val/loss")
"""The first of these that differs goes into the summary."""

Scores = Mapping[str, float]


def record_changes(one: Side, other: Side) -> list[Change]:
    """Return what differs in two run.json that may explain other scores: budget, versions, the content of the data."""
    if not (one.is_run and other.is_run):
        return []
    keys = [key for key in dict.fromkeys((*one.record, *other.record)) if key not in SHOWN_ELSEWHERE]
    return [change for key in keys for change in _compare(one.record.get(key), other.record.get(key), (key,))]


def _compare(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[Change]:
    if before == after or path[-1] in ALWAYS_DIFFERENT:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _compare(before.get(key), after.get(key), (*path, str(key)))
    elif not isinstance(before, Mapping) and not isinstance(after, Mapping):
        name = "code of seqcomposer" if path == ("source",) else format_path(path)
        pair = (before, after)
        texts = (x[:SHORT_HASH] if isinstance(x, str) and re.fullmatch(r"[0-9a-f]{40,}", x) else x for x in pair)
        yield Change("set", "run", "", "", "", name, *texts)


def run_tests(one: Side, other: Side, data: Path | None, log: Callable[[str], None]) -> Comparison | str:
    """Compare what both runs decode for the same test lines, by paired tests; or return why they are not compared.

    data: see `diff`; log: receives a line before the decoding, which may take long.
    """
    if one.folder is None or other.folder is None:
        return ""
    unfinished = [side.name for side in (one, other) if side.record.get("status") != "finished"]
    if unfinished:
        return f"{' and '.join(unfinished)}: not finished"
    # equal weights decode equally only with the same tokenizer: `unigram` differs with each training
    same_tokenizers = one.record.get("tokenizer") == other.record.get("tokenizer")
    if one.recipe.decoding == other.recipe.decoding and same_tokenizers and same_weights(one.folder, other.folder):
        return "the weights of both are the same, to the last bit"
    log("translating the test part with both runs; `--quick` skips it")
    try:
        return compare_trials(one.folder, other.folder, data)
    except ComposerError as error:
        return error.faults[0].message


def same_weights(one: Path, other: Path) -> bool:
    """Return whether two runs have identical weight files."""
    files = [RunDir(folder).weights for folder in (one, other)]
    if not all(file.is_file() for file in files) or files[0].stat().st_size != files[1].stat().st_size:
        return False
    return len({sha256_of_file(file) for file in files}) == 1


def costs_table(one: Costs, other: Costs) -> Iterator[str]:
    """Yield the lines of a table of both costs, then an empty one."""
    if one == other:
        figures = f"{si(one.parameters)} parameters, {si(one.flops)} FLOPs, {format_bytes(one.state_bytes)} of state"
        yield from (f"costs the same: {figures}", "")
        return
    rows = [_cost_row("parameters", one.parameters, other.parameters)]
    for part in dict.fromkeys((*one.parts, *other.parts)):
        before, after = one.parts.get(part, 0), other.parts.get(part, 0)
        if before != after:
            rows.append(_cost_row(f"  {part}", before, after))
    rows.append(_cost_row("FLOPs", one.flops, other.flops))
    rows.append(_cost_row("state", one.state_bytes, other.state_bytes, format_bytes))
    yield from table("costs", rows)
    if one.vocabularies != other.vocabularies or one.trained != other.trained:
        sizes = [", ".join(f"{key} {size:,}" for key, size in x.vocabularies.items()) for x in (one, other)]
        a, b = (text if costs.trained else f"{text} at most" for text, costs in zip(sizes, (one, other), strict=True))
        yield f"  vocabularies: A: {a}; B: {b}"
    yield ""


def _cost_row(name: str, before: int, after: int, form: Callable[[int], str] = si) -> tuple[str, str, str, str]:
    return name, form(before), form(after), format_change(before, after, form)


def format_change(before: int, after: int, form: Callable[[int], str] = si) -> str:
    """Return a difference, absolute and as a percentage where `before` is not 0; `=` if there is none."""
    if before == after:
        return "="
    share = f" ({format_percent(before, after)})" if before else ""
    return f"{'+' if after > before else '-'}{form(abs(after - before))}{share}"


def format_percent(before: float, after: float) -> str:
    """Return a difference in percent with two significant digits, or as a factor from ten times on."""
    percent = 100 * (after - before) / before
    if percent >= 900:
        return f"x {after / before:.0f}"
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.2g} %"


def table(title: str, rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return aligned rows under the heads A and B."""
    lines = [(title, "A", "B", ""), *((f"  {name}", *rest) for name, *rest in rows)]
    return align_columns(lines, (True, False, False, True))


def cost_clauses(one: Costs, other: Costs) -> list[str]:
    """Return parameters and FLOPs for the summary, where they differ."""
    change = format_change(one.parameters, other.parameters)
    clauses = [f"parameters {change}"] if one.parameters != other.parameters else []
    if one.flops != other.flops:
        change = format_percent(one.flops, other.flops) if one.flops else format_change(0, other.flops)
        clauses.append(f"FLOPs {change}")
    return clauses


def scores_table(one: Scores, other: Scores, tested: Comparison | str) -> Iterator[str]:
    """Yield the lines of a table of the scores that both have, then the tests' results, then an empty line."""
    rows = []
    for name, before in one.items():
        if name in other:
            after, p_value = other[name], p_value_of(name, tested)
            digits = 2 if abs(after - before) >= 0.1 and abs(before) >= 1 else 4
            change = "=" if before == after else f"{after - before:+.{digits}f}"
            significance = f"  p = {p_value[0]:.2g} ({p_value[1]})" if p_value else ""
            rows.append((name, format_score(before), format_score(after), change + significance))
    if rows:
        yield from table("scores", rows)
    if isinstance(tested, Comparison):
        one_bleu, other_bleu = (f"{x.bleu:.2f} ± {x.interval:.2f}" for x in (tested.one, tested.other))
        right = f"{tested.one.right:,} -> {tested.other.right:,} (p = {tested.right_p_value:.2g})"
        few = " So few say little." if tested.lines < FEW_LINES else ""
        yield f"  p: on {tested.lines:,} test lines, {tested.same_lines:,} of them decoded alike.{few}"
        yield f"  BLEU {one_bleu} -> {other_bleu} (p = {tested.p_value:.2g}); lines right {right}"
        yield from (f"  {P_VALUE_MEANING}", f"  {tested.signature}")
    elif tested:
        yield f"  no p: {tested}"
    if rows or tested:
        yield ""


def p_value_of(name: str, tested: Comparison | str) -> tuple[float, str] | None:
    """Return the p-value of a score's difference and the name of its test; None where no test gives one."""
    if not isinstance(tested, Comparison):
        return None
    if name == "test/bleu":
        return tested.p_value, "paired bootstrap"
    return (tested.right_p_value, "sign test") if name == "test/exact_match" else None


def format_score(value: float) -> str:
    """Return a score with about four digits."""
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def score_clauses(one: Scores, other: Scores, tested: Comparison | str, same_data: bool) -> list[str]:
    """Return for the summary the first of HEADLINE_SCORES that differs; [] where none does."""
    one, other = dict(one), dict(other)
    if not same_data:  # scores on other lines cannot be compared; those of the tests are on the same lines
        prefix = "test/" if isinstance(tested, Comparison) else "nothing"
        one, other = ({name: x for name, x in scores.items() if name.startswith(prefix)} for scores in (one, other))
    if isinstance(tested, Comparison):  # runs whose recipes did not measure the test part
        one.setdefault("test/bleu", tested.one.bleu)
        other.setdefault("test/bleu", tested.other.bleu)
    differing = (name for name in HEADLINE_SCORES if one.get(name) and other.get(name) and one[name] != other[name])
    name = next(differing, None)
    if name is None:
        return []
    before, after = format_score(one[name]), format_score(other[name])
    if before == after:
        before, after = f"{one[name]:.6g}", f"{other[name]:.6g}"
    p_value = p_value_of(name, tested)
    return [f"{name} {before} -> {after}{f' (p = {p_value[0]:.2g})' if p_value else ''}"]
