"""Translations during a training: a few validation sentences, greedily, so that it costs little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from composer.data.batches import Batches, ReadingOrder
from composer.data.encoded import Encoded
from composer.data.pairs import Pairs
from composer.module import Seq2Seq
from composer.wandb_log import Sample

JUDGED = 200
"""Sentences of the validation part, from its start, on which BLEU, chrF and exact match are measured in training."""


@dataclass(frozen=True)
class Judge:
    """Translates the first sentences of a part of the data and compares them with their references."""

    encoded: Encoded
    pairs: Pairs
    tokens_per_batch: int

    def judge(self, module: Seq2Seq, split: str) -> tuple[dict[str, float], list[Sample]]:
        """Scores under their names for `split`, and the translations."""
        return {}, []
