"""Answers that a model can write: they fit the length it allocates, or CTC's frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from blocks.core.contract import Stream
from composer.data.ids import Encoded, Ids
from composer.model.ctc import ctc_frames
from composer.model.encoder_decoder import ROUNDING, EncoderDecoder

NO_FRAMES = (
    "answers need more CTC frames than the encoder leaves: one a token, and one more between equal"
    " tokens"
)
MORE_FRAMES = "shorten the source less, or choose a tokenizer with longer tokens"
"""The fix for it."""


@dataclass(frozen=True)
class AnswerLimits:
    """The answers that a model can write.

    ratios: How many times as long as the source an answer may be, by the encoders' keys; 0 where it
    may be any. frames: The key of the encoder that leaves CTC's frames, and what is known of these;
    None without CTC.
    """

    ratios: Mapping[str, float] = field(default_factory=dict)
    frames: tuple[str, Stream] | None = None

    @classmethod
    def of(cls, model: EncoderDecoder) -> AnswerLimits:
        """Return the limits of a model."""
        return cls(
            {key: encoder.max_target_ratio for key, encoder in model.readers().items()},
            ctc_frames(model),
        )

    def have_room(self, encoded: Encoded) -> np.ndarray:
        """True for pairs whose target is short enough for the model's grid. -> (rows,) bool"""
        ratios = {key: ratio for key, ratio in self.ratios.items() if ratio}
        limits = [
            np.ceil(ratio * (encoded.sources[key].lengths() + 1) - ROUNDING)
            for key, ratio in ratios.items()
        ]
        if limits:
            return encoded.target.lengths() + 1 <= np.max(limits, axis=0)
        return np.ones(len(encoded), dtype=bool)

    def have_frames(self, encoded: Encoded) -> np.ndarray:
        """True for pairs with enough frames for CTC to write their target. -> (rows,) bool

        Each token takes a frame, and one that repeats the token before another, for the blank
        between them.
        """
        if self.frames is None:
            return np.ones(len(encoded), dtype=bool)
        key, stream = self.frames
        source = encoded.sources[key]
        # eos counts
        lengths, places = np.unique(source.lengths() + isinstance(source, Ids), return_inverse=True)
        frames = np.array([stream.length(int(length)) for length in lengths])
        return encoded.target.lengths() + encoded.target.repeats() <= frames[places]

    def measurable(self, encoded: Encoded) -> np.ndarray:
        """True for pairs with a loss: they have a target, and CTC can write it. -> (rows,) bool

        An empty text is one: its end is a token.
        """
        if encoded.sources:
            has_target = encoded.target.lengths() > 0
        else:
            has_target = np.ones(len(encoded), dtype=bool)
        return has_target & self.have_frames(encoded)

    def answerable(self, encoded: Encoded) -> np.ndarray:
        """Return the pairs that a model can be trained on. -> (rows,) bool"""
        return self.have_room(encoded) & self.have_frames(encoded)
