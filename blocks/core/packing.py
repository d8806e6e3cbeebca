"""Packing: how a block runs over rows of several documents without one feeling another.

A row of several documents has no padding between them, so what looks at one position costs less.
What looks at several is run over the documents side by side, one per row, as if they had never been
packed: so a block need not know of packing, and what it computes is exact. On a CPU those of about
one length are run together, so that little is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.buckets import Buckets, bucket_by_length
from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Fix,
    Output,
    Penalties,
    Reduction,
    Result,
    State,
    Stream,
    reduce_penalties,
    remove,
)
from blocks.core.documents import Documents, find_documents
from blocks.core.lazy_outputs import LazyOutputs

MAX_BUCKETS = 5
"""Into how many buckets documents are put, each with those of a share of the longest length.

On more, less is padded, and what runs at once has fewer rows.
"""


def split_output(output: Output, buckets: Buckets) -> list[Output]:
    """Return a named output with one document per row, of each bucket."""
    parts = zip(buckets.split(output.states), buckets.split_mask(output.mask), strict=True)
    return [output._replace(states=states, mask=mask, documents=()) for states, mask in parts]


def split_memory(memory: Output, stream: Documents, buckets: Buckets) -> list[Output]:
    """Return a memory with what each document of the stream may read in its row: the document of
    the same number.

    A memory whose rows are not packed is read whole by each document of its row.
    """
    if memory.documents:
        return split_output(memory, buckets.like(memory.documents))
    rows = [stream.row[numbers] for numbers in buckets.numbers]
    return [memory._replace(states=memory.states[row], mask=memory.mask[row]) for row in rows]


def run_documents(
    forward: Callable[[Tensor, State, Context], Result],
    start: Callable[[Tensor, Context], State],
    x: Tensor,
    context: Context,
) -> Any:
    """Run what a block computes over the documents of its rows side by side, those in one bucket at
    a time.

    Each begins with what `start` returns. The state after is that of each row's last document.

    forward, start: As of a block. x: (B, T, D)
    """
    documents = _find(context)
    buckets = _find_buckets(documents, x, context, MAX_BUCKETS)
    parts, inner = buckets.split(x), _split_context(context, documents, buckets)
    before = _start_each(start, parts, inner)
    ys, states, *nested = zip(*map(forward, parts, before, inner), strict=True)
    _add_penalties(context, [own.penalties or {} for own in inner], buckets)
    joined = buckets.join(ys), _take(_join_states(states), buckets.find(documents.last))
    if not nested:
        return joined
    named: dict[str, Output] = {}
    for name in nested[0][0]:
        named[name] = _join_outputs([outputs[name] for outputs in nested[0]], buckets)
    return *joined, named


def run_buckets(
    forward: Callable[[list[Tensor], State, list[Tensor]], tuple[list[Tensor], State]],
    start: Callable[[Tensor, Context], State],
    x: Tensor,
    context: Context,
    *,
    at_most: int = MAX_BUCKETS,
) -> tuple[Tensor, State]:
    """Run what a block computes over the documents of all buckets at once: `run_documents`, for a
    block that can.

    forward: From the documents of each bucket (N, L, D), the shortest first, the state before all
    of them, and the masks (N, L) to what comes out of each, and the state after them. at_most: How
    many buckets there may be.
    """
    documents = _find(context)
    buckets = _find_buckets(documents, x, context, at_most)
    parts, inner = buckets.split(x), _split_context(context, documents, buckets)
    before = _join_states(_start_each(start, parts, inner))
    ys, after = forward(parts, before, [own.mask for own in inner])
    return buckets.join(ys), _take(after, buckets.find(documents.last))


def packing_error(
    block: Block, arriving: Stream, settings: Mapping[str, object]
) -> BlockError | None:
    """Return why no row of several documents may reach a block with these settings, None where one
    may.

    arriving: The stream that stands before it.
    """
    setting, fix, message = "", Fix("remove `data.packing`, or the block"), block.not_packed
    if arriving.grid or block.out.grid:
        message = "it works on a grid, and a row of a grid is one document"
    elif not block.out.same_length(arriving):
        message = "it changes the number of positions, by which documents are told apart"
    elif isinstance(settings.get("initial_state"), Mapping):
        setting, fix = "initial_state", remove("initial_state", ", or `data.packing`")
        message = "it copies the last state of a row, and each of its documents has its own"
    return BlockError(setting, message, fix=fix, code="packing") if message else None


def _find(context: Context) -> Documents:
    if context.documents is not None:
        return context.documents
    assert context.starts is not None  # or nothing is packed
    return context.once(find_documents, context.starts)


def _find_buckets(documents: Documents, x: Tensor, context: Context, count: int) -> Buckets:
    """Return `count` buckets at most; one where several save nothing: a GPU waits for kernels more
    than for padding.

    One where compiled, since how many there are depends on values, and for records, which are of
    all documents at once.
    """
    is_one = not x.is_cpu or torch.compiler.is_compiling() or context.records is not None
    return context.once(bucket_by_length, documents, 1 if is_one else count)


def _start_each(
    start: Callable[[Tensor, Context], State], parts: Sequence[Tensor], inner: Sequence[Context]
) -> list[State]:
    """Return the state before the documents of each bucket."""
    return [start(part[:, :1], own) for part, own in zip(parts, inner, strict=True)]


def _split_context(context: Context, documents: Documents, buckets: Buckets) -> list[Context]:
    """Return the context of the documents of each bucket."""
    named = LazyOutputs(context.named_outputs, partial(split_output, buckets=buckets))
    memories = LazyOutputs(
        context.memories, partial(split_memory, stream=documents, buckets=buckets)
    )
    contexts = []
    for at, mask in enumerate(context.once(buckets.split_mask, context.mask)):
        inner = context._replace(
            mask=mask,
            named_outputs=LazyOutputs(named, itemgetter(at)),
            memories=LazyOutputs(memories, itemgetter(at)),
            penalties=None if context.penalties is None else {},
            starts=None,
            documents=None,
        )
        contexts.append(inner)
    return contexts


def _add_penalties(context: Context, penalties: Sequence[Penalties], buckets: Buckets) -> None:
    """Add the penalties of all buckets, of which each is a mean over its documents, as one over all
    documents.
    """
    shares: dict[tuple[str, Reduction], list[Tensor]] = {}
    total = sum(count for count, _ in buckets.shapes)
    for own, (count, _) in zip(penalties, buckets.shapes, strict=True):
        for key, value in reduce_penalties(own).items():
            shares.setdefault(key, []).append(
                value if key[1] == "tokens" else value * (count / total)
            )
    for (name, reduction), values in shares.items():
        context.penalty(name, torch.stack(values).sum(), reduction)


def _join_outputs(parts: Sequence[Output], buckets: Buckets) -> Output:
    states = buckets.join([part.states for part in parts])
    mask = buckets.join([part.mask for part in parts])
    return parts[0]._replace(states=states, mask=mask, last=())


def _join_states(parts: Sequence[State]) -> State:
    """Return the states of the documents of all buckets; where one has fewer slots, with empty ones
    behind them.
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tuple):
        return tuple(_join_states(leaves) for leaves in zip(*parts, strict=True))
    shapes = [part.shape[1:] for part in parts]
    longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    return torch.cat([_widen(part, longest) for part in parts])


def _widen(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return x with zeros behind it in every dimension but the first: (N, ...) -> (N, *sizes)"""
    padding: list[int] = []
    for size, own in zip(sizes, x.shape[1:], strict=True):
        padding = [0, size - own, *padding]  # `F.pad` takes the last dimension first
    return F.pad(x, padding) if any(padding) else x


def _take(state: State, rows: Tensor) -> State:
    return (
        tuple(_take(part, rows) for part in state)
        if isinstance(state, tuple)
        else state.index_select(0, rows)
    )
