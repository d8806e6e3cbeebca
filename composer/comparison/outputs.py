"""Significance tests of two runs on the same test lines: paired bootstrap and sign test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import RunError
from composer.formatting import count_noun
from composer.metrics.bootstrap import PairedScores, paired_bootstrap
from composer.metrics.choice import TextMetrics
from composer.metrics.references import References, compare, is_exact, references_of
from composer.metrics.table import METRICS, is_share

if TYPE_CHECKING:
    from composer.inference.lines import Line
    from composer.inference.run import Run
    from composer.recipe.recipe import Recipe

RESAMPLES = 1000
"""Bootstrap samples, as sacreBLEU takes by default."""
FEW_LINES = 100
"""Test lines below which a bootstrap says little."""
P_VALUE_MEANING = (
    "± is half the 95 % confidence interval; the p-value beside it is that of a paired bootstrap"
    f" over test lines ({RESAMPLES:,} samples). Variation between seeds is not included."
)


@dataclass(frozen=True)
class RunMatches:
    """Exact matches of a run, and those that the other lacks."""

    run: str
    right: int
    right_alone: int


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same test lines.

    `metrics` are those that the recipes of both have, without exact match; a p-value is the
    probability of a difference as large as this by the choice of test lines alone, if the two are
    equally good. `right_p_value` is that of the difference in exact matches, by the exact sign
    test. `same_lines` are the lines that both decode alike. `signatures` say how sacreBLEU computed
    its metrics, with seed and number of samples.
    """

    one: RunMatches
    other: RunMatches
    lines: int
    same_lines: int
    metrics: Sequence[PairedScores]
    right_p_value: float
    signatures: Sequence[str]


def compare_trials(
    one: str | Path,
    other: str | Path,
    data: str | Path | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Translate the test part with two runs, each as its recipe decodes, and compare.

    log: receives a line before that, which may take long.

    Raises RunError if a run has not finished or has nothing to translate, or if their test lines or
    tokenizers of BLEU differ; RecipeError or DataError if a recipe or its data cannot be read.
    """
    from composer.evaluation.scores import decode_lines  # imports torch
    from composer.inference.run import open_run

    runs = [open_run(one), open_run(other)]
    for run in runs:
        if lack := _describe_lack(run.recipe):
            raise RunError.of(lack, "compare runs that translate", str(run.run_dir.path))
    log("translating the test part with both runs; `--quick` skips it")
    first, second = runs
    first_sources, references = read_test_part(first, data)
    second_sources, second_references = read_test_part(second, data)
    if references != second_references:
        counts = f"{len(references[0]):,} and {len(second_references[0]):,}"
        message = f"the two runs have different test lines ({counts})"
        hint = (
            "compare runs with the same test part; `--data DIR` says where both look their data up"
        )
        raise RunError.of(message, hint, str(second.run_dir.path))
    metrics = common_metrics(first, second, references)
    outputs = [
        [answer.text for answer in decode_lines(first, first_sources)],
        [answer.text for answer in decode_lines(second, second_sources)],
    ]
    return compare_outputs([str(one), str(other)], outputs, references, metrics)


def common_metrics(first: Run, second: Run, references: References) -> TextMetrics:
    """Return the metrics that both recipes choose. Raises RunError if they tokenize otherwise."""
    from composer.evaluation.scores import run_metrics  # imports torch

    lines = [texts[0] for row in zip(*references, strict=True) if (texts := references_of(row))]
    one, other = run_metrics(first, lines), run_metrics(second, lines)
    names = [name for name in one.names if name in other.names]
    if any(METRICS[name].by_tokenizer for name in names) and (
        one.bleu_tokenizer != other.bleu_tokenizer
    ):
        message = (
            f"the two runs measure BLEU by different tokenizers (`{one.bleu_tokenizer}` and"
            f" `{other.bleu_tokenizer}`)"
        )
        hint = "compare runs with the same `evaluation.bleu_tokenizer`"
        raise RunError.of(message, hint, str(second.run_dir.path))
    return TextMetrics(tuple(names), one.bleu_tokenizer)


def read_test_part(run: Run, data: str | Path | None) -> tuple[list[Line], list[list[str]]]:
    """Return the test lines that a run's encoders read, and one or more lists of references."""
    from composer.data.pairs import TARGET
    from composer.data.sources import DataSource
    from composer.evaluation.scores import source_texts

    pairs = DataSource(run.recipe, run.folders(data)).pairs("test")
    references = [list(lines) for lines in (pairs.sides[TARGET], *pairs.references)]
    return source_texts(run.recipe, pairs), references


def _describe_lack(recipe: Recipe) -> str:
    """Say why a recipe's run has no test lines to translate; "" if it has."""
    from composer.data.pairs import available_splits

    if not recipe.sources:
        return "a language model translates nothing, and its scores are those of its own training"
    return "" if "test" in available_splits(recipe) else "its data has no test part"


def compare_outputs(
    names: Sequence[str],
    outputs: Sequence[Sequence[str]],
    references: References,
    metrics: TextMetrics,
) -> Comparison:
    """Compare two runs' outputs for the same references, one or more for each line.

    Lines without a reference are left out. Raises RunError if none has one.
    """
    compared = [compare(texts, references) for texts in outputs]
    if not (rows := compared[0].rows):
        raise RunError.of(
            "no test line has a reference", "give the test lines references, or pass `--quick`"
        )
    texts, columns = [part.hypotheses for part in compared], compared[0].references
    scores, signatures = paired_bootstrap(texts, columns, metrics, RESAMPLES)
    accepted = [*zip(*columns, strict=True)]
    right = [_exact_lines(lines, accepted) for lines in texts]
    alone = [len(right[0] - right[1]), len(right[1] - right[0])]
    one, other = (RunMatches(names[at], len(right[at]), alone[at]) for at in (0, 1))
    same = sum(first == second for first, second in zip(*texts, strict=True))
    return Comparison(one, other, len(rows), same, scores, sign_test(*alone), signatures)


def _exact_lines(lines: Sequence[str], accepted: Sequence[Sequence[str]]) -> set[int]:
    """Return the numbers of the lines that equal one of their accepted references."""
    return {number for number, line in enumerate(lines) if is_exact(line, accepted[number])}


def sign_test(one: int, other: int) -> float:
    """Return the probability that a fair coin falls at least as unevenly (McNemar's exact test)."""
    from scipy.stats import binomtest  # takes most of a second to import

    return float(binomtest(one, one + other).pvalue) if one + other else 1.0


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison in words."""
    one, other = comparison.one, comparison.other
    count = count_noun(comparison.lines, "line")
    lines = [f"{count} of test, {comparison.same_lines:,} of them decoded identically"]
    lines += map(_metric_text, comparison.metrics)
    alone = (
        f"sign test: {one.right_alone:,} are right in the first alone, {other.right_alone:,} in the"
        " second alone"
    )
    lines.append(
        f"lines right: {one.right:,} and {other.right:,}, {other.right - one.right:+,}:"
        f" p = {comparison.right_p_value:.2g} ({alone})."
    )
    if comparison.metrics:
        few = f" Of {count} a bootstrap is not reliable." if comparison.lines < FEW_LINES else ""
        lines.append(f"{P_VALUE_MEANING}{few}")
    return "\n".join([*lines, *comparison.signatures])


def _metric_text(tested: PairedScores) -> str:
    """Return a metric of both runs in one line."""
    metric, scores = METRICS[tested.metric], tested.scores
    both = [metric.format(score) for score in scores]
    intervals = [metric.format(interval) for interval in tested.intervals]
    scale, unit = (100, " points") if is_share(tested.metric) else (1, "")
    difference = f"{(scores[1] - scores[0]) * scale:+.2f}{unit}"
    short = ""
    if tested.metric == "bleu" and scores == (0.0, 0.0):
        short = " BLEU needs lines of four words."
    return (
        f"{metric.label}: {both[0]} ± {intervals[0]} and {both[1]} ± {intervals[1]}, {difference}:"
        f" p = {tested.p_value:.3f}.{short}"
    )
