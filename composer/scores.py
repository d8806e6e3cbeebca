"""How good texts are: BLEU and chrF as sacreBLEU has them, and exact matches. The one door to sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF


def text_scores(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """exact_match (0 to 1), bleu and chrf (0 to 100) of texts that are compared line by line; cased, detokenised."""
    return {
        "exact_match": sum(map(str.__eq__, written, references)) / max(1, len(references)),
        "bleu": bleu(written, references),
        "chrf": float(CHRF().corpus_score(list(written), [list(references)]).score),
    }


def bleu(written: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU, 0 to 100; 0 where there are no lines."""
    return float(BLEU(force=True).corpus_score(list(written), [list(references)]).score) if written else 0.0


def signatures() -> dict[str, str]:
    """The signatures of the metrics, with which others can compute the same."""
    found = {}
    for name, metric in (("bleu", BLEU(force=True)), ("chrf", CHRF())):
        metric.corpus_score(["a"], [["a"]])
        found[name] = str(metric.get_signature())
    return found
