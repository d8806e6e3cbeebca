"""Significance of the difference of two runs: paired bootstrap of BLEU (Koehn 2004) and sign test of exact matches.

The sign test is there because BLEU says nothing of lines of fewer than four words.
"""

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
"""Bootstrap samples, as sacreBLEU takes by default."""
FEW_LINES = 100
"""Test lines below which a bootstrap says little."""
SPLIT = "test"
P_VALUE_MEANING = (
    "± is half of the interval of 95 %. p says how likely the choice of the test lines alone makes such a difference; "
    "what other seeds would make is not in it."
)


@dataclass(frozen=True)
class RunScores:
    """One run: its BLEU with half the width of its 95 % interval, its exact matches, and those that the other lacks."""

    run: str
    bleu: float
    interval: float
    right: int
    right_alone: int


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same test lines.

    `p_value` is the probability of a difference in BLEU as large as this by the choice of test lines alone, if the two
    are equally good; `right_p_value` that of the difference in exact matches, by the exact sign test. `same_lines` are
    the lines that both decode alike. `signature` says how sacreBLEU computed it, with seed and number of samples.
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
    """Translate the test part with two runs, each as its recipe decodes, and compare.

    Raises:
        RunError: If a run has not finished or has nothing to translate, or if their test lines differ.
        RecipeError, DataError: If a recipe or its data cannot be read.
    """
    runs = [open_run(one), open_run(other)]
    (sources, references), (other_sources, other_references) = (read_test_part(run, data) for run in runs)
    if references != other_references:
        counts = f"{len(references):,} and {len(other_references):,}"
        hint = "compare runs with the same test part; `--data DIR` says where both look their data up"
        raise RunError.of(f"these runs have different test lines ({counts})", hint, str(runs[1].folder.path))
    outputs = [run.translate(lines) for run, lines in zip(runs, (sources, other_sources), strict=True)]
    return compare_outputs([str(one), str(other)], outputs, references)


def read_test_part(run: Run, data: str | Path | None) -> tuple[list[str], list[str]]:
    """Return the test lines of a run, as `translate` takes them, and their references. Raises RunError."""
    names = source_names(run.recipe)
    if not names or SPLIT not in available_splits(run.recipe):
        lack = "its model has no encoder" if not names else "its data has no test part"
        raise RunError.of(f"this run cannot be compared: {lack}", "compare runs that translate", str(run.folder.path))
    dataset = load_data(run.recipe, run.folders(data), run.tokenizers, [SPLIT])
    texts = dataset.pairs[SPLIT].sides
    lines = ["\t".join(row) for row in zip(*(list(texts[name]) for name in names), strict=True)]
    encoded = dataset.split(SPLIT)
    if not encoded:
        raise RunError.of("this run cannot be compared: its test part is empty", "give it lines", str(run.folder.path))
    return lines, list(encoded.lines)


def compare_outputs(names: Sequence[str], outputs: Sequence[Sequence[str]], references: Sequence[str]) -> Comparison:
    """Return the comparison of two runs' outputs for the same references."""
    scores, signature = paired_bootstrap(outputs, references, RESAMPLES)
    exact = [
        {index for index, line in enumerate(references) if texts[index].strip() == line.strip()} for texts in outputs
    ]
    alone = [len(exact[0] - exact[1]), len(exact[1] - exact[0])]
    one, other = (
        RunScores(names[index], scores[index].bleu, scores[index].interval, len(exact[index]), alone[index])
        for index in (0, 1)
    )
    # if no resampled difference differs from the real one, its count is of nothing and would say p = 1 / 1001
    p_value = 1.0 if one.bleu == other.bleu else scores[1].p_value
    same = sum(a == b for a, b in zip(*outputs, strict=True))
    return Comparison(one, other, len(references), same, p_value, sign_test(*alone), signature)


def sign_test(one: int, other: int) -> float:
    """Return the probability that a fair coin falls at least as unevenly, to either side (McNemar's exact test)."""
    tosses = one + other
    rarer = sum(math.comb(tosses, count) for count in range(min(one, other) + 1))
    return min(1.0, 2 * rarer / 2**tosses)


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison in words."""
    one, other = comparison.one, comparison.other
    scores = [f"{run.bleu:6.2f} ± {run.interval:.2f}  {run.right:,} right  {run.run}" for run in (one, other)]
    alone = f"sign test: {one.right_alone:,} are right in the first alone, {other.right_alone:,} in the second alone"
    short = " BLEU needs lines of four words." if one.bleu == other.bleu == 0.0 else ""
    few = f" Of {comparison.lines:,} lines a bootstrap says little." if comparison.lines < FEW_LINES else ""
    p_value = f"p = {comparison.p_value:.3f} (paired bootstrap, {RESAMPLES:,} samples)"
    lines = [
        f"BLEU on {SPLIT}, {comparison.lines:,} lines, {comparison.same_lines:,} of them decoded alike",
        *scores,
        f"{other.bleu - one.bleu:+6.2f}: {p_value}.{few}{short}",
        f"{other.right - one.right:+6,} lines right: p = {comparison.right_p_value:.2g} ({alone}).",
        P_VALUE_MEANING,
        comparison.signature,
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------- which runs


def find_run(board: Leaderboard, word: str) -> Path:
    """Return the run folder that a word names: a folder, a rank, or the beginning of a trial's fingerprint.

    Of a trial it is the first finished seed.

    Raises:
        RunError: If the word names no run or several.
    """
    if (Path(word) / "run.json").exists():
        return Path(word)
    entries = [entry for entry in board.entries if is_match(entry, word)]
    if len(entries) != 1:
        problem = f"{len(entries)} trials are called" if entries else "no run folder and no trial is called"
        hint = "write a run folder, a rank as the table has it, or the beginning of a trial's fingerprint"
        raise RunError.of(f"{problem} `{word}`", hint, str(board.folder))
    trial = entries[0].trial
    finished = [seed for seed, record in sorted(trial.seeds.items()) if is_finished(record)]
    if not finished:
        raise RunError.of("this trial has no finished seed", "name one that has", str(trial.folder))
    return trial.run(finished[0])


def is_match(entry: Entry, word: str) -> bool:
    """Return whether a word names a trial: short numbers are ranks, all else begins a fingerprint."""
    rank = word.removeprefix("#")
    if rank.isdecimal() and len(rank) <= 4:
        return entry.rank == int(rank)
    return bool(word) and entry.trial.fingerprint.startswith(word.lower())
