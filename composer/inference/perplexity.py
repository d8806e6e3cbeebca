"""Teacher-forced loss and perplexity of pairs and texts, with an interval over documents."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from composer.data.answer_limits import AnswerLimits
from composer.data.ids import Encoded, Ids
from composer.data.windows import Windows, evaluation_order
from composer.inference.decode import evaluation_mode
from composer.inference.lines import POSITIONS, measure_targets
from composer.metrics.table import token_scores
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import PAD
from composer.recipe.recipe import Recipe


def teacher_forced(
    recipe: Recipe, models: Sequence[EncoderDecoder], encoded: Encoded
) -> tuple[dict[str, float], list[float]]:
    """Return the scores that need no decoding, and the bits of each answer, if it is bits.

    Only pairs with a target that every model can write count, and without any there are no scores;
    other answers have NaN bits. Of a text also the scores that do not depend on its tokenizer, and
    a 95 % interval of its perplexity over documents.

    models: One, or an ensemble, whose probabilities are their mean.
    """
    sums = defaultdict[str, float](float)
    known = np.logical_and.reduce([AnswerLimits.of(model).measurable(encoded) for model in models])
    total = len(encoded)
    if not known.any():
        return {}, []
    encoded = encoded if known.all() else encoded.keep(known)
    rows, order = evaluation_order(recipe, encoded, POSITIONS)
    row_bits: dict[int, float] = {}
    losses = np.zeros(len(encoded))  # of the documents of a text
    with evaluation_mode(models):
        for batch, measures in measure_targets(models, rows, order):
            real = batch["target_out"] != PAD  # (B, T)
            for name, values in measures.items():
                sums[name] += float(values[real].double().sum())
            sums["tokens"] += int(real.sum())
            if encoded.counts:
                places = documents_of(encoded, rows.target, batch["rows"].tolist())
                np.add.at(losses, places, measures["loss"][real].double().cpu().numpy())
            if "bits" in measures:
                row_bits |= zip(
                    batch["rows"].tolist(), measures["bits"].sum(1).tolist(), strict=True
                )
    sums["rows"] = len(rows)
    places = np.flatnonzero(known)
    bits = [math.nan] * total if row_bits else []
    for row, cost in row_bits.items():
        bits[places[row]] = cost
    if (counts := encoded.counts) is None:
        return token_scores(sums), bits
    sums.update(counts.units())
    # an end is always known
    share = {"unknown_share": counts.unknown / max(1, counts.tokens - counts.documents)}
    return token_scores(sums) | share | perplexity_interval(losses, encoded.target.ends), bits


def documents_of(text: Encoded, rows: Ids, numbers: Sequence[int]) -> np.ndarray:
    """Return the document of each token in the rows with these numbers, one after another."""
    end = int(not isinstance(rows, Windows))  # of documents as rows, which have no token for it
    spans = [np.arange(rows.starts[row], rows.ends[row] + end) for row in numbers]
    return np.searchsorted(text.target.ends, np.concatenate(spans))


def perplexity_interval(losses: np.ndarray, ends: np.ndarray) -> dict[str, float]:
    """Return the bounds of a 95 % interval of the perplexity over documents; {} for a single one.

    Of a ratio of sums over documents: the loss and the tokens of each (Cochran 1977, section 6.4).
    losses: (D,), ends: (D,) the token that ends each document.
    """
    count, tokens = len(ends), np.diff(ends, prepend=-1)
    if count < 2:
        return {}
    mean = losses.sum() / tokens.sum()
    deviation = np.square(losses - mean * tokens).sum() * count / (count - 1)
    margin = 1.96 * math.sqrt(deviation) / tokens.sum()
    bounds = {"perplexity_low": mean - margin, "perplexity_high": mean + margin}
    # of few documents the interval may go beyond what a perplexity can be, from 1 on
    return {name: math.exp(min(max(bound, 0.0), 700.0)) for name, bound in bounds.items()}
