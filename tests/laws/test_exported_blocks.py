"""The law of export: every block alone, as a program, computes what the block does at any sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from blocks.core.contract import Block, Output
from blocks.core.functional import default_dtype
from composer.programs.files import difference
from composer.programs.graphs import to_graph
from composer.programs.parts import Signature, Tensors, usual_strides
from composer.recipe.registry import blocks
from composer.testing import PLACES, Case
from composer.testing.harness import COLUMNS, Batch, Place, run, start
from tests.exporters.sizes import TOLERANCE, to_session
from tests.laws.test_blocks import VARIANTS

EXAMPLES = (11, 4, 9), (23, 19, 1, 7, 20), (17, 16, 2, 3, 4, 5, 6)
"""Real positions of the rows of each example."""
OTHERS = EXAMPLES[0], (5,), (1,), (2, 1), (13, 0, 6, 6), (40, 33), (3, 3, 3, 3, 3)
"""Those at which a program is compared with its block."""
DECODED = (6, 2, 5), (4,), (1,), (7, 3, 2, 1), (33, 1)
FUSED = ("rnn",)
"""Blocks of which every variant is exported, since each has another kernel."""


class BlockProgram(nn.Module):
    """A block over all positions of an encoder, or over one position from a state."""

    name = "block"

    def __init__(self, block: Block, batch: Batch, *, one_position: bool) -> None:
        super().__init__()
        self.block, self.one_position = block, one_position
        _, self.form = pytree.tree_flatten((batch, self.state_of(batch)))
        y, after = self.compute(batch, self.state_of(batch))
        count = self.form.num_leaves
        names = tuple(f"in.{at}" for at in range(count))
        outs = tuple(f"out.{at}" for at, _ in enumerate(pytree.tree_leaves((y, after))))
        self.signature = Signature(names, outs)

    def state_of(self, batch: Batch) -> object:
        """The state before the position of a decoder, which `start` has made in an encoder."""
        return start(self.block, batch) if self.one_position else ()

    def compute(self, batch: Batch, state: object) -> tuple[Tensor, object]:
        before = state if self.one_position else start(self.block, batch)
        made = run(self.block, batch, before)
        return made.real, made.state

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        batch, state = pytree.tree_unflatten(list(inputs), self.form)
        return tuple(map(usual_strides, pytree.tree_leaves(self.compute(batch, state))))

    def inputs(self, batch: Batch, state: object) -> Tensors:
        leaves = map(usual_strides, pytree.tree_leaves((batch, state)))
        return dict(zip(self.signature.inputs, leaves, strict=True))


def single(batch: Batch) -> Batch:
    """Return a float32 batch."""
    return pytree.tree_map(lambda x: x.float() if x.is_floating_point() else x, batch)


def last_position(block: Block, batch: Batch) -> tuple[Batch, object]:
    """Return the last position of a batch, all of it real, and the state before it."""

    def piece(which: slice) -> Batch:
        board = {
            name: Output(output.states[:, which], output.mask[:, which])
            for name, output in batch.board.items()
        }
        return batch._replace(x=batch.x[:, which], mask=batch.mask[:, which], board=board)

    first, last = piece(slice(None, -1)), piece(slice(-1, None))
    last = last._replace(mask=torch.ones_like(last.mask))
    if first.x.shape[1] == 0:
        return last, start(block, last)
    return last, run(block, first).state


def assert_exported(case: Case, lengths: Sequence[Sequence[int]]) -> None:
    block = case.build()
    one_position = case.place == "decoder"

    def given(rows: Sequence[int], seed: int) -> tuple[Batch, object]:
        batch = single(case.batch(rows, seed=seed))
        return last_position(block, batch) if one_position else (batch, ())

    with torch.no_grad():
        program = BlockProgram(block, given(EXAMPLES[0], 2)[0], one_position=one_position)
        examples = [program.inputs(*given(rows, 2)) for rows in EXAMPLES]
        session = to_session(to_graph(program, examples))
        for rows in lengths:
            problem = difference(program, session, program.inputs(*given(rows, 3)), TOLERANCE)
            assert not problem, f"{case.settings} in a {case.place}, rows of {rows}: {problem}"


@pytest.mark.slow
@default_dtype(torch.float32)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_block_is_exported(name: str, place: Place) -> None:
    for columns in (0, COLUMNS):
        cases = [
            Case(blocks()[name], settings, place, columns=columns) for settings in VARIANTS[name]
        ]
        accepted = [case for case in cases if case.refusal() is None]
        for case in accepted if name in FUSED else accepted[:1]:
            assert_exported(case, DECODED if place == "decoder" else OTHERS)
