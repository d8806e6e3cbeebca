"""Packing: how a block runs over rows of several documents without one feeling another.

A row of several documents has no padding between them, so what looks at one position costs less. What looks at several
is run over the documents side by side, one per row, as if they had never been packed: so a block need not know of
packing, and what it computes is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block, Context, Output, Result, State, Stream
from blocks.core.documents import Documents, find_documents, split_mask
from blocks.core.lazy_outputs import LazyOutputs


def split_output(output: Output, documents: Documents) -> Output:
    """Return a named output with one document per row."""
    mask = split_mask(output.mask, documents.position, documents.there)
    return output._replace(states=documents.split(output.states), mask=mask, documents=())


def split_memory(memory: Output, stream: Documents) -> Output:
    """Return a memory with what each document of the stream may read in its row: the document of the same number.

    A memory whose rows are not packed is read whole by each document of its row.
    """
    if memory.documents:
        return split_output(memory, memory.documents)
    return memory._replace(states=memory.states[stream.row], mask=memory.mask[stream.row])


def run_documents(
    forward: Callable[[Tensor, State, Context], Result],
    start: Callable[[Tensor, Context], State],
    x: Tensor,
    state: State,
    context: Context,
) -> Any:
    """Run what a block computes over the documents of its rows side by side.

    Each begins with what `start` returns, and what a row has before its first beginning with the row's state. The state
    after is that of each row's last document.

    forward, start: As of a block. x: (B, T, D), state: of B rows; `()` where every row begins with a document.
    """
    documents = context.documents
    if documents is None:
        assert context.starts is not None  # or nothing is packed
        documents = context.once(find_documents, context.starts)
    inner = context._replace(
        mask=context.once(split_mask, context.mask, documents.position, documents.there),
        named_outputs=LazyOutputs(context.named_outputs, partial(split_output, documents=documents)),
        memories=LazyOutputs(context.memories, partial(split_memory, stream=documents)),
        starts=None,
        documents=None,
    )
    split = documents.split(x)  # (N, L, D)
    before = start(split[:, :1], inner)
    if not documents.is_whole and state != ():
        goes_on = ~documents.starts[documents.row, 0] & documents.row.diff(prepend=documents.row[:1] - 1).bool()
        before = _choose(goes_on, _take(state, documents.row), before)
    y, after, *nested = forward(split, before, inner)
    joined = documents.join(y), _take(after, documents.last)
    if not nested:
        return joined
    named = {
        name: output._replace(states=documents.join(output.states), mask=documents.join(output.mask), last=())
        for name, output in nested[0].items()
    }
    return *joined, named


def packing_problem(block: Block, arriving: Stream, settings: Mapping[str, Any]) -> str:
    """Return why no row of several documents may reach a block with these settings, "" where one may.

    arriving: The stream that stands before it.
    """
    if arriving.grid or block.out.grid:
        return "it works on a grid, and a row of a grid is one document"
    if not block.out.same_length(arriving):
        return "it changes the number of positions, by which documents are told apart"
    if isinstance(settings.get("initial_state"), Mapping):
        return "it copies the last state of a row, and each of its documents has its own"
    return block.not_packed


def _take(state: State, rows: Tensor) -> State:
    return tuple(_take(part, rows) for part in state) if isinstance(state, tuple) else state.index_select(0, rows)


def _choose(which: Tensor, one: State, other: State) -> State:
    """Return the rows of one state where `which` (N,), else those of the other."""
    if isinstance(one, tuple):
        return tuple(_choose(which, *parts) for parts in zip(one, other, strict=True))
    if one.shape != other.shape:
        raise ValueError("a state that grows cannot go on in a row of several documents: begin each with a document")
    return torch.where(which.view(-1, *[1] * (one.ndim - 1)), one, other)
