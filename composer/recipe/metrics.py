"""The table of metrics: one entry each (unit, direction, format, formula), read by all that
computes or shows scores.

Recipes name metrics (`early_stopping.metric`) and are checked without torch, so the table lies this
low. It is the one door to sacreBLEU, which is imported on first use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from composer.formatting import significant
from composer.recipe.text_lines import is_blank

Sums = Mapping[str, float]
"""Sums over a split with teacher forcing: `loss` (nats) and `tokens` over target tokens, `right` of
them where every
token has a probability, and the number of answers, `rows`; where these are vectors of bits, also
their cost in `bits`;
of texts without a source also `words`, `characters` and `bytes`, each with one for the end of every
document."""
Texts = Sequence[str]
References = Sequence[Sequence[str | None]]
"""One or more references of each line: sequences of lines, each as long as the others. A blank one
is none.
"""
SAMPLE = "val_sample"
"""Prefix of the scores of those validation lines that are decoded in training, in place of `val`.
"""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """An entry of `METRICS`: what is computed from either `from_sums`, `from_texts` or a metric of
    sacreBLEU.

    label: What tables, charts and progress lines call it.
    meaning: What it measures, in one line.
    unit: Its unit, or its range.
    format: Writes a value for people to read.
    from_sums: Computes it from the sums of a teacher-forced pass.
    from_texts: Computes it from decoded texts and their references, as `compare` returns them; one
    text or more. sacrebleu: Names a class of `sacrebleu.metrics`.
    by_tokenizer: Whether that class reads words by `evaluation.bleu_tokenizer`.
    needs: What it is defined on: any tokens, translations, vectors of bits, texts without a source,
    or logits of all. lower_is_better: Its direction.
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
        """Return a new metric object of sacreBLEU. of_sentences: BLEU only counts n-grams that a
        sentence can have.
        """
        import sacrebleu.metrics

        # `force` changes no score; without it, BLEU warns where a text looks tokenised
        arguments = {"tokenize": bleu_tokenizer, "force": True, "effective_order": of_sentences}
        return getattr(sacrebleu.metrics, self.sacrebleu)(
            **(arguments if self.by_tokenizer else {})
        )


def _loss(sums: Sums) -> float:
    return sums["loss"] / sums["tokens"]


class Compared(NamedTuple):
    """The outputs that have a reference, with their references: what every metric of texts is
    computed from.

    rows: The numbers of their lines.
    references: Columns, the first of which has a text for each output; None where a line has fewer
    than others.
    """

    rows: list[int]
    hypotheses: list[str]
    references: list[list[str | None]]

    @property
    def per_line(self) -> int | None:
        """How many references each output has; None where some have more than others."""
        return None if any(None in column for column in self.references) else len(self.references)


def references_of(row: Sequence[str | None]) -> list[str]:
    """Return the references of one line: those of its texts that are not blank."""
    return [text for text in row if text is not None and not is_blank(text)]


def compare(hypotheses: Texts, references: References) -> Compared:
    """Return the outputs whose lines have a reference, and these; a blank text is no reference."""
    rows = [references_of(row) for row in zip(*references, strict=True)]
    scored = [
        (at, text, of) for at, (text, of) in enumerate(zip(hypotheses, rows, strict=True)) if of
    ]
    columns = [list(column) for column in zip_longest(*(of for _, _, of in scored))]
    return Compared([at for at, _, _ in scored], [text for _, text, _ in scored], columns)


def is_exact(text: str, references: Sequence[str | None]) -> bool:
    """Return whether an output equals a reference of its line; spaces around them do not count."""
    return text.strip() in map(str.strip, references_of(references))


def _exact_match(hypotheses: Texts, references: References) -> float:
    rows = zip(*references, strict=True)
    return sum(map(is_exact, hypotheses, rows)) / len(hypotheses)


def _error_rate(name: str) -> Callable[[Texts, References], float]:
    """Return jiwer's error rate of this name; of several references of a line the closest one
    counts.
    """

    def compute(hypotheses: Texts, references: References) -> float:
        import jiwer

        rate = getattr(jiwer, name)
        closest = [
            min(references_of(of), key=lambda reference: rate(reference, text))
            for text, *of in zip(hypotheses, *references, strict=True)
        ]
        return float(rate(closest, list(hypotheses)))

    return compute


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
        from_texts=_exact_match,
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
        from_texts=_error_rate("wer"),
        hub="wer",
    ),
    "character_error_rate": _ErrorRate(
        label="character error rate",
        meaning="edits of characters that make the reference, per character of it; lower is better",
        from_texts=_error_rate("cer"),
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
"""Metrics of the rows of scores by source length; beside them a row has `words`, the length, and
`lines`.
"""


def metric_name(key: str) -> str:
    """Return the name in a key such as `val/bleu`."""
    return key.rpartition("/")[2]


def metric_of(key: str) -> Metric | None:
    """Return the metric of a key such as `val/bleu`, or None if it is not a metric."""
    return METRICS.get(metric_name(key))


def text_metrics() -> list[str]:
    """Return the names of the metrics that are computed from decoded texts."""
    return [name for name, metric in METRICS.items() if metric.from_sums is None]


def validation_keys() -> list[str]:
    """Return what a validation can measure: metrics of the whole part, and those of a sample of it."""
    return [*(f"val/{name}" for name in METRICS), *(f"{SAMPLE}/{name}" for name in text_metrics())]


def training_key(key: str) -> str:
    """Return the key under which a training logs a metric such as `val/bleu`: decoded texts are of
    a sample.
    """
    return key.replace("val/", f"{SAMPLE}/") if metric_name(key) in text_metrics() else key


def decodes_all(watched: str) -> bool:
    """Return whether a training that watches a metric such as `val/bleu` decodes all validation
    lines for it.
    """
    return watched != training_key(watched)


def logged_key(rows: Sequence[Mapping[str, object]], key: str) -> str:
    """Return the key under which a training's rows have a metric such as `val/bleu`: that of a
    sample, or its own.
    """
    sampled = training_key(key)
    return sampled if any(sampled in row for row in rows) else key


def is_share(key: str) -> bool:
    """Return whether the metric of a key is written in percent; an error rate is, which can exceed
    100 %.
    """
    metric = metric_of(key)
    return metric is not None and metric.format(1).endswith("%")


def as_maximised(key: str, scores: Mapping[str, float]) -> float:
    """Return a number that is larger where `scores` are better by this key; -inf for a missing or
    NaN score.
    """
    value = scores.get(key, math.nan)
    metric = metric_of(key)
    return (
        -math.inf if math.isnan(value) else -value if metric and metric.lower_is_better else value
    )


def best_validation(
    key: str, validations: Sequence[Mapping[str, float]]
) -> Mapping[str, float] | None:
    """Return the best of the validations by this key, ties broken by val/loss; None if it was never
    measured.
    """
    if not any(key in scores for scores in validations):
        return None
    return max(
        validations,
        key=lambda scores: (as_maximised(key, scores), as_maximised("val/loss", scores)),
    )


def token_scores(sums: Sums) -> dict[str, float]:
    """Return every metric that is computed from these sums."""
    # sums that not every measurement has
    needed = {"bits": "bits", "texts": "words", "logits": "right"}
    metrics = {
        name: metric for name, metric in METRICS.items() if needed.get(metric.needs, "loss") in sums
    }
    return {name: metric.from_sums(sums) for name, metric in metrics.items() if metric.from_sums}


SUITABLE = ("bleu", "chrf", "exact_match", "word_error_rate", "character_error_rate")
"""Metrics of decoded texts among which the references choose, where the recipe names none."""
MANY_LINES = 1000
"""References that are looked at to choose metrics."""
NGRAM_WORDS, SHORT_WORDS = 4, 2
"""Words of an answer from which on BLEU says something; below the second, a word error is a wrong
answer.
"""
LONG_WORD = 8
"""Characters that words have on average where no spaces part them."""
UNSPACED_SCRIPTS = {
    "ja-mecab": re.compile("[\u3040-\u30ff]"),  # kana
    # Thai, Lao, Tibetan, Burmese, Khmer
    "char": re.compile("[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff]"),
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),  # Han
}
"""Characters of scripts that are written without spaces, by the tokenizer of BLEU that suits them.
"""
TOKENIZER_PACKAGES = {
    "ja-mecab": ("MeCab", "sacrebleu[ja]"),
    "flores200": ("sentencepiece", "sentencepiece"),
}
"""The module that a tokenizer of BLEU needs besides sacreBLEU, and what installs it."""
KANA = 0.1
"""Share of kana above which Han characters are Japanese."""


def is_downloaded(word: str) -> bool:
    """Return whether the pieces of a tokenizer of BLEU, which it downloads once, are on this
    machine.
    """
    from sacrebleu.tokenizers.tokenizer_spm import SACREBLEU_DIR, SPM_MODELS

    return Path(SACREBLEU_DIR, "models", Path(SPM_MODELS[word]["url"]).name).exists()


@dataclass(frozen=True)
class TextMetrics:
    """The metrics of decoded texts, the one that suits the texts best first.

    `left_out` says why BLEU is not among them; "" if it is, or was not asked for.
    """

    names: tuple[str, ...]
    bleu_tokenizer: str
    left_out: str = ""

    def scores(self, hypotheses: Texts, references: References) -> dict[str, float]:
        """Return every metric of these texts, compared line by line and detokenised.

        All are of the same lines, those that have a reference; of none there is no metric.
        """
        compared = compare(hypotheses, references)
        return {name: self.score(name, compared) for name in self.names} if compared.rows else {}

    def score(self, name: str, compared: Compared) -> float:
        """Return one metric of outputs with their references, one or more."""
        metric, (_, hypotheses, references) = METRICS[name], compared
        if metric.from_texts is not None:
            return metric.from_texts(hypotheses, references)
        return float(metric.scorer(self.bleu_tokenizer).corpus_score(hypotheses, references).score)

    def signatures(self, references: int | None = 1) -> dict[str, str]:
        """Return sacreBLEU's signatures by `NAME_signature`: the settings with which others compute
        the same score.

        references: How many a line has; None where lines have different numbers.
        """
        columns = [["a", "a"], ["a", None]] if references is None else [["a", "a"]] * references
        texts = {}
        for name in (name for name in self.names if METRICS[name].sacrebleu):
            scorer = METRICS[name].scorer(self.bleu_tokenizer)
            # a signature knows their number only afterwards
            scorer.corpus_score(["a", "a"], columns)
            texts[f"{name}_signature"] = str(scorer.get_signature())
        return texts


def suggest_bleu_tokenizer(lines: Texts) -> str:
    """Return the tokenizer of BLEU that suits a text: `13a`, or another one where no spaces part
    its words.
    """
    text = "".join(lines[:MANY_LINES])
    letters, words = (
        sum(map(str.isalnum, text)),
        sum(len(line.split()) for line in lines[:MANY_LINES]),
    )
    counts = {name: len(script.findall(text)) for name, script in UNSPACED_SCRIPTS.items()}
    if sum(counts.values()) <= letters / 2 or len(text) <= LONG_WORD * words:
        return "13a"
    return (
        "ja-mecab"
        if counts["ja-mecab"] > KANA * letters
        else max(counts, key=lambda name: counts[name])
    )


TOKENISED_LINES = 100
"""Lines that end in ` .` from which on sacreBLEU takes a text for a tokenised one."""


def describe_tokenised(references: References) -> str:
    """Return in words that references look tokenised, as sacreBLEU warns of outputs; "" if they do
    not.
    """
    count = max(
        (sum((line or "").endswith(" .") for line in column) for column in references), default=0
    )
    if count < TOKENISED_LINES:
        return ""
    return (
        f"{count:,} references end in ` .`, as tokenised text does: BLEU is to be of detokenised"
        " text"
    )


def describe_short(compared: Compared, bleu_tokenizer: str) -> str:
    """Return in words that BLEU is 0, however good outputs are, as they or the references are
    short; "" if not.
    """
    split = METRICS["bleu"].scorer(bleu_tokenizer).tokenizer
    of_references = [line for column in compared.references for line in column if line]
    for noun, lines in (("reference", of_references), ("output", compared.hypotheses)):
        if not any(len(split(line).split()) >= NGRAM_WORDS for line in lines):
            return (
                f"no {noun} has {NGRAM_WORDS} words by BLEU's tokenizer `{bleu_tokenizer}`, and so"
                " BLEU is 0"
            )
    return ""


def choose_metrics(
    references: Texts,
    metrics: Sequence[str] | None,
    bleu_tokenizer: str,
    by_characters: bool = False,
    of: str = "",
) -> TextMetrics:
    """Return the metrics of these names; without them, those that suit the references.

    BLEU is there only where most references have four words or more by its tokenizer; exact match
    comes first where they have not. Error rates are of characters for answers of one word and
    models that write characters (`by_characters`), else of words for answers that are too short for
    BLEU. of: The references' split, " of val".
    """
    if metrics is not None:
        return TextMetrics(tuple(metrics), bleu_tokenizer)
    split = METRICS["bleu"].scorer(bleu_tokenizer).tokenizer
    lines = references_of(references[:MANY_LINES])
    words = median([len(split(line).split()) for line in lines] or [0])
    spaced = median([len(line.split()) for line in lines] or [0])
    error_rate = (
        "character_error_rate" if by_characters or spaced < SHORT_WORDS else "word_error_rate"
    )
    if words >= NGRAM_WORDS:
        return TextMetrics(
            ("bleu", "chrf", "exact_match", *([error_rate] if by_characters else [])),
            bleu_tokenizer,
        )
    reason = (
        f"no BLEU: most references{of} have fewer than four words by its tokenizer"
        f" `{bleu_tokenizer}`"
    )
    if (suggested := suggest_bleu_tokenizer(lines)) != "13a":
        reason += (
            f"; for scripts without spaces write `evaluation: {{bleu_tokenizer: {suggested}}}`"
        )
    return TextMetrics(("exact_match", error_rate, "chrf"), bleu_tokenizer, reason)


def format_score(key: str, value: float) -> str:
    """Write a score as its metric is written; one of no metric in four digits."""
    metric = metric_of(key)
    return metric.format(value) if metric else f"{value:.4g}"


def format_scores(row: Mapping[str, float]) -> str:
    """Write the scores of a row on one line, each by the label and in the format of its metric;
    none of training.
    """
    keys = [key for key in row if not key.startswith("train/") and metric_of(key)]
    scores = {
        key: f"{METRICS[metric_name(key)].label} {format_score(key, row[key])}" for key in keys
    }
    parts = (
        [text for key, text in scores.items() if key.startswith(SAMPLE) == of_sample]
        for of_sample in (False, True)
    )
    return "; of a sample: ".join("  ".join(texts) for texts in parts if texts)


def paired_bootstrap(
    systems: Sequence[Texts], references: References, resamples: int, bleu_tokenizer: str
) -> tuple[list[Any], str]:
    """Return sacreBLEU's paired bootstrap of two systems (Koehn 2004), and its signature with seed
    and resamples.

    A result has the BLEU of a system, `score`, half the width of its 95 % interval, `ci`, and for
    the second system the `p_value`.
    """
    from sacrebleu.significance import PairedTest

    named = [(name, list(lines)) for name, lines in zip(("one", "other"), systems, strict=True)]
    metrics = {"bleu": METRICS["bleu"].scorer(bleu_tokenizer)}
    test = PairedTest(
        named, metrics, [list(lines) for lines in references], test_type="bs", n_samples=resamples
    )
    settings, scores = test()
    (results,) = (value for name, value in scores.items() if name != "System")
    return results, str(next(iter(settings.values())))
