"""Two runs side by side: what both write for the same test lines, sacreBLEU's paired bootstrap over these lines, and
the sign test of which lines are wholly right, since BLEU says nothing of lines of less than four words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from composer.data.encoding import load_data
from composer.data.sources import available_splits, source_names
from composer.errors import RunError
from composer.inference.run import Run, open_run
from composer.recipe.metrics import paired_bootstrap
from composer.sweeps.leaderboard import Entry, Leaderboard, is_finished

RESAMPLES = 1000
"""How often lines are drawn, as sacreBLEU does by default."""
FEW_LINES = 100
"""Test lines below which a resampling says little."""
SPLIT = "test"
P_VALUE_MEANING = (
    "± is half of the interval of 95 %. p says how likely the choice of the test lines alone makes such a difference; "
    "what other seeds would make is not in it."
)


@dataclass(frozen=True)
class RunScores:
    """One run: its BLEU, and half the width of the interval in which 95 % of the resampled ones lie; how many lines are
    wholly right, and how many of these the other has not."""

    run: str
    bleu: float
    interval: float
    right: int
    right_alone: int


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same lines.

    `p_value`: how likely a difference as large as this is by the choice of test lines alone, were the two equally good.
    `right_p_value`: the same of the lines that are wholly right, by the exact sign test.
    `same_lines`: how many lines both write alike. `signature`: how sacreBLEU computed it, with seed and resamples.
    """

    one: RunScores
    other: RunScores
    lines: int
    same_lines: int
    p_value: float
    right_p_value: float
    signature: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_trials(one: str | Path, other: str | Path, data: str | Path | None = None) -> Comparison:
    """Translates the test part with both runs, each as its recipe decodes, and compares.

    Raises RunError where a run has not finished, has no test part or nothing to translate, or where the two have
    different test lines; RecipeError and DataError.
    """
    opened = [open_run(one), open_run(other)]
    asked = [test_lines(run, data) for run in opened]
    if asked[0][1] != asked[1][1]:
        raise RunError.of(
            f"these runs have different test lines ({len(asked[0][1]):,} and {len(asked[1][1]):,})",
            "compare runs with the same test part; `--data DIR` says where both look their data up",
            str(opened[1].folder.path),
        )
    written = [run.translate(lines) for run, (lines, _) in zip(opened, asked, strict=True)]
    return compare_outputs([str(one), str(other)], written, asked[0][1])


def test_lines(run: Run, data: str | Path | None) -> tuple[list[str], list[str]]:
    """What a run reads of its test part, as `translate` takes it, and the references. Raises RunError."""
    read = source_names(run.recipe)
    if not read or SPLIT not in available_splits(run.recipe):
        lack = "its model has no encoder" if not read else "its data has no test part"
        raise RunError.of(f"this run cannot be compared: {lack}", "compare runs that translate", str(run.folder.path))
    found = load_data(run.recipe, run.folders(data), run.tokenizers, [SPLIT])
    texts = found.pairs[SPLIT].sides
    lines = ["\t".join(row) for row in zip(*(list(texts[side]) for side in read), strict=True)]
    encoded = found.split(SPLIT)
    if not encoded:
        raise RunError.of("this run cannot be compared: its test part is empty", "give it lines", str(run.folder.path))
    return lines, list(encoded.lines)


def compare_outputs(names: Sequence[str], written: Sequence[Sequence[str]], references: Sequence[str]) -> Comparison:
    """What two runs have written for the same references, by BLEU and by the lines that are wholly right."""
    found, signature = paired_bootstrap(written, references, RESAMPLES)
    right = [right_lines(lines, references) for lines in written]
    alone = [len(right[0] - right[1]), len(right[1] - right[0])]
    sides = [RunScores(names[at], found[at].bleu, found[at].interval, len(right[at]), alone[at]) for at in (0, 1)]
    # where no resampled difference differs from the real one, its count is of nothing and would say p = 1 / 1001
    p_value = 1.0 if sides[0].bleu == sides[1].bleu else found[1].p_value
    same = sum(a == b for a, b in zip(*written, strict=True))
    return Comparison(sides[0], sides[1], len(references), same, p_value, sign_test(*alone), signature)


def right_lines(written: Sequence[str], references: Sequence[str]) -> set[int]:
    """Which lines are as their references are, but for blanks at their ends."""
    return {at for at, (one, other) in enumerate(zip(written, references, strict=True)) if one.strip() == other.strip()}


def sign_test(one: int, other: int) -> float:
    """How likely a fair coin falls as unevenly as this or more so, to either side (McNemar's exact test)."""
    tosses = one + other
    rarer = sum(math.comb(tosses, count) for count in range(min(one, other) + 1))
    return min(1.0, 2 * rarer / 2**tosses)


def comparison_text(found: Comparison) -> str:
    """A comparison in words."""
    one, other = found.one, found.other
    sides = [f"{each.bleu:6.2f} ± {each.interval:.2f}  {each.right:,} right  {each.run}" for each in (one, other)]
    alone = f"sign test: {one.right_alone:,} are right in the first alone, {other.right_alone:,} in the second alone"
    short = " BLEU needs lines of four words." if one.bleu == other.bleu == 0.0 else ""
    few = f" Of {found.lines:,} lines a resampling says little." if found.lines < FEW_LINES else ""
    less = other.bleu - one.bleu
    return "\n".join(
        [
            f"BLEU on {SPLIT}, {found.lines:,} lines, {found.same_lines:,} of them written alike",
            *sides,
            f"{less:+6.2f}: p = {found.p_value:.3f} (paired bootstrap, {RESAMPLES:,} times).{few}{short}",
            f"{other.right - one.right:+6,} lines right: p = {found.right_p_value:.2g} ({alone}).",
            P_VALUE_MEANING,
            found.signature,
        ]
    )


# ------------------------------------------------------------------------------------------- which runs


def find_run(board: Leaderboard, word: str) -> Path:
    """The run folder that a word names: a folder; a rank; or how a trial's fingerprint begins. Of a trial, its first
    finished seed. Raises RunError."""
    if (Path(word) / "run.json").exists():
        return Path(word)
    found = [entry for entry in board.entries if is_match(entry, word)]
    if len(found) != 1:
        many = f"{len(found)} trials are called" if found else "no run folder and no trial is called"
        fix = "write a run folder, a rank as the table has it, or the beginning of a trial's fingerprint"
        raise RunError.of(f"{many} `{word}`", fix, str(board.folder))
    (trial,) = (entry.trial for entry in found)
    done = [seed for seed, record in sorted(trial.seeds.items()) if is_finished(record)]
    if not done:
        raise RunError.of("this trial has no finished seed", "name one that has", str(trial.folder))
    return trial.run(done[0])


def is_match(entry: Entry, word: str) -> bool:
    """Whether a word names a trial: short numbers are ranks, all else begins a fingerprint."""
    rank = word.removeprefix("#")
    if rank.isdecimal() and len(rank) <= 4:
        return entry.rank == int(rank)
    return bool(word) and entry.trial.fingerprint.startswith(word.lower())
