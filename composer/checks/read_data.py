"""What the rules of data take: the data of a recipe, or a sample of them, encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from composer.checks.problem import Problems
from composer.data.answer_limits import AnswerLimits
from composer.data.encoding import Data
from composer.data.sources import DataSource
from composer.recipe.recipe import Recipe


@dataclass(frozen=True)
class ReadData:
    """Data that were read and encoded: all, or a sample where not `is_all`.

    limits: Of the model. data: With the pairs that it cannot write.
    """

    source: DataSource
    limits: AnswerLimits
    data: Data
    is_all: bool = True

    @property
    def recipe(self) -> Recipe:
        """The recipe whose data they are."""
        return self.source.recipe


Rules = Sequence[Callable[[ReadData], Problems]]
