"""Law of packing: documents in one row give what each gives alone, and no gradient of one feels
another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from blocks.core.contract import Output, State, reduce_penalties
from blocks.core.documents import Documents, find_documents
from blocks.core.packing import packing_error
from composer.testing.harness import (
    Batch,
    Case,
    context_of,
    expand_as,
    expect_equal,
    real_rows,
    rows,
    run,
    start,
)

DOCUMENTS = (3, 1, 4, 2, 6)
"""How many positions each document has."""
ROWS = ((0, 1, 2), (3, 4))
"""The documents of each row."""
LAST = (2, 4)
"""The last document of each row."""
PROBED = ((0, 4), (1, 3), (2,))
"""Documents whose gradients are taken at once: of two rows, and at other places in them."""


def packing(case: Case) -> None:
    """Check that packed documents give what each gives alone, and that the gradients of one are 0
    for all others.

    The penalties are those of the documents alone, and on a causal site the last document of a row
    goes on from the state that the row leaves.
    """
    block, alone = case.shared(), case.batch(DOCUMENTS)
    if packing_error(block, case.stream, case.settings) or case.reads("encoder.summary"):
        return  # where rows are packed, a recipe with it is refused
    batch, documents = pack(alone)
    context = context_of(batch)._replace(starts=documents.starts)
    context = context._replace(penalties={})
    y, state, *_ = block(batch.x, start(block, batch), context)
    y = documents.split(y)  # (N, L, D)
    alone_context = context_of(alone)._replace(penalties={})
    expected, alone_state, *_ = block(alone.x, start(block, alone), alone_context)
    expected = expected.masked_fill(~alone.mask[..., None], 0.0)
    packed_y = y.masked_fill(~documents.there[..., None], 0.0)
    expect_equal(case, "packing", packed_y, expected, "documents in one row, against each alone")
    for key, cost in reduce_penalties(alone_context.penalties or {}).items():
        packed_cost = reduce_penalties(context.penalties or {})[key]
        expect_equal(
            case, "packing", packed_cost, cost, f"the penalty `{key[0]}` of documents in one row"
        )
    if case.causal:
        then = rows(case.batch(DOCUMENTS, seed=3)._replace(memories=alone.memories), LAST)
        goes_on, expected = (
            run(block, then, one).real for one in (state, take_rows(alone_state, LAST))
        )
        expect_equal(
            case, "packing", goes_on, expected, "what comes after the last document of a row"
        )
    outputs = {
        name: output for name, output in (batch.board | batch.memories).items() if name != "input"
    }
    read = {"the stream": (batch.x, documents)}
    read |= {
        f"`{name}`": (output.states, output.documents or documents)
        for name, output in outputs.items()
    }
    for numbers in PROBED if y.requires_grad else ():
        leaves = [leaf for leaf, _ in read.values()]
        gradients = torch.autograd.grad(
            packed_y[list(numbers)].sum(), leaves, retain_graph=True, allow_unused=True
        )
        for (name, (_, own)), gradient in zip(read.items(), gradients, strict=True):
            if (
                gradient is not None
                and (felt := sizes(gradient, own).index_fill(0, torch.tensor(numbers), 0.0)).any()
            ):
                size, other, feeling = (
                    felt.max().item(),
                    int(felt.argmax()),
                    " or ".join(map(str, numbers)),
                )
                case.broken(
                    "packing", f"document {feeling} feels document {other} of {name}, by {size:.3g}"
                )


def take_rows(state: State, numbers: Sequence[int]) -> State:
    """Return the state of some rows."""
    return (
        tuple(take_rows(part, numbers) for part in state)
        if isinstance(state, tuple)
        else state[list(numbers)]
    )


def sizes(gradient: Tensor, documents: Documents) -> Tensor:
    """Return the largest part of each document's gradient: (B, T, ...) -> (N,)"""
    split = documents.split(gradient)  # (N, L, ...)
    return (split * expand_as(documents.there, split)).abs().flatten(1).amax(1)


def pack(batch: Batch) -> tuple[Batch, Documents]:
    """Return the rows of a batch and its memories as the documents of `ROWS`, with their places."""

    def packed(output: Output) -> tuple[Output, Documents]:
        lengths = real_rows(output.mask).sum(1).tolist()

        def joined(tensor: Tensor, row: Sequence[int]) -> Tensor:
            return torch.cat([tensor[at, : lengths[at]] for at in row])

        def in_rows(tensor: Tensor) -> Tensor:
            return pad_sequence([joined(tensor, row) for row in ROWS], True)

        states, mask = in_rows(output.states), in_rows(output.mask)
        starts = torch.zeros(mask.shape[:2], dtype=torch.bool)
        for number, row in enumerate(ROWS):
            starts[number, torch.tensor([sum(lengths[row[0] : at]) for at in row])] = True
        documents = find_documents(starts)
        return Output(states.detach().requires_grad_(), mask, (), documents), documents

    stream, documents = packed(Output(batch.x, batch.mask))
    board = {name: packed(output)[0]._replace(documents=()) for name, output in batch.board.items()}
    board["input"] = stream._replace(documents=())
    memories = {name: packed(output)[0] for name, output in batch.memories.items()}
    return Batch(stream.states, stream.mask, board, memories), documents
