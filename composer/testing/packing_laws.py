"""Law of packing: documents in one row give what each gives alone, and no gradient of one feels another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from blocks.core.contract import Output
from blocks.core.documents import Documents, find_documents
from blocks.core.packing import packing_problem
from composer.testing.harness import (
    Batch,
    Case,
    context_of,
    expand_as,
    expect_equal,
    random_batch,
    real_rows,
    run,
    start,
)

DOCUMENTS = (3, 1, 4, 2, 6)
"""How many positions each document has."""
ROWS = ((0, 1, 2), (3, 4))
"""The documents of each row."""


def packing(case: Case) -> None:
    """Check that packed documents give what each gives alone, and that the gradients of one are 0 for all others."""
    block, alone = case.exact(), random_batch(case, DOCUMENTS)
    if packing_problem(block, case.stream, case.settings) or case.reads("encoder.summary"):
        return  # where rows are packed, a recipe with it is refused
    batch, documents = pack(alone)
    context = context_of(batch)._replace(starts=documents.starts)
    y = documents.split(block(batch.x, start(block, batch), context)[0])  # (N, L, D)
    expected = run(block, alone).real
    packed_y = y.masked_fill(~documents.there[..., None], 0.0)
    expect_equal(case, "packing", packed_y, expected, "documents in one row, against each alone")
    outputs = {name: output for name, output in (batch.board | batch.memories).items() if name != "input"}
    read = {"the stream": (batch.x, documents)}
    read |= {f"`{name}`": (output.states, output.documents or documents) for name, output in outputs.items()}
    for number in range(len(DOCUMENTS) if y.requires_grad else 0):
        leaves = [leaf for leaf, _ in read.values()]
        gradients = torch.autograd.grad(packed_y[number].sum(), leaves, retain_graph=True, allow_unused=True)
        for (name, (_, own)), gradient in zip(read.items(), gradients, strict=True):
            if gradient is not None and (felt := sizes(gradient, own).index_fill(0, torch.tensor(number), 0.0)).any():
                size, other = felt.max().item(), int(felt.argmax())
                case.broken("packing", f"document {number} feels document {other} of {name}, by {size:.3g}")


def sizes(gradient: Tensor, documents: Documents) -> Tensor:
    """Return the largest part of each document's gradient: (B, T, ...) -> (N,)"""
    split = documents.split(gradient)  # (N, L, ...)
    return (split * expand_as(documents.there, split)).abs().flatten(1).amax(1)


def pack(batch: Batch) -> tuple[Batch, Documents]:
    """Return the rows of a batch as the documents of `ROWS`, its memories too, and where they are."""

    def packed(output: Output) -> tuple[Output, Documents]:
        lengths = real_rows(output.mask).sum(1).tolist()
        pieces = [(output.states[at, :length], output.mask[at, :length]) for at, length in enumerate(lengths)]
        states, mask = (pad_sequence([torch.cat([pieces[at][k] for at in row]) for row in ROWS], True) for k in (0, 1))
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
