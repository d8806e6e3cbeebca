"""What is decoded at a validation: the first lines, or all of them where early stopping watches a score of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from composer.data.encoding import Data, nonempty
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

    sides: What the encoders read, in the recipe's order.
    part: `val` where all lines are decoded as the recipe does, so that scores are those of an evaluation; else the
    scores are of the first `lines`, and called `val_sample/...`.
    """

    sides: Sequence[str]
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
        texts = ["\t".join(row) for row in zip(*(self.pairs.sides[side][:count] for side in self.sides), strict=True)]
        samples = [Sample(*row) for row in zip(texts, references[0], outputs, strict=True)]
        scores = self.metrics.scores(outputs, references)
        return {f"{self.part}/{name}": score for name, score in scores.items()}, samples

    def count_lines(self, model: EncoderDecoder, lengths: Lengths) -> int:
        """Return how many lines are decoded: of a sample no more than `MAX_QUERIES` allow; 0 without sources."""
        count = min(map(len, lengths.values()), default=0)
        queries = length_queries([model], lengths, self.decoding, [()] * count)
        is_cut = self.part == SAMPLE and len(queries) > MAX_QUERIES
        return max(1, queries[MAX_QUERIES].row) if is_cut else count


def training_metrics(recipe: Recipe, splits: Mapping[str, Encoded]) -> TextMetrics | None:
    """Return the metrics by which a training compares outputs, the same for all splits so that their scores compare.

    They suit the references of val, or else of the first split that is measured; None where nothing is decoded.
    """
    split = next((name for name in ("val", *splits) if name in splits and name != "train"), "")
    is_decoding = split and recipe.sources
    return recipe_metrics(recipe, splits[split].lines, f" of {split}") if is_decoding else None


def validation_decoder(recipe: Recipe, data: Data, metrics: TextMetrics | None) -> ValidationDecoder | None:
    """Return what decodes in training: a sample of the lines, or all where early stopping watches a score of all.

    None without validation lines, or metrics of them.
    """
    val = data.val
    if val is None or metrics is None:
        return None
    pairs, sample, is_full = data.pairs["val"], recipe.training["validation_sample"], recipe.validates_by_search
    lines, decoding = (None, recipe.decoding) if is_full else (sample["lines"], sample["decoding"])
    if not is_full and not (rows := nonempty(val)).all():  # the first lines might all be blank
        val, pairs = val.keep(rows), pairs.keep(np.flatnonzero(rows))
    # in memory, for all validations: a packed file would be unpacked at each
    pairs = Pairs({name: list(column[:lines]) for name, column in pairs.columns.items()})
    parts = recipe.sources, val, pairs, data.tokenizers, "val" if is_full else SAMPLE
    return ValidationDecoder(*parts, lines, decoding, metrics)
