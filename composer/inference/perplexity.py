"""Teacher-forced scores of a model: loss and perplexity of pairs and of texts, with an interval over documents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch.nn import functional as F

from composer.data.ids import Encoded
from composer.data.windows import Windows, evaluation_order
from composer.inference.decode import evaluation_mode
from composer.inference.lines import POSITIONS, teacher_forced_logits
from composer.model.encoder_decoder import PAD, EncoderDecoder, target_bits
from composer.model.output_heads import SigmoidOutput
from composer.recipe.metrics import token_scores
from composer.recipe.recipe import Recipe


def teacher_forced(recipe: Recipe, model: EncoderDecoder, encoded: Encoded) -> tuple[dict[str, float], list[float]]:
    """Return the scores that need no decoding, and the bits of each answer if answers are vectors of bits, else [].

    Of a text also those that do not depend on its tokenizer, and a 95 % interval of its perplexity over documents.
    """
    sums = {"loss": 0.0, "right": 0.0, "tokens": 0.0}
    has_bits = isinstance(model.output, SigmoidOutput)
    rows, order = evaluation_order(recipe, encoded, POSITIONS)
    row_bits = [0.0] * len(rows) if has_bits else []
    documents = DocumentSums(encoded, rows) if encoded.counts else None
    with evaluation_mode([model]):
        for batch, all_logits in teacher_forced_logits(model, rows, order):
            target = batch["target_out"]  # (B, T)
            real = target != PAD  # (B, T)
            logits = all_logits[real].float()  # (N, V)
            losses = F.cross_entropy(logits, target[real], reduction="none").double()  # (N,)
            sums["loss"] += float(losses.sum())
            sums["right"] += float((logits.argmax(-1) == target[real]).sum())
            sums["tokens"] += len(logits)
            if documents:
                documents.add(batch["rows"].tolist(), losses.cpu().numpy())
            if has_bits:
                costs = target_bits(all_logits, target).sum(1)  # (B,)
                for row, cost in zip(batch["rows"].tolist(), costs.tolist(), strict=True):
                    row_bits[row] = cost
    if has_bits:
        sums |= {"bits": sum(row_bits), "rows": len(row_bits)}
    if documents is None or encoded.counts is None:
        return token_scores(sums), row_bits
    counts = encoded.counts
    sums |= {"words": counts.words, "characters": counts.characters, "bytes": counts.bytes}
    scores = token_scores(sums) | {"unknown_share": counts.unknown / counts.tokens} | documents.perplexity_interval()
    return scores, row_bits


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
