"""Rows of states: the one function that reorders, repeats and drops them, whatever the decoder is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from blocks.core.contract import Output, State
from composer.model.encoder_decoder import state_leaves

Unchanged = Mapping[int, Tensor]
"""Leaves that no step has changed since the rows of one sequence were equal, by their `id`; it keeps them alive."""


def reorder_state(state: State, rows: Tensor, unchanged: Unchanged | None = None) -> State:
    """The state with row `rows[i]` for its row i; leaves in `unchanged` are handed on as they are.

    Leaving them is right when, for every i, row i and row `rows[i]` belong to the same sequence. Blocks never change
    a tensor in place, so a leaf that is still the very tensor that was there when the beams of a sequence were copies
    of one row has equal rows for all of them: to reorder it would be to copy it. To compare with the step before would
    not do: a leaf may be changed by one step, reordered, and left alone by the next.
    """
    if isinstance(state, Tensor):
        return state if unchanged and id(state) in unchanged else state.index_select(0, rows)
    return tuple(reorder_state(part, rows, unchanged) for part in state)


def all_of(state: State) -> Unchanged:
    """Every leaf of a state, as `select` wants to know them."""
    return {id(leaf): leaf for leaf in state_leaves(state)}


def carried(before: State, after: State, unchanged: Unchanged) -> Unchanged:
    """The leaves of `after = select(before, ...)` that come from unchanged ones."""
    pairs = zip(state_leaves(before), state_leaves(after), strict=True)
    return {id(new): new for old, new in pairs if id(old) in unchanged}


class LazyRows(Mapping[str, Output]):
    """Memories, with row `rows[i]` for their row i; a memory is copied when a block reads it, once, if at all."""

    def __init__(self, memories: Mapping[str, Output], rows: Tensor) -> None:
        self.memories, self.rows = memories, rows
        self.read: dict[str, Output] = {}

    def __getitem__(self, name: str) -> Output:
        if name not in self.read:
            states, mask, last = self.memories[name]
            self.read[name] = Output(
                reorder_state(states, self.rows), reorder_state(mask, self.rows), reorder_state(last, self.rows)
            )
        return self.read[name]

    def __contains__(self, name: Any) -> bool:
        return name in self.memories

    def __iter__(self) -> Iterator[str]:
        return iter(self.memories)

    def __len__(self) -> int:
        return len(self.memories)
