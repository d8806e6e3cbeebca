"""Translations during a training: a few validation sentences, greedily, so that it costs little."""

from __future__ import annotations

from dataclasses import dataclass

from composer.data.encoded import Encoded
from composer.data.pairs import Pairs
from composer.decode import decode_all, positions, questions_of
from composer.decode.sizes import Lengths
from composer.model import EncoderDecoder
from composer.scores import text_scores
from composer.training.module import Seq2Seq
from composer.training.wandb_log import Sample

JUDGED = 200
"""Sentences of the validation part, from its start, on which BLEU, chrF and exact match are measured in training."""
ASKED = 1000
"""How often the model is asked for them at most, where a search tries several sizes of an answer."""
GREEDY = {"greedy": {"max_length": 256}}


@dataclass(frozen=True)
class Judge:
    """Translates the first sentences of a part of the data and compares them with their references."""

    encoded: Encoded
    pairs: Pairs

    def judge(self, module: Seq2Seq) -> tuple[dict[str, float], list[Sample]]:
        """val/exact_match, val/bleu and val/chrf, and the translations; nothing where there is nothing to translate."""
        first = {side: [ids[row] for row in range(min(JUDGED, len(ids)))] for side, ids in self.encoded.sources.items()}
        count = judged(module.model, {side: [*map(positions, rows)] for side, rows in first.items()})
        if not count:
            return {}, []

        sources = {side: rows[:count] for side, rows in first.items()}
        found = decode_all([module.model], sources, GREEDY)
        written = module.tokenizers.decode("target", [best.ids for best, *_ in found])
        references = list(self.encoded.lines[: len(written)])
        shown = self.pairs.sides[next(iter(sources))]
        samples = [Sample(shown[row], references[row], written[row]) for row in range(len(written))]
        return {f"val/{name}": score for name, score in text_scores(written, references).items()}, samples


def judged(model: EncoderDecoder, lengths: Lengths) -> int:
    """How many sentences are translated; 0 where there is nothing to translate."""
    count = min(map(len, lengths.values()), default=0)
    asked = questions_of([model], lengths, GREEDY, [()] * count)
    return count if len(asked) <= ASKED else max(1, asked[ASKED].row)
