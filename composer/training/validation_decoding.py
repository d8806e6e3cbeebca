"""Translations during a training: a few validation sentences, greedily, so that it costs little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from composer.data.encoding import Encoded
from composer.data.sources import Pairs
from composer.data.tokenizer import Tokenizers
from composer.inference.decode import SourceIds, decode_all, length_queries, num_positions
from composer.inference.run import Sample
from composer.inference.search import Lengths
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.metrics import text_scores

MAX_SENTENCES = 200
"""Sentences of the validation part, from its start, on which BLEU, chrF and exact match are measured in training."""
MAX_QUERIES = 1000
"""How often the model is asked for them at most, where a search tries several sizes of an answer."""
GREEDY = {"greedy": {"max_length": 256}}


@dataclass(frozen=True)
class RankInfo:
    """Which of the processes that train together this one is, and how it hears what the others have."""

    rank: int
    world: int
    gather: Callable[[list[str]], Sequence[list[str]]]


ALONE = RankInfo(0, 1, lambda own: [own])


@dataclass(frozen=True)
class ValidationDecoder:
    """Translates the first sentences of a part of the data and compares them with their references."""

    encoded: Encoded
    pairs: Pairs
    tokenizers: Tokenizers

    def judge(self, model: EncoderDecoder, part: RankInfo = ALONE) -> tuple[dict[str, float], list[Sample]]:
        """val/exact_match, val/bleu and val/chrf, and the translations; nothing where there is nothing to translate.

        Every process translates its part of the sentences; all of them come to the same answer.
        """
        first = {
            side: [ids[row] for row in range(min(MAX_SENTENCES, len(ids)))]
            for side, ids in self.encoded.sources.items()
        }
        count = num_sentences(model, {side: [*map(num_positions, rows)] for side, rows in first.items()})
        if not count:
            return {}, []
        own = {side: rows[part.rank : count : part.world] for side, rows in first.items()}
        written = interleave(part.gather(self.translated(model, own)), count)
        references = list(self.encoded.lines[:count])
        shown = self.pairs.sides[next(iter(first))]
        samples = [Sample(shown[row], references[row], written[row]) for row in range(count)]
        return {f"val/{name}": score for name, score in text_scores(written, references).items()}, samples

    def translated(self, model: EncoderDecoder, sources: Mapping[str, Sequence[SourceIds]]) -> list[str]:
        """The translations of some sentences, of which there may be none."""
        if not any(sources.values()):
            return []
        return self.tokenizers.decode("target", [best.ids for best, *_ in decode_all([model], sources, GREEDY)])


def interleave(parts: Sequence[list[str]], count: int) -> list[str]:
    """What was dealt out one by one, in order again."""
    return [parts[row % len(parts)][row // len(parts)] for row in range(count)]


def num_sentences(model: EncoderDecoder, lengths: Lengths) -> int:
    """How many sentences are translated; 0 where there is nothing to translate."""
    count = min(map(len, lengths.values()), default=0)
    asked = length_queries([model], lengths, GREEDY, [()] * count)
    return count if len(asked) <= MAX_QUERIES else max(1, asked[MAX_QUERIES].row)
