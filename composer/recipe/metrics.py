"""The table of metrics: one entry each (unit, direction, format, formula), read by all that computes or shows scores.

Recipes name metrics (`early_stopping.metric`) and are checked without torch, so the table lies this low. It is the one
door to sacreBLEU, which is imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from composer.formatting import significant

Sums = Mapping[str, float]
"""Sums over a split with teacher forcing: `loss` (nats), `right` and `tokens` over target tokens; where answers are
vectors of bits, also their cost in `bits` and the number of answers, `rows`."""
Texts = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """An entry of `METRICS`: what is computed from either `from_sums`, `from_texts` or a metric of sacreBLEU.

    label: What tables, charts and progress lines call it.
    meaning: What it measures, in one line.
    unit: Its unit, or its range.
    format: Writes a value for people to read.
    from_sums: Computes it from the sums of a teacher-forced pass.
    from_texts: Computes it from decoded texts and their references.
    sacrebleu: Names a class of `sacrebleu.metrics`, with the arguments in `arguments`.
    needs: The output that it is defined on: any tokens, translations of a source, or vectors of bits.
    lower_is_better: Its direction.
    highest: Its largest possible value, if it has one.
    chart: The learning-curve chart that it is drawn on; its own, by default.
    logarithmic: Whether that chart has a logarithmic axis.
    hub: Its name on the Hugging Face hub, where it has one of its own.
    """

    label: str
    meaning: str
    unit: str
    format: Callable[[float], str]
    from_sums: Callable[[Sums], float] | None = None
    from_texts: Callable[[Texts, Texts], float] | None = None
    sacrebleu: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()
    needs: Literal["tokens", "translations", "bits"] = "tokens"
    lower_is_better: bool = False
    highest: float | None = None
    chart: str = ""
    logarithmic: bool = False
    hub: str = ""

    def scorer(self) -> Any:
        """Return a new metric object of sacreBLEU."""
        import sacrebleu.metrics

        return getattr(sacrebleu.metrics, self.sacrebleu)(**dict(self.arguments))

    def compare(self, hypotheses: Texts, references: Texts) -> float:
        """Return the score of texts beside their references; 0 of no texts."""
        if not references:
            return 0.0
        if self.from_texts is not None:
            return self.from_texts(hypotheses, references)
        return float(self.scorer().corpus_score(hypotheses, [references]).score)


def _loss(sums: Sums) -> float:
    return sums["loss"] / sums["tokens"]


def _exact_match(hypotheses: Texts, references: Texts) -> float:
    equal = sum(text.strip() == reference.strip() for text, reference in zip(hypotheses, references, strict=True))
    return equal / len(references)


_Cost = partial(Metric, format=partial(significant, digits=4), lower_is_better=True)
_Share = partial(Metric, unit="0 to 1", format="{:.1%}".format, highest=1.0, chart="Accuracy")
_OfCorpus = partial(
    Metric, unit="0 to 100", format="{:.2f}".format, needs="translations", highest=100.0, chart="BLEU and chrF"
)
METRICS: dict[str, Metric] = {
    "loss": _Cost(
        label="loss", meaning="cross-entropy per target token; lower is better", unit="nats per token", from_sums=_loss
    ),
    "perplexity": _Cost(
        label="perplexity",
        meaning="exp(loss); lower is better",
        unit="per token",
        from_sums=lambda sums: math.exp(min(_loss(sums), 700.0)),  # exp(710) is no float any more
        logarithmic=True,
        hub="perplexity",
    ),
    "token_accuracy": _Share(
        label="token accuracy",
        meaning="next-token accuracy with teacher forcing",
        from_sums=lambda sums: sums["right"] / sums["tokens"],
        hub="accuracy",
    ),
    "exact_match": _Share(
        label="exact match",
        meaning="outputs identical to the reference",
        from_texts=_exact_match,
        needs="translations",
        hub="exact_match",
    ),
    "bleu": _OfCorpus(
        label="BLEU",
        meaning="word n-grams shared with the reference, n = 1 to 4",
        sacrebleu="BLEU",
        arguments=(("force", True),),  # changes no score; without it, it warns where a text looks tokenised
        hub="bleu",
    ),
    "chrf": _OfCorpus(
        label="chrF", meaning="character n-grams shared with the reference, n = 1 to 6", sacrebleu="CHRF", hub="chrf"
    ),
    "bits_per_sequence": _Cost(
        label="bits per sequence",
        meaning="negative log2-likelihood of an answer; lower is better",
        unit="bits",
        from_sums=lambda sums: sums["bits"] / sums["rows"],
        needs="bits",
        logarithmic=True,
    ),
}
"""Every metric by its name. Scores are logged as `val/NAME` and `test/NAME`, in this order."""
METRICS_BY_LENGTH = {
    "bleu": METRICS["bleu"],
    "exact_match": METRICS["exact_match"],
    "positional_accuracy": _Share(
        label="positional accuracy", meaning="reference words that the output has at the same position"
    ),
    "bits": METRICS["bits_per_sequence"],
}
"""Metrics of the rows of scores by source length; beside them a row has `words`, the length, and `lines`."""


def metric_of(key: str) -> Metric | None:
    """Return the metric of a key such as `val/bleu`, or None if it is not a metric."""
    return METRICS.get(key.rpartition("/")[2])


def is_share(key: str) -> bool:
    """Return whether the metric of a key runs from 0 to 1."""
    metric = metric_of(key)
    return metric is not None and metric.highest == 1


def as_maximised(key: str, scores: Mapping[str, float]) -> float:
    """Return a number that is larger where `scores` are better by this key; -inf for a missing or NaN score."""
    value = scores.get(key, math.nan)
    metric = metric_of(key)
    return -math.inf if math.isnan(value) else -value if metric and metric.lower_is_better else value


def token_scores(sums: Sums) -> dict[str, float]:
    """Return every metric that is computed from these sums."""
    return {
        name: metric.from_sums(sums)
        for name, metric in METRICS.items()
        if metric.from_sums is not None and (metric.needs != "bits" or "bits" in sums)
    }


def text_scores(hypotheses: Texts, references: Texts) -> dict[str, float]:
    """Return every metric of decoded texts, compared line by line; cased and detokenised."""
    return {
        name: metric.compare(hypotheses, references) for name, metric in METRICS.items() if metric.from_sums is None
    }


def format_score(key: str, value: float) -> str:
    """Write a score as its metric is written; one of no metric in four digits."""
    metric = metric_of(key)
    return metric.format(value) if metric else f"{value:.4g}"


def format_scores(row: Mapping[str, float]) -> str:
    """Write the scores of a row on one line, each by the label and in the format of its metric."""
    scores = {key.partition("/")[2]: value for key, value in row.items() if key.startswith(("val/", "test/"))}
    measured = [(metric, scores[name]) for name, metric in METRICS.items() if name in scores]
    return "  ".join(f"{metric.label} {metric.format(score)}" for metric, score in measured)


def signatures() -> dict[str, str]:
    """Return sacreBLEU's signatures by `NAME_signature`: the settings with which others compute the same score."""
    names = {}
    for name, metric in METRICS.items():
        if metric.sacrebleu:
            scorer = metric.scorer()
            scorer.corpus_score(["a"], [["a"]])  # a signature knows the number of references only afterwards
            names[f"{name}_signature"] = str(scorer.get_signature())
    return names


def paired_bootstrap(systems: Sequence[Texts], references: Texts, resamples: int) -> tuple[list[Any], str]:
    """Return sacreBLEU's paired bootstrap of two systems (Koehn 2004), and its signature with seed and resamples.

    A result has the BLEU of a system, `score`, half the width of its 95 % interval, `ci`, and for the second system
    the `p_value`.
    """
    from sacrebleu.significance import PairedTest

    named = [(name, list(lines)) for name, lines in zip(("one", "other"), systems, strict=True)]
    metrics = {"bleu": METRICS["bleu"].scorer()}
    test = PairedTest(named, metrics, [list(references)], test_type="bs", n_samples=resamples)
    settings, scores = test()
    (results,) = (value for name, value in scores.items() if name != "System")
    return results, str(next(iter(settings.values())))
