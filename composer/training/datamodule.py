"""The curriculum: short pairs first, and longer ones once the short ones are mastered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from composer.data.encoding import Encoded
from composer.data.sampler import EpochRows
from composer.data.sources import TARGET


class Curriculum:
    """The level of every epoch, which is how many tokens its pairs may have, and the mistakes of the present epoch.

    Batches are fetched before their time, so the level of an epoch must be known before the epoch before it ends: it is
    a function of the errors of the epochs before that one. Epochs 0 and 1 have the level `start`. Epoch e + 2 has that
    of e + 1, and `step` more where e was mastered at this very level: so a level is left for what was measured on it,
    and lasts two epochs or more. Once no pair is longer than the level, it stands still.
    """

    def __init__(self, *, start: int, step: int, error: float, beyond: float, by: str | None, seed: int) -> None:
        self.step, self.error, self.beyond, self.by, self.seed = step, error, beyond, by, seed
        self.levels = [start, start]
        self.wrong, self.graded = 0.0, 0.0

    @property
    def level(self) -> int:
        """The level of the present epoch."""
        return self.levels[-2]

    def choose(self, encoded: Encoded, epoch: int) -> EpochRows:
        """The pairs within the level, and of the longer ones each with the probability `beyond`, drawn anew each epoch.

        Where none is within the level, the shortest are. Of those within it the longest are graded: those whose length
        is among its last `step`.
        """
        length = sequence_lengths(encoded, self.by)
        within = length <= max(self.levels[epoch], int(length.min()))
        drawn = np.random.default_rng([self.seed, epoch, 1]).random(len(length)) < self.beyond
        graded = within & (length > int(length[within].max()) - self.step)
        return EpochRows(np.flatnonzero(within | drawn), graded)

    def count(self, sums: Mapping[str, float]) -> None:
        """Adds the mistakes of some steps of the present epoch."""
        self.wrong += sums["wrong"]
        self.graded += sums["graded"]

    def finish(self, encoded: Encoded) -> float:
        """Ends the present epoch, which was trained on these pairs; its sequence error."""
        error = self.wrong / self.graded if self.graded else math.nan
        now, ahead = self.levels[-2:]
        rises = error < self.error and now == ahead and now < sequence_lengths(encoded, self.by).max()
        self.levels.append(ahead + self.step if rises else ahead)
        self.wrong, self.graded = 0.0, 0.0
        return error

    def state_dict(self) -> dict[str, Any]:
        return {"levels": self.levels, "wrong": self.wrong, "graded": self.graded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.levels, self.wrong, self.graded = list(state["levels"]), state["wrong"], state["graded"]


def sequence_lengths(encoded: Encoded, by: str | None = None) -> np.ndarray:
    """Tokens of every pair, eos not counted: of the side `by`, else of its longest source, or of the target alone."""
    sides = {**encoded.sources, TARGET: encoded.target}
    read = [by] if by else [*encoded.sources] or [TARGET]
    longest: np.ndarray = np.max([sides[side].lengths() for side in read], axis=0)
    return longest
