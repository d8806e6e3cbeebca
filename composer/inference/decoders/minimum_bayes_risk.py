"""Minimum Bayes risk decoding: among samples, the one that is most like all of them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from blocks.core.contract import Bounds, Count, Positive, PositiveProportion
from composer.errors import RunError
from composer.inference.decoders import Hypothesis, Search, decoder
from composer.inference.decoders.beam_search import MAX_BEAM
from composer.inference.decoders.sampling import Seed, sample
from composer.recipe.metrics import METRICS


@decoder(hypotheses=lambda models, settings: settings["samples"])
def mbr(
    search: Search,
    *,
    samples: Annotated[int, Bounds(minimum=2, maximum=MAX_BEAM)] = 16,
    metric: Literal["chrf", "bleu"] = "chrf",
    temperature: Positive = 1.0,
    top_p: PositiveProportion | None = None,
    seed: Seed = 1,
    no_repeat_ngram: Count | None = None,
    max_length: Count = 512,
    max_ratio: Positive = 3.0,
) -> list[list[Hypothesis]]:
    """Minimum Bayes risk: the sample with the highest mean score against all samples (Eikema & Aziz 2020, section 5).

    The mean over the samples is an estimate of the expected score of an answer, which its log-probability is not. Where
    a model makes room for its answer, the answers of different lengths are compared by log-probability.

    Settings:
        samples: samples of each row, which are candidates and references at once; the time grows with their square
        metric: sacreBLEU's score of a sentence by which they are compared; bleu is for words with spaces between
        temperature: what the logits are divided by, above 0; the lower, the more alike the samples
        top_p: draw among the fewest most probable tokens that have this much together (Holtzman et al. 2020)
        seed: where the random numbers start
        no_repeat_ngram: no n-gram of this many tokens occurs twice in an answer, its forced prefix included
        max_length: tokens of an answer at most, eos included; a longer one is cut
        max_ratio: tokens of an answer at most for each token of its source, beside 50 that are always allowed
    """
    if search.n_best > samples:
        fix = f"write `decoding.mbr.samples={search.n_best}` or more"
        raise RunError.of(f"{samples} samples have no {search.n_best} best answers", fix)
    drawing = {"temperature": temperature, "top_p": top_p, "seed": seed, "no_repeat_ngram": no_repeat_ngram}
    rows = sample(search._replace(n_best=samples), **drawing, max_length=max_length, max_ratio=max_ratio)
    return [best_by_utility(search, hypotheses, metric) for hypotheses in rows]


def best_by_utility(search: Search, hypotheses: list[Hypothesis], metric: str) -> list[Hypothesis]:
    """Return the n best of one row's samples by their mean score against all of them, each text once."""
    texts = search.to_texts([hypothesis.ids for hypothesis in hypotheses])
    counts, scorer = Counter(texts), METRICS[metric].scorer(of_sentences=True)
    by_text = dict(zip(reversed(texts), reversed(hypotheses), strict=True))  # of each text the most probable
    candidates = []
    for text in counts:
        total = sum(count * scorer.sentence_score(text, [other]).score for other, count in counts.items())
        hypothesis, utility = by_text[text], total / len(texts)
        candidates.append((utility, hypothesis._replace(normalised=hypothesis.score if search.sizes else utility)))
    candidates.sort(key=lambda pair: -pair[0])
    return [hypothesis for _, hypothesis in candidates[: search.n_best]]
