"""The table of metrics: one entry each with unit, direction, format and formula.

All that computes or shows scores reads it, and so do recipes, which name metrics
(`early_stopping.metric`) and are checked without torch. sacreBLEU is imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from composer.formatting import significant
from composer.metrics.references import References, Texts, error_rate, exact_match

Sums = Mapping[str, float]
"""Sums over a split with teacher forcing.

`loss` (nats) and `tokens` over target tokens, `right` of them where every token has a probability,
and the number of answers, `rows`; where these are vectors of bits, also their cost in `bits`; of
texts without a source also `words`, `characters` and `bytes`, each with one for the end of every
document.
"""
SAMPLE = "val_sample"
"""Prefix, in place of `val`, of scores of the validation lines that a training decodes."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """An entry of `METRICS`, computed by `from_sums`, `from_texts` or a metric of sacreBLEU.

    label: What tables, charts and progress lines call it.
    meaning: What it measures, in one line.
    unit: Its unit, or its range.
    format: Writes a value for people to read.
    from_sums: Computes it from the sums of a teacher-forced pass.
    from_texts: Computes it from decoded texts and their references, as `compare` returns them; one
        text or more.
    sacrebleu: Names a class of `sacrebleu.metrics`.
    by_tokenizer: Whether that class reads words by `evaluation.bleu_tokenizer`.
    needs: The outputs that it is defined on: any tokens, translations, vectors of bits, texts
        without a source, or logits of all tokens.
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
    from_texts: Callable[[Texts, References], float] | None = None
    sacrebleu: str = ""
    by_tokenizer: bool = False
    needs: Literal["tokens", "translations", "bits", "texts", "logits"] = "tokens"
    lower_is_better: bool = False
    highest: float | None = None
    chart: str = ""
    logarithmic: bool = False
    hub: str = ""

    def scorer(self, bleu_tokenizer: str = "13a", of_sentences: bool = False) -> Any:
        """Return a new metric object of sacreBLEU.

        of_sentences: Whether BLEU counts only n-grams that a sentence can have.
        """
        import sacrebleu.metrics

        # `force` changes no score; without it, BLEU warns where a text looks tokenised
        arguments = {"tokenize": bleu_tokenizer, "force": True, "effective_order": of_sentences}
        create = getattr(sacrebleu.metrics, self.sacrebleu)
        return create(**arguments) if self.by_tokenizer else create()


def _loss(sums: Sums) -> float:
    return sums["loss"] / sums["tokens"]


_Cost = partial(Metric, format=partial(significant, digits=4), lower_is_better=True)
_Share = partial(Metric, unit="0 to 1", format="{:.1%}".format, highest=1.0, chart="Accuracy")
_OfCorpus = partial(
    Metric, unit="0 to 100", format="{:.2f}".format, needs="translations", chart="BLEU and chrF"
)
_ErrorRate = partial(
    _Share,
    unit="0 to 1, or more",
    highest=None,
    needs="translations",
    lower_is_better=True,
    chart="Error rates",
)


def _bits_per(unit: str) -> Metric:
    meaning = (
        f"negative log2-likelihood per {unit} of the text that the tokens hold, ends counted; lower"
        " is better"
    )
    bits = lambda sums: sums["loss"] / sums[f"{unit}s"] / math.log(2)  # noqa: E731
    return _Cost(
        label=f"bits per {unit}",
        meaning=meaning,
        unit="bits",
        from_sums=bits,
        needs="texts",
        chart="Bits",
    )


METRICS: dict[str, Metric] = {
    "loss": _Cost(
        label="loss",
        meaning="cross-entropy per target token; lower is better",
        unit="nats per token",
        from_sums=_loss,
    ),
    "perplexity": _Cost(
        label="perplexity",
        meaning="exp(loss); lower is better",
        unit="per token",
        from_sums=lambda sums: math.exp(min(_loss(sums), 700.0)),  # exp(710) is no float any more
        logarithmic=True,
        hub="perplexity",
    ),
    "word_perplexity": _Cost(
        label="word perplexity",
        meaning=(
            "exp of the loss per word between spaces, ends counted, whatever the tokens are; lower"
            " is better"
        ),
        unit="per word",
        from_sums=lambda sums: math.exp(min(sums["loss"] / sums["words"], 700.0)),
        needs="texts",
        logarithmic=True,
    ),
    "bits_per_byte": _bits_per("byte"),
    "bits_per_character": _bits_per("character"),
    "token_accuracy": _Share(
        label="token accuracy",
        meaning="next-token accuracy with teacher forcing",
        from_sums=lambda sums: sums["right"] / sums["tokens"],
        needs="logits",
        hub="accuracy",
    ),
    "exact_match": _Share(
        label="exact match",
        meaning="outputs identical to the reference, of lines that have one",
        from_texts=exact_match,
        needs="translations",
        hub="exact_match",
    ),
    "bleu": _OfCorpus(
        label="BLEU",
        meaning="word n-grams shared with the reference, n = 1 to 4",
        sacrebleu="BLEU",
        by_tokenizer=True,
        highest=100.0,
        hub="bleu",
    ),
    "chrf": _OfCorpus(
        label="chrF",
        meaning="character n-grams shared with the reference, n = 1 to 6",
        sacrebleu="CHRF",
        highest=100.0,
        hub="chrf",
    ),
    "ter": _OfCorpus(
        label="TER (caseless)",
        meaning=(
            "edits of words and shifts that make the reference, case ignored, per 100 words; lower"
            " is better"
        ),
        unit="0 to 100, or more",
        sacrebleu="TER",
        lower_is_better=True,
        chart="",
        hub="ter",
    ),
    "word_error_rate": _ErrorRate(
        label="word error rate",
        meaning="edits of words that make the reference, per word of it; lower is better",
        from_texts=error_rate("wer"),
        hub="wer",
    ),
    "character_error_rate": _ErrorRate(
        label="character error rate",
        meaning="edits of characters that make the reference, per character of it; lower is better",
        from_texts=error_rate("cer"),
        hub="cer",
    ),
    "bits_per_sequence": _Cost(
        label="bits per sequence",
        meaning="negative log2-likelihood of a reference; lower is better",
        unit="bits",
        from_sums=lambda sums: sums["bits"] / sums["rows"],
        needs="bits",
        logarithmic=True,
    ),
}
"""Every metric by its name. Scores of a whole part are logged as `val/NAME` and `test/NAME`."""
METRICS_BY_LENGTH = {
    "bleu": METRICS["bleu"],
    "exact_match": METRICS["exact_match"],
    "positional_accuracy": _Share(
        label="positional accuracy",
        meaning="reference words that the output has at the same position",
    ),
    "bits": METRICS["bits_per_sequence"],
}
"""Metrics of scores by source length; a row also has `words`, the length, and `lines`."""
_Bound = partial(
    Metric, unit="per token", format=partial(significant, digits=4), lower_is_better=True
)
TEXT_SCORES: dict[str, Metric] = {
    "unknown_share": Metric(
        label="unknown share",
        meaning=(
            "tokens that the tokenizer does not know, of all but the ends of documents; lower is"
            " better"
        ),
        unit="0 to 1",
        format="{:.1%}".format,
        lower_is_better=True,
    ),
    "perplexity_low": _Bound(
        label="perplexity, low", meaning="lower end of its 95 % interval over documents"
    ),
    "perplexity_high": _Bound(
        label="perplexity, high", meaning="upper end of its 95 % interval over documents"
    ),
}
"""Scores of texts that say how far a metric can be trusted.

No training watches them, and no sweep ranks by them.
"""


def metric_name(key: str) -> str:
    """Return the name in a key such as `val/bleu`."""
    return key.rpartition("/")[2]


def metric_of(key: str) -> Metric | None:
    """Return the metric of a key such as `val/bleu`, or None if it is not a metric."""
    return METRICS.get(metric_name(key))


def score_entry(key: str) -> Metric | None:
    """Return the entry of a score such as `test/bleu` or `test/unknown_share`; None without one."""
    return metric_of(key) or TEXT_SCORES.get(metric_name(key))


def text_metrics() -> list[str]:
    """Return the names of the metrics that are computed from decoded texts."""
    return [name for name, metric in METRICS.items() if metric.from_sums is None]


def validation_keys() -> list[str]:
    """Return the keys that a validation can measure: of the whole part, and of a sample of it."""
    return [*(f"val/{name}" for name in METRICS), *(f"{SAMPLE}/{name}" for name in text_metrics())]


def training_key(key: str) -> str:
    """Return the key under which a training logs `val/bleu` and the like: texts are of a sample."""
    return key.replace("val/", f"{SAMPLE}/") if metric_name(key) in text_metrics() else key


def decodes_all(watched: str) -> bool:
    """True if a training that watches this key decodes all validation lines."""
    return watched != training_key(watched)


def logged_key(rows: Sequence[Mapping[str, object]], key: str) -> str:
    """Return the key under which a training's rows have a metric: that of a sample, or its own."""
    sampled = training_key(key)
    return sampled if any(sampled in row for row in rows) else key


def is_share(key: str) -> bool:
    """True if a metric is written in percent; so is an error rate, which can exceed 100 %."""
    metric = metric_of(key)
    return metric is not None and metric.format(1).endswith("%")


def as_maximised(key: str, scores: Mapping[str, float]) -> float:
    """Return a number that is larger where a score is better; -inf for a missing or NaN score."""
    value, metric = scores.get(key, math.nan), metric_of(key)
    if math.isnan(value):
        return -math.inf
    return -value if metric and metric.lower_is_better else value


def best_validation(
    key: str, validations: Sequence[Mapping[str, float]]
) -> Mapping[str, float] | None:
    """Return the best validation by a key, ties broken by val/loss; None if never measured."""

    def rank(scores: Mapping[str, float]) -> tuple[float, float]:
        return as_maximised(key, scores), as_maximised("val/loss", scores)

    return max(validations, key=rank) if any(key in scores for scores in validations) else None


def token_scores(sums: Sums) -> dict[str, float]:
    """Return every metric that is computed from these sums."""
    # sums that not every measurement has
    needed = {"bits": "bits", "texts": "words", "logits": "right"}
    metrics = {
        name: metric for name, metric in METRICS.items() if needed.get(metric.needs, "loss") in sums
    }
    return {name: metric.from_sums(sums) for name, metric in metrics.items() if metric.from_sums}


def format_score(key: str, value: float) -> str:
    """Write a score as its metric is written; one of no metric in four digits."""
    metric = metric_of(key)
    return metric.format(value) if metric else f"{value:.4g}"


def format_scores(row: Mapping[str, float]) -> str:
    """Write the scores of a row on one line, with labels; those of training are left out."""
    parts: dict[bool, list[str]] = {False: [], True: []}  # by whether they are of a sample
    for key, value in row.items():
        if metric_of(key) and not key.startswith("train/"):
            label = METRICS[metric_name(key)].label
            parts[key.startswith(SAMPLE)].append(f"{label} {format_score(key, value)}")
    return "; of a sample: ".join("  ".join(texts) for texts in parts.values() if texts)
