"""Greedy decoding of the first validation sentences during training, for BLEU, chrF, exact match and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer.data.encoding import Encoded
from composer.data.sources import Pairs
from composer.data.tokenizer import Tokenizers
from composer.inference.decode import SourceIds, decode_all, length_queries, num_positions
from composer.inference.run import Sample
from composer.inference.search import Lengths
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.metrics import text_scores
from composer.training.distributed import Ranks

MAX_SENTENCES = 200
"""Sentences that are decoded at most, from the start of the validation part."""
MAX_QUERIES = 1000
"""Searches at most, where one sentence takes several: a search for each candidate length of its answer."""
GREEDY = {"greedy": {"max_length": 256}}


@dataclass(frozen=True)
class ValidationDecoder:
    """Decoder of the first validation sentences, which compares the outputs with their references."""

    encoded: Encoded
    pairs: Pairs
    tokenizers: Tokenizers

    def evaluate(self, model: EncoderDecoder, ranks: Ranks) -> tuple[dict[str, float], list[Sample]]:
        """Return val/exact_match, val/bleu and val/chrf, and the samples; both empty where nothing can be decoded.

        Every rank decodes its part of the sentences; all of them return the same. A collective call.
        """
        sources = {
            side: [ids[row] for row in range(min(MAX_SENTENCES, len(ids)))]
            for side, ids in self.encoded.sources.items()
        }
        count = num_sentences(model, {side: [*map(num_positions, rows)] for side, rows in sources.items()})
        if not count:
            return {}, []
        own = {side: rows[ranks.rank : count : ranks.world] for side, rows in sources.items()}
        parts = ranks.gather(self.decode(model, own))
        outputs = [parts[row % ranks.world][row // ranks.world] for row in range(count)]
        references = list(self.encoded.lines[:count])
        texts = self.pairs.sides[next(iter(sources))]
        samples = [Sample(texts[row], references[row], outputs[row]) for row in range(count)]
        return {f"val/{name}": score for name, score in text_scores(outputs, references).items()}, samples

    def decode(self, model: EncoderDecoder, sources: Mapping[str, Sequence[SourceIds]]) -> list[str]:
        """Return the greedy output for each source; a rank may have none."""
        if not any(sources.values()):
            return []
        return self.tokenizers.decode("target", [best.ids for best, *_ in decode_all([model], sources, GREEDY)])


def num_sentences(model: EncoderDecoder, lengths: Lengths) -> int:
    """Return how many sentences `MAX_QUERIES` allow; 0 without sources."""
    count = min(map(len, lengths.values()), default=0)
    queries = length_queries([model], lengths, GREEDY, [()] * count)
    return count if len(queries) <= MAX_QUERIES else max(1, queries[MAX_QUERIES].row)
