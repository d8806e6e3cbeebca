"""What a sample of the data shows that no recipe says: references that BLEU cannot split, answers too long for CTC."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from composer.data.encoding import Data
from composer.data.ids import Ids
from composer.data.pairs import source_names
from composer.errors import Fault
from composer.model.planner import Plan
from composer.recipe.metrics import suggest_bleu_tokenizer
from composer.recipe.recipe import Recipe


def script_warnings(recipe: Recipe, data: Data) -> Iterator[Fault]:
    """Yield a warning if the references have no spaces between words, and BLEU's tokenizer splits only at spaces."""
    metrics, word = recipe.evaluation["metrics"], recipe.evaluation["bleu_tokenizer"]
    measured = [line for split, encoded in data.splits.items() if split != "train" for line in encoded.lines]
    suggested = suggest_bleu_tokenizer(measured)
    if word == "13a" != suggested and source_names(recipe) and "bleu" in (metrics or ["bleu"]):
        message = "the references have no spaces between words, so `13a` finds no 4-grams for BLEU in them"
        hint = f"write `evaluation: {{bleu_tokenizer: {suggested}}}`"
        yield recipe.fault("script", ("evaluation", "bleu_tokenizer"), message, hint).as_warning()


def frame_warnings(recipe: Recipe, planned: Plan, data: Data) -> Iterator[Fault]:
    """Yield a warning if answers of the training have more tokens than CTC has frames: they cost nothing, and teach it
    nothing.
    """
    if planned.ctc_frames is None or data.train is None:
        return
    key, stream = planned.ctc_frames
    source = data.train.sources[key]
    positions = source.lengths() + isinstance(source, Ids)  # of eos
    frames = np.array([stream.length(int(length)) for length in positions])
    if too_long := int((data.train.target.lengths() > frames).sum()):
        message = (
            f"of {len(frames):,} answers {too_long:,} have more tokens than CTC has frames, and it cannot write them"
        )
        hint = "shorten the source less, or choose a tokenizer with longer tokens"
        yield recipe.fault("length", ("model", "output", "ctc"), message, hint).as_warning()
