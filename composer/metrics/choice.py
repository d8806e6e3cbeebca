"""Metrics of decoded texts: those that a recipe names, or those that suit the references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from composer.metrics.bleu import MANY_LINES, NGRAM_WORDS, suggest_bleu_tokenizer
from composer.metrics.references import Compared, References, Texts, compare, references_of
from composer.metrics.table import METRICS

SUITABLE = ("bleu", "chrf", "exact_match", "word_error_rate", "character_error_rate")
"""Metrics of decoded texts among which the references choose, where the recipe names none."""
SHORT_WORDS = 2
"""Words of an answer below which a word error is a wrong answer."""


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

        All are of the same lines, those that have a reference; without such lines there is no
        metric.
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
        """Return sacreBLEU's signatures by `NAME_signature`, with which others get the same score.

        references: Number of references of a line; None where lines have different numbers.
        """
        columns = [["a", "a"], ["a", None]] if references is None else [["a", "a"]] * references
        texts = {}
        for name in self.names:
            if METRICS[name].sacrebleu:
                scorer = METRICS[name].scorer(self.bleu_tokenizer)
                # a signature knows the number of references only after it has scored some
                scorer.corpus_score(["a", "a"], columns)
                texts[f"{name}_signature"] = str(scorer.get_signature())
        return texts


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
    spaced_words = median([len(line.split()) for line in lines] or [0])
    error_rate = "word_error_rate"
    if by_characters or spaced_words < SHORT_WORDS:
        error_rate = "character_error_rate"
    if words >= NGRAM_WORDS:
        names = ("bleu", "chrf", "exact_match")
        return TextMetrics((*names, error_rate) if by_characters else names, bleu_tokenizer)
    reason = (
        f"no BLEU: most references{of} have fewer than four words by its tokenizer"
        f" `{bleu_tokenizer}`"
    )
    if (suggested := suggest_bleu_tokenizer(lines)) != "13a":
        reason += (
            f"; for scripts without spaces write `evaluation: {{bleu_tokenizer: {suggested}}}`"
        )
    return TextMetrics(("exact_match", error_rate, "chrf"), bleu_tokenizer, reason)
