"""Translations during a training: a few validation sentences, greedily, so that it costs little."""

from __future__ import annotations

from dataclasses import dataclass

from composer.data.encoded import Encoded
from composer.data.pairs import Pairs
from composer.decode import decode_all
from composer.scores import text_scores
from composer.training.module import Seq2Seq
from composer.training.wandb_log import Sample

JUDGED = 200
"""Sentences of the validation part, from its start, on which BLEU, chrF and exact match are measured in training."""
GREEDY = {"greedy": {"max_length": 256}}


@dataclass(frozen=True)
class Judge:
    """Translates the first sentences of a part of the data and compares them with their references."""

    encoded: Encoded
    pairs: Pairs

    def judge(self, module: Seq2Seq) -> tuple[dict[str, float], list[Sample]]:
        """val/exact_match, val/bleu and val/chrf, and the translations; nothing where there is nothing to translate."""
        sources = {
            side: [ids[row] for row in range(min(JUDGED, len(ids)))] for side, ids in self.encoded.sources.items()
        }
        if not sources:
            return {}, []

        found = decode_all([module.model], sources, GREEDY)
        written = module.tokenizers.decode("target", [best.ids for best, *_ in found])
        references = list(self.encoded.lines[: len(written)])
        shown = self.pairs.sides[next(iter(sources))]
        samples = [Sample(shown[row], references[row], written[row]) for row in range(len(written))]
        return {f"val/{name}": score for name, score in text_scores(written, references).items()}, samples
