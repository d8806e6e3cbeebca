"""Inputs of a call of the model beside tokens, and outputs beside logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from blocks.core.contract import Context, Output, Penalties, Records
from blocks.core.documents import Documents


class StepInputs(NamedTuple):
    """Optional inputs and outputs of a step: the fields of these names of `Context`.

    `packed` has where the documents of each side are, if rows have several; then every row begins
    with one.
    """

    records: Records | None = None
    penalties: Penalties | None = None
    progress: Tensor | None = None
    facts: Tensor | None = None
    packed: Mapping[str, Documents] = {}

    def context(
        self, mask: Tensor, memories: Mapping[str, Output], side: str = "target"
    ) -> Context:
        """Return the context of a call of a stack that reads an encoder's source or the target."""
        context = Context(
            mask, {}, memories, self.records, self.penalties, self.progress, self.facts, memo={}
        )
        documents = self.packed.get(side)
        if documents is None:
            return context
        return context._replace(starts=documents.starts, documents=documents)


NO_INPUTS = StepInputs()
