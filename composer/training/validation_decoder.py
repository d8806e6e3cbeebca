"""What is decoded at a validation: the first lines, or all of them where early stopping watches a score of all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from composer.data.encoding import nonempty
from composer.data.ids import Encoded
from composer.data.pairs import TARGET, Pairs
from composer.data.tokenizer import Tokenizers
from composer.evaluation import recipe_metrics
from composer.inference.decode import Decoding, decode_all, length_queries, num_positions
from composer.inference.run import Sample
from composer.inference.target_lengths import Lengths
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.metrics import SAMPLE, TextMetrics
from composer.recipe.recipe import Recipe
from composer.training.distributed import Ranks

MAX_QUERIES = 1000
"""Searches at most in a sample, where a sentence takes several: a search for each candidate length of its answer."""


@dataclass(frozen=True)
class ValidationDecoder:
    """Decoder of validation lines, which compares the outputs with their references.

    part: `val` where all lines are decoded as the recipe does, so that scores are those of an evaluation; else the
    scores are of the first `lines`, and called `val_sample/...`.
    """

    encoded: Encoded
    pairs: Pairs
    tokenizers: Tokenizers
    part: str
    lines: int | None
    decoding: Decoding
    metrics: TextMetrics

    def evaluate(self, model: EncoderDecoder, ranks: Ranks) -> tuple[dict[str, float], list[Sample]]:
        """Return the scores of decoded lines, and the lines; both empty where nothing can be decoded.

        Every rank decodes its part of the sentences; all of them return the same. A collective call.
        """
        first = range(len(self.encoded))[: self.lines]
        sources = {side: [ids[row] for row in first] for side, ids in self.encoded.sources.items()}
        count = self.count_lines(model, {side: [*map(num_positions, rows)] for side, rows in sources.items()})
        if not count:
            return {}, []
        own = {side: rows[ranks.rank : count : ranks.world] for side, rows in sources.items()}
        to_texts, decoded = partial(self.tokenizers.decode, TARGET), []
        if any(own.values()):  # a rank may have no sentence
            decoded = decode_all([model], own, self.decoding, to_texts=to_texts)
        parts = ranks.gather(to_texts([best.ids for best, *_ in decoded]))
        outputs = [parts[row % ranks.world][row // ranks.world] for row in range(count)]
        references = [list(lines[:count]) for lines in (self.pairs.sides[TARGET], *self.pairs.references)]
        texts = self.pairs.sides[next(iter(sources))]
        samples = [Sample(texts[row], references[0][row], outputs[row]) for row in range(count)]
        scores = self.metrics.scores(outputs, references)
        return {f"{self.part}/{name}": score for name, score in scores.items()}, samples

    def count_lines(self, model: EncoderDecoder, lengths: Lengths) -> int:
        """Return how many lines are decoded: of a sample no more than `MAX_QUERIES` allow; 0 without sources."""
        count = min(map(len, lengths.values()), default=0)
        queries = length_queries([model], lengths, self.decoding, [()] * count)
        is_cut = self.part == SAMPLE and len(queries) > MAX_QUERIES
        return max(1, queries[MAX_QUERIES].row) if is_cut else count


def validation_decoder(recipe: Recipe, val: Encoded, pairs: Pairs, tokenizers: Tokenizers) -> ValidationDecoder:
    """Return what decodes in training: a sample of the lines, or all where early stopping watches a score of all."""
    sample, is_full = recipe.training["validation_sample"], recipe.validates_by_search
    lines, decoding = (None, recipe.decoding) if is_full else (sample["lines"], sample["decoding"])
    metrics = recipe_metrics(recipe, val.lines)
    if not is_full and not (rows := nonempty(val)).all():  # the first lines might all be blank
        val, pairs = val.keep(rows), pairs.keep(np.flatnonzero(rows))
    return ValidationDecoder(val, pairs, tokenizers, "val" if is_full else SAMPLE, lines, decoding, metrics)
