"""How good translations are beside their references. The one door to sacreBLEU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_sequence")
"""How the names of metrics end that get better by falling."""
BUCKETS = (10, 20, 30, 40, 50)
"""Where the buckets of source lengths end, in words; the last has no end."""
MEANINGS = {
    "loss": "nats per token; lower is better",
    "perplexity": "exp(loss): choices per token; lower is better",
    "token_accuracy": "tokens foretold, given the true ones before",
    "exact_match": "answers like the reference to the letter",
    "bleu": "0 to 100: runs of 1 to 4 words in common",
    "chrf": "0 to 100: runs of 1 to 6 letters in common",
    "bits_per_sequence": "what an answer costs; lower is better",
}
"""What a score says, in a few words."""


def text_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """exact_match (0 to 1), bleu and chrf (0 to 100) of texts compared line by line; cased, detokenised."""
    if not references:
        return {"exact_match": 0.0, "bleu": 0.0, "chrf": 0.0}
    right = sum(one.strip() == other.strip() for one, other in zip(hypotheses, references, strict=True))
    bleu, chrf = sacrebleu_metrics()
    return {
        "exact_match": right / len(references),
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
    }


class Resampled(NamedTuple):
    """BLEU of one of two systems, half the interval of 95 % of its resampled ones, and for the second the p-value."""

    bleu: float
    interval: float
    p_value: float


def paired_bootstrap(
    written: Sequence[Sequence[str]], references: Sequence[str], resampled: int
) -> tuple[list[Resampled], str]:
    """sacreBLEU's paired bootstrap between two systems (Koehn 2004), and its signature with seed and resamples."""
    from sacrebleu.significance import PairedTest

    systems = [(name, list(lines)) for name, lines in zip(("one", "other"), written, strict=True)]
    test = PairedTest(
        systems, {"bleu": sacrebleu_metrics()[0]}, [list(references)], test_type="bs", n_samples=resampled
    )
    told, scores = test()
    (found,) = (each for name, each in scores.items() if name != "System")
    sides = [Resampled(each.score, each.ci, 1.0 if each.p_value is None else each.p_value) for each in found]
    return sides, str(next(iter(told.values())))


def signatures() -> dict[str, str]:
    """What sacreBLEU says of how its scores were computed, to be printed beside them."""
    found = {}
    for name, metric in zip(("bleu", "chrf"), sacrebleu_metrics(), strict=True):
        metric.corpus_score(["a"], [["a"]])  # a signature knows the number of references only then
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def bleu_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> Iterator[tuple[str, int, float]]:
    """BLEU by the number of words of the source: "1-10", how many lines, their BLEU."""
    buckets = [bucket(len(source.split())) for source in sources]
    bleu = sacrebleu_metrics()[0]
    for name in sorted(set(buckets), key=lambda each: int(each.rstrip("+").split("-")[0])):
        rows = [row for row, each in enumerate(buckets) if each == name]
        found = bleu.corpus_score([hypotheses[row] for row in rows], [[references[row] for row in rows]])
        yield name, len(rows), found.score


def by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[dict[str, Any]]:
    """`bleu_by_length` in the form in which it is told and kept: `{words, lines, bleu}`, the shortest first."""
    found = bleu_by_length(sources, hypotheses, references)
    return [{"words": words, "lines": lines, "bleu": bleu} for words, lines, bleu in found]


def accuracy_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], bits: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """What is right at each length of the source, the shortest first: `{tokens, lines, exact_match, in_place}`.

    exact_match: the share of lines without any fault. in_place: the share of the references' words that stand where
    they should. bits: what each reference costs the model; where they are given, their mean is told as `bits`.
    """
    rows: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        rows.setdefault(len(source.split()), []).append(row)
    found = []
    for tokens in sorted(rows):
        there = rows[tokens]
        told = _accuracy([(hypotheses[row].split(), references[row].split()) for row in there])
        told |= {"bits": sum(bits[row] for row in there) / len(there)} if bits else {}
        found.append({"tokens": tokens, **told})
    return found


def _accuracy(rows: Sequence[tuple[list[str], list[str]]]) -> dict[str, Any]:
    right = sum(one == other for one, other in rows)
    placed = sum(word == wanted for one, other in rows for word, wanted in zip(one, other, strict=False))
    words = sum(len(other) for _, other in rows)
    return {"lines": len(rows), "exact_match": right / len(rows), "in_place": placed / max(words, 1)}


def bucket(words: int) -> str:
    """The bucket of a source of this length: 0, 1-10, ..., 51+."""
    if words == 0:
        return "0"
    end = next((each for each in BUCKETS if words <= each), None)
    return f"{BUCKETS[-1] + 1}+" if end is None else f"{end - 9}-{end}"


def sacrebleu_metrics() -> tuple[Any, Any]:
    """BLEU and chrF as sacreBLEU computes them by default."""
    from sacrebleu.metrics import BLEU, CHRF

    # `force` only keeps it from warning that the text looks tokenised
    return BLEU(force=True), CHRF()


def as_maximised(metric: str, scores: Mapping[str, float]) -> float:
    """A number that is larger where `scores` are better. Losses, perplexities and bits fall, the rest rises."""
    value = scores.get(metric, math.nan)
    return -math.inf if math.isnan(value) else -value if metric.endswith(LOWER_IS_BETTER) else value
