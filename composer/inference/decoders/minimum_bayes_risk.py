"""Minimum Bayes risk: choose among samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from composer.errors import RunError
from composer.inference.decoders.sampling import sample
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.methods import Mbr, Sample
from composer.metrics.table import METRICS


def mbr(search: Search, settings: Mbr) -> list[list[Hypothesis]]:
    """Choose the sample with the best mean score against all (Eikema & Aziz 2020, section 5).

    The mean over the samples estimates the expected score of an answer, which its log-probability
    does not. A model that allocates positions for its answer compares answers of different
    lengths by log-probability.
    """
    n_best = search.options.n_best
    if n_best > settings.samples:
        fix = f"write `decoding.mbr.samples={n_best}` or more"
        raise RunError.of(f"{settings.samples} samples have no {n_best} best answers", fix)
    drawing = Sample(
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=settings.seed,
        no_repeat_ngram=settings.no_repeat_ngram,
        precision=settings.precision,
        max_length=settings.max_length,
        max_ratio=settings.max_ratio,
    )
    options = replace(search.options, n_best=settings.samples)
    rows = sample(replace(search, options=options), drawing)
    return [best_by_utility(search, hypotheses, settings.metric) for hypotheses in rows]


def best_by_utility(search: Search, hypotheses: list[Hypothesis], metric: str) -> list[Hypothesis]:
    """Return the n best of a row's samples by their mean score against all, each text once."""
    texts = search.options.to_texts([hypothesis.ids for hypothesis in hypotheses])
    counts, scorer = Counter(texts), METRICS[metric].scorer(of_sentences=True)
    # samples are sorted: the most probable one of each text is written last
    by_text = dict(zip(reversed(texts), reversed(hypotheses), strict=True))
    utilities: dict[str, float] = {}
    for text in counts:
        scores = [
            count * scorer.sentence_score(text, [reference]).score
            for reference, count in counts.items()
        ]
        utilities[text] = sum(scores) / len(texts)
    best = []
    for text in sorted(utilities, key=lambda text: -utilities[text])[: search.options.n_best]:
        has_lengths = search.batch.lengths is not None
        normalised = by_text[text].score if has_lengths else utilities[text]
        best.append(replace(by_text[text], normalised=normalised))
    return best
