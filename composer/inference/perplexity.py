"""Teacher-forced scores of a model: loss and perplexity of pairs and of texts, with an interval over documents."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from composer.data.ids import Encoded
from composer.data.windows import Windows, evaluation_order
from composer.inference.decode import evaluation_mode
from composer.inference.lines import POSITIONS, measure_targets
from composer.model.encoder_decoder import PAD, EncoderDecoder
from composer.recipe.metrics import token_scores
from composer.recipe.recipe import Recipe


def teacher_forced(recipe: Recipe, model: EncoderDecoder, encoded: Encoded) -> tuple[dict[str, float], list[float]]:
    """Return the scores that need no decoding, and the bits of each answer if answers are vectors of bits, else [].

    Of a text also those that do not depend on its tokenizer, and a 95 % interval of its perplexity over documents.
    """
    sums = defaultdict[str, float](float)
    rows, order = evaluation_order(recipe, encoded, POSITIONS)
    row_bits: dict[int, float] = {}
    documents = DocumentSums(encoded, rows) if encoded.counts else None
    with evaluation_mode([model]):
        for batch, measures in measure_targets(model, rows, order):
            real = batch["target_out"] != PAD  # (B, T)
            for name, values in measures.items():
                sums[name] += float(values[real].double().sum())
            sums["tokens"] += int(real.sum())
            if documents:
                documents.add(batch["rows"].tolist(), measures["loss"][real].double().cpu().numpy())
            if "bits" in measures:
                row_bits |= zip(batch["rows"].tolist(), measures["bits"].sum(1).tolist(), strict=True)
    sums["rows"] = len(rows)
    bits = [row_bits[row] for row in sorted(row_bits)]
    if documents is None or encoded.counts is None:
        return token_scores(sums), bits
    counts = encoded.counts
    sums.update(counts.units())
    scores = token_scores(sums) | {"unknown_share": counts.unknown / counts.tokens} | documents.perplexity_interval()
    return scores, bits


class DocumentSums:
    """The loss of each document of a text, from that of the tokens of its rows."""

    def __init__(self, text: Encoded, rows: Encoded) -> None:
        self.ends = text.target.ends  # (D,) the token that ends each document
        self.rows, self.losses = rows.target, np.zeros(len(self.ends))

    def add(self, rows: Sequence[int], losses: np.ndarray) -> None:
        """Add the losses of all tokens of some rows, one after another."""
        is_window = isinstance(self.rows, Windows)
        spans = [np.arange(self.rows.starts[row], self.rows.ends[row] + (not is_window)) for row in rows]
        np.add.at(self.losses, np.searchsorted(self.ends, np.concatenate(spans)), losses)

    def perplexity_interval(self) -> dict[str, float]:
        """Return the bounds of the perplexity, of 95 in 100 samples of so many documents; {} for a single one.

        Of a ratio of sums over documents: the loss and the tokens of each (Cochran 1977, section 6.4).
        """
        count, tokens = len(self.ends), np.diff(self.ends, prepend=-1)
        if count < 2:
            return {}
        mean = self.losses.sum() / tokens.sum()
        deviation = np.square(self.losses - mean * tokens).sum() * count / (count - 1)
        margin = 1.96 * math.sqrt(deviation) / tokens.sum()
        bounds = {"perplexity_low": mean - margin, "perplexity_high": mean + margin}
        return {name: math.exp(min(bound, 700.0)) for name, bound in bounds.items()}
