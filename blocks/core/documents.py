"""Packing: several documents in one row, and how a block runs over them without one feeling another.

A row of several documents has no padding between them, so what looks at one position costs less. What looks at several
is run over the documents side by side, each in a row of its own as if it had never been packed: so a block need not
know of packing, and what it computes is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from blocks.core.contract import Block, Context, Output, Result, State
    from blocks.core.stream import Stream


class Documents(NamedTuple):
    """Where the documents of some rows are: N of them, the longest of L positions, row by row.

    What a row has before the first beginning in it counts as a document: it goes on from the row's state. Padding
    belongs to the document before it. `is_whole`: every row begins with a document.
    """

    starts: Tensor  # (B, T) bool, True where a document begins
    position: Tensor  # (N, L) which of the B T positions of all rows is a document's; 0 after its end
    there: Tensor  # (N, L) bool, False after its end
    place: Tensor  # (B, T) which of the N L positions of all documents is a row's
    row: Tensor  # (N,) the row of a document
    last: Tensor  # (B,) the last document of a row
    is_whole: bool

    def split(self, x: Tensor) -> Tensor:
        """Return each document in a row of its own, anything after its end: (B, T, ...) -> (N, L, ...)"""
        split: Tensor = Rearrange.apply(x.flatten(0, 1), self.position.flatten(), self.place.flatten(), None)
        return split.unflatten(0, self.position.shape)

    def join(self, x: Tensor) -> Tensor:
        """Return the rows of these documents: (N, L, ...) -> (B, T, ...)"""
        there = self.there.flatten()
        joined: Tensor = Rearrange.apply(x.flatten(0, 1), self.place.flatten(), self.position.flatten(), there)
        return joined.unflatten(0, self.place.shape)


class Rearrange(torch.autograd.Function):
    """Autograd function: take positions by an index whose inverse is known, so that no gradient is added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, there: Tensor | None) -> Tensor:
        ctx.save_for_backward(inverse, there)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inverse, there = ctx.saved_tensors
        gradient = gradients[0].index_select(0, inverse)
        if there is not None:
            gradient = gradient.masked_fill(~there.view(-1, *[1] * (gradient.ndim - 1)), 0.0)
        return gradient, None, None, None


def find_documents(starts: Tensor) -> Documents:
    """Return where documents are, from where they begin, (B, T). It waits for the device: best done on the CPU."""
    batch, length = starts.shape
    begins = starts.clone()
    begins[:, 0] = True
    document = begins.flatten().cumsum(0) - 1  # (B T,)
    first = begins.flatten().nonzero()[:, 0]  # (N,)
    every = torch.arange(batch * length, device=starts.device)  # (B T,)
    offset = every - first[document]  # (B T,)
    longest = int(offset.max()) + 1
    place = document * longest + offset  # (B T,)
    position = place.new_zeros(len(first) * longest).scatter(0, place, every)
    there = torch.zeros_like(position, dtype=torch.bool).index_fill(0, place, True)
    return Documents(
        starts,
        position.unflatten(0, (-1, longest)),
        there.unflatten(0, (-1, longest)),
        place.unflatten(0, (batch, length)),
        first // length,
        document.unflatten(0, (batch, length))[:, -1],
        bool(starts[:, 0].all()),
    )


def split_mask(mask: Tensor, position: Tensor, there: Tensor) -> Tensor:
    """Return what is real of each document: (B, T) -> (N, L), or so for each cell of a grid."""
    return mask.flatten(0, 1)[position] & there.view(*there.shape, *[1] * (mask.ndim - 2))


class DocumentOutputs(Mapping[str, "Output"]):
    """Named outputs or memories with a document in each row; one is split when a block reads it, if at all.

    A memory of which it is not known where its documents are is read whole by each document of its row.
    """

    def __init__(self, outputs: Mapping[str, Output], stream: Documents, are_memories: bool) -> None:
        self.outputs, self.stream, self.are_memories = outputs, stream, are_memories
        self.read: dict[str, Output] = {}

    def __getitem__(self, name: str) -> Output:
        if name not in self.read:
            output = self.outputs[name]
            documents = output.documents if self.are_memories else self.stream
            if documents:
                states = documents.split(output.states)
                mask = split_mask(output.mask, documents.position, documents.there)
            else:
                states, mask = output.states[self.stream.row], output.mask[self.stream.row]
            self.read[name] = output._replace(states=states, mask=mask, documents=())
        return self.read[name]

    def __contains__(self, name: Any) -> bool:
        return name in self.outputs

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)


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
        named_outputs=DocumentOutputs(context.named_outputs, documents, are_memories=False),
        memories=DocumentOutputs(context.memories, documents, are_memories=True),
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


def packing_problem(block: Block, arriving: Stream) -> str:
    """Return why no row of several documents may reach a block, "" where one may. arriving: What stands before it."""
    if arriving.grid or block.out.grid:
        return "it works on a grid, and a row of a grid is one document"
    if not block.out.same_length(arriving):
        return "it changes the number of positions, by which documents are told apart"
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
