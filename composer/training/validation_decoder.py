"""Decoding at a validation: the first lines, or all where early stopping watches their score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from composer.data.encoding import Data
from composer.data.ids import Encoded
from composer.data.pairs import TARGET
from composer.data.tokenizer import Tokenizers
from composer.evaluation.scores import recipe_metrics, source_texts
from composer.inference.answers import SourceLines, answer_lines, encoded_lines
from composer.inference.decode import length_queries
from composer.inference.lines import Line
from composer.inference.run import Sample
from composer.metrics.choice import TextMetrics
from composer.metrics.references import References, references_of
from composer.metrics.table import SAMPLE
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.choices import Decoder
from composer.recipe.recipe import Recipe
from composer.training.distributed import Ranks

MAX_QUERIES = 1000
"""Searches at most in a sample, where a sentence takes several: a search for each candidate length
of its answer.
"""


@dataclass(frozen=True)
class ValidationDecoder:
    """Decoder of validation lines, which compares the outputs with their references.

    lines: What the encoders read of them, and `texts` the same as texts.
    references: One or more of each line.
    part: `val` where all lines are decoded as the recipe does, so that scores are those of an
    evaluation; else the scores are of the first ones, and called `val_sample/...`.
    """

    texts: Sequence[Line]
    lines: SourceLines
    references: References
    tokenizers: Tokenizers
    part: str
    decoding: Decoder
    metrics: TextMetrics

    def evaluate(
        self, model: EncoderDecoder, ranks: Ranks
    ) -> tuple[dict[str, float], list[Sample]]:
        """Return the scores of decoded lines, and the lines; both empty if none can be decoded.

        Every rank decodes its part of the sentences; all of them return the same. A collective
        call.
        """
        count = self.count_lines(model)
        if not count:
            return {}, []
        own = self.lines.select(slice(ranks.rank, count, ranks.world))
        answers = answer_lines([model], self.tokenizers, own, self.decoding) if own.rows else []
        parts = ranks.gather([answers[place][0].text for place in own.places])
        # a sample has text on every line
        size = len(self.texts) if count == len(self.lines.rows) else count
        outputs = [""] * size
        for at, place in enumerate(self.lines.places[:count]):
            outputs[place] = parts[at % ranks.world][at // ranks.world]
        references = [column[:size] for column in self.references]
        texts = ["\t".join(line) for line in self.texts[:size]]
        shown = [(references_of(row) or [""])[0] for row in zip(*references, strict=True)]
        samples = [Sample(*row) for row in zip(texts, shown, outputs, strict=True)]
        scores = self.metrics.scores(outputs, references)
        return {f"{self.part}/{name}": score for name, score in scores.items()}, samples

    def count_lines(self, model: EncoderDecoder) -> int:
        """Return the number of decoded lines: of a sample no more than `MAX_QUERIES` allow."""
        queries = length_queries([model], self.lines.rows, self.decoding)
        is_cut = self.part == SAMPLE and len(queries) > MAX_QUERIES
        return max(1, queries[MAX_QUERIES].row) if is_cut else len(self.lines.rows)


def training_metrics(recipe: Recipe, splits: Mapping[str, Encoded]) -> TextMetrics | None:
    """Return the metrics by which a training compares outputs, the same for all splits.

    They suit the references of val, or else of the first split that is measured; None where nothing
    is decoded.
    """
    measured = [name for name in splits if name != "train"]
    if not measured or not recipe.sources:
        return None
    split = "val" if "val" in measured else measured[0]
    return recipe_metrics(recipe, splits[split].lines, f" of {split}")


def validation_decoder(
    recipe: Recipe, data: Data, metrics: TextMetrics | None
) -> ValidationDecoder | None:
    """Return the decoder of a training's validations: of a sample, or of all lines.

    None without validation lines, or metrics of them.
    """
    val = data.val
    if val is None or metrics is None:
        return None
    pairs, sample, is_full = (
        data.pairs["val"],
        recipe.training.validation_sample,
        recipe.validates_by_search,
    )
    lines, decoding = (None, recipe.decoding) if is_full else (sample.lines, sample.decoding)
    if not is_full and not (rows := val.nonempty()).all():  # the first lines might all be blank
        val, pairs = val.keep(rows), pairs.keep(np.flatnonzero(rows))
    # in memory, for all validations: a packed file would be unpacked at each
    texts = source_texts(recipe, pairs, lines)
    references = [list(column[:lines]) for column in (pairs.sides[TARGET], *pairs.references)]
    read = encoded_lines(data.tokenizers, texts, val)
    return ValidationDecoder(
        texts, read, references, data.tokenizers, "val" if is_full else SAMPLE, decoding, metrics
    )
