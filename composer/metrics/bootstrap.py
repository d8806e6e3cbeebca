"""Paired bootstrap of two systems (Koehn 2004), for every metric of texts but exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from composer.metrics.choice import TextMetrics
from composer.metrics.references import References, Texts, error_counts
from composer.metrics.table import METRICS

ERROR_RATES = {"word_error_rate": "words", "character_error_rate": "characters"}
"""Metrics that are edits per unit of the references, and that unit."""
SEED = 12345
"""Seed of the draws, as sacreBLEU has it by default."""


@dataclass(frozen=True)
class PairedScores:
    """A metric of two systems, half the widths of their 95 % intervals, and the p-value."""

    metric: str
    scores: tuple[float, float]
    intervals: tuple[float, float]
    p_value: float


def paired_bootstrap(
    systems: Sequence[Texts], references: References, metrics: TextMetrics, resamples: int
) -> tuple[list[PairedScores], list[str]]:
    """Return each metric of two systems but exact match, and the signatures of sacreBLEU."""
    names = [name for name in metrics.names if METRICS[name].sacrebleu]
    results, signatures = _by_sacrebleu(systems, references, names, metrics, resamples)
    for name, unit in ERROR_RATES.items():
        if name in metrics.names:
            counts = [error_counts(unit, texts, references) for texts in systems]
            results[name] = bootstrap_ratios(name, counts, resamples)
    return [results[name] for name in metrics.names if name in results], signatures


def _by_sacrebleu(
    systems: Sequence[Texts],
    references: References,
    names: Sequence[str],
    metrics: TextMetrics,
    resamples: int,
) -> tuple[dict[str, PairedScores], list[str]]:
    if not names:
        return {}, []
    from sacrebleu.significance import PairedTest

    scorers = {name: METRICS[name].scorer(metrics.bleu_tokenizer) for name in names}
    named = [(name, list(lines)) for name, lines in zip(("one", "other"), systems, strict=True)]
    columns = [list(lines) for lines in references]
    test = PairedTest(named, scorers, columns, test_type="bs", n_samples=resamples)
    settings, scores = test()
    tested = [value for name, value in scores.items() if name != "System"]
    results = {}
    for name, (first, second) in zip(names, tested, strict=True):
        both, intervals = (first.score, second.score), (first.ci, second.ci)
        results[name] = paired_scores(name, both, intervals, second.p_value)
    return results, [f"{name}|{setting}" for name, setting in settings.items()]


def bootstrap_ratios(
    metric: str, systems: Sequence[Sequence[tuple[int, int]]], resamples: int
) -> PairedScores:
    """Test a metric that is a sum over the lines divided by another, as sacreBLEU tests its own.

    systems: Both counts of each line, of each of the two systems.
    """
    counts = np.array(systems, dtype=np.float64)  # (2, lines, 2)
    lines = counts.shape[1]
    draws = np.random.default_rng(SEED).choice(lines, size=(resamples, lines))
    sums = np.stack([counts[:, rows].sum(1) for rows in draws], axis=1)  # (2, resamples, 2)
    rates = sums[..., 0] / sums[..., 1]
    first, second = (float(edits / length) for edits, length in counts.sum(1))
    apart = np.abs(rates[1] - rates[0])
    as_far = (apart - apart.mean() > abs(second - first)).sum()
    low, high = np.sort(rates)[:, [resamples // 40, resamples - resamples // 40 - 1]].T
    one, other = ((high - low) / 2).tolist()
    p_value = float(as_far + 1) / (resamples + 1)
    return paired_scores(metric, (first, second), (one, other), p_value)


def paired_scores(
    metric: str, scores: tuple[float, float], intervals: tuple[float, float], p_value: float
) -> PairedScores:
    """Return the result of a test; of equal scores p is 1."""
    # with equal scores no resampled difference differs from the real one: p would be 1 / 1001
    return PairedScores(metric, scores, intervals, 1.0 if scores[0] == scores[1] else p_value)
