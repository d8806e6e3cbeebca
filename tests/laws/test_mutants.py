"""Each law catches its break: the project's own blocks with one thing wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.cgru import Cgru
from blocks.conv import Conv
from blocks.conv2d import Conv2d
from blocks.core.attention import attention, open_empty_rows
from blocks.core.contract import Block, Context, InitialState, NamedOutputs, Site, State
from blocks.cross_attention import CrossAttention
from blocks.discrete_stacks import DiscreteStacks
from blocks.flatten import Flatten
from blocks.linear import Linear
from blocks.memory_network import MemoryNetwork
from blocks.mlstm import Mlstm
from blocks.nram import Nram
from blocks.ntm import Ntm
from blocks.positions import Positions
from blocks.queue_memory import QueueMemory
from blocks.recurrent import Recurrent
from blocks.repeat import Repeat
from blocks.residual import Residual
from blocks.rnn import Rnn
from blocks.select_column import SelectColumn
from blocks.self_attention import SelfAttention
from blocks.stack_memory import StackMemory
from blocks.sum_columns import SumColumns as ColumnSum
from blocks.supporting_facts import SupportingFacts
from composer.testing import LAWS, LawError, check_block
from tests.laws.test_laws_catch import BROKEN


class CountsFromZero(Positions):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context)[0], state


class CountsPaddingToo(Positions):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class SeesTheFuture(SelfAttention):
    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, context: Context
    ) -> Tensor:
        return attention(query, keys, values, open_empty_rows(seen[:, None, None]), context)


class ForgetsThePadding(SelfAttention):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class ReadsPadding(CrossAttention):
    def start(self, x: Tensor, context: Context) -> State:
        keys, values, mask, *others = super().start(x, context)
        return keys, values, torch.ones_like(mask), *others


class PenalisesEachChunk(CrossAttention):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, state, context)
        return y, (*after[:-1], state[-1])


class ReadsNothingWell(CrossAttention):
    """A softmax over no key at all."""

    def start(self, x: Tensor, context: Context) -> State:
        keys, values, _, *others = super().start(x, context)
        return keys, values, context.memories["encoder"].mask[:, None, None], *others

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, _ = super().forward(x, state, context)
        return y + state[2].any(-1)[:, 0].to(x.dtype).log()[..., None], state


class RunsOverPadding(Rnn):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class KeepsTheLastColumns(Conv):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, state, context)
        return y, (torch.cat((state, x), 1)[:, -self.reach :] if self.causal else after)


class ReadsTheEdge(Conv):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class SharesItsState(Repeat):
    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        y, after, named = super().forward(x, state, context)
        return y, (after[0],) * len(after), named


class GoesOnForAll(Repeat):
    """A row goes on for as long as its batch is."""

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        named: NamedOutputs = {}
        for _ in range(x.shape[1]):
            x, _, named = self.stacks[0](x, state[0], context)
        return x, state, named


class SeesUnrealCells(Cgru):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class ReadsPastTheEdge(Conv2d):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class AddsUnrealCells(ColumnSum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x.sum(2), state


class ReadsAnUnrealCell(SelectColumn):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x[:, :, self.index], state


class LeavesUnrealCells(Flatten):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x.flatten(1, 2), state


class LosesTheMask(Residual):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class DoublesWhatItLifts(Recurrent):
    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        y, after, named = super().forward(x, state, context)
        return (y if self.stop == len(self.stack.inner()) else 2 * y), after, named


class WritesAtPadding(Ntm):
    """Its heads stay where they are at a masked position, and write there."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, (_, *heads) = super().forward(x, state, context)
        _, (memory, *_) = super().forward(
            x, state, context._replace(mask=torch.ones_like(context.mask))
        )
        return y, (memory, *heads)


class MovesAtPadding(Ntm):
    """Its heads write nothing at a masked position, and move."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, (memory, _, read) = super().forward(x, state, context)
        _, (_, places, _) = super().forward(
            x, state, context._replace(mask=torch.ones_like(context.mask))
        )
        return y, (memory, places, read)


class ForgetsWhereItsHeadsWere(Ntm):
    """A copied memory is read from slot 0."""

    def start(self, x: Tensor, context: Context) -> State:
        memory, places, read = super().start(x, context)
        return (
            memory,
            torch.zeros_like(places).index_fill(-1, torch.tensor(0), 1.0),
            torch.zeros_like(read),
        )


class PopsAtPadding(QueueMemory):
    def __init__(self, site: Site) -> None:
        super().__init__(site)

    def _parse(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, push, _ = super()._parse(x, mask)
        return values, push, super()._parse(x, torch.ones_like(mask))[2]


class BeginsWithZeros(StackMemory):
    """It goes on with another one's cells, and knows nothing of them until it has read."""

    def __init__(self, site: Site, *, initial_state: InitialState = "zeros") -> None:
        super().__init__(site, initial_state=initial_state)

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        return torch.zeros_like(super().initial_output(x, state))


class ActsOnPadding(DiscreteStacks):
    def _actions(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return super()._actions(x, torch.ones_like(mask))


class ReadsMaskedSentences(MemoryNetwork):
    def start(self, x: Tensor, context: Context) -> State:
        made, real, *question = super().start(x, context)
        return made, torch.ones_like(real), *question


class FindsMaskedSentences(SupportingFacts):
    def start(self, x: Tensor, context: Context) -> State:
        made, real, question = super().start(x, context)
        return made, torch.ones_like(real), question


class RunsOnPadding(Nram):
    """Positions beyond a row are cells that hold what stands there."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class ForgetsAllButTheFirst(Mlstm):
    """The first numbers of a sigmoid's argument, under an exponential: each step multiplies what is
    kept by 20.
    """

    def _init_gates(self) -> None:
        super()._init_gates()
        with torch.no_grad():
            biases = self.input_forget.bias.view(self.directions, 2, -1)
            biases[:, 1] = torch.linspace(3.0, 6.0, self.heads)


class HasNoState(Linear):
    """None in place of (), which is what a block without a state returns."""

    def start(self, x: Tensor, context: Context) -> State:
        return None  # type: ignore[return-value]


TANH = [{"linear": {"activation": "tanh"}}]
INSIDE = [{"rnn": {"cell": "tanh"}}]
FEEDBACK = [{"concat": {"of": ["prev.top"]}}, {"rnn": {"as": "top"}}, {"linear": {}}]
TAPE = {"slots": 5, "slot_width": 3}
CONTINUES = {"initial_state": {"copy": "encoder.same"}}
MUTANTS: list[tuple[type[Block], dict[str, Any], str]] = [
    (CountsFromZero, {}, "chunks"),
    (CountsPaddingToo, {}, "ragged_chunks"),
    (SeesTheFuture, {"heads": 2, "window": 2}, "causality"),
    (ForgetsThePadding, {"heads": 2}, "ragged_chunks"),
    (ReadsPadding, {}, "padding"),
    (PenalisesEachChunk, {"doubly_stochastic": 1.0}, "chunks"),
    (ReadsNothingWell, {}, "padding"),
    (RunsOverPadding, {}, "ragged_chunks"),
    (KeepsTheLastColumns, {}, "ragged_chunks"),
    (ReadsTheEdge, {"stride": 2}, "padding"),
    (SharesItsState, {"times": 2, "stack": INSIDE}, "chunks"),
    (LosesTheMask, {"stack": INSIDE}, "ragged_chunks"),
    (GoesOnForAll, {"times": "length", "stack": TANH, "share": True}, "padding"),
    (GoesOnForAll, {"times": "length", "stack": [{"cgru": {}}], "share": True}, "padding"),
    (SeesUnrealCells, {}, "padding"),
    (ReadsPastTheEdge, {}, "padding"),
    (AddsUnrealCells, {}, "padding"),
    (ReadsAnUnrealCell, {"index": 1}, "padding"),
    (LeavesUnrealCells, {}, "padding"),
    (DoublesWhatItLifts, {"stack": FEEDBACK}, "lifting"),
    (WritesAtPadding, TAPE, "ragged_chunks"),
    (MovesAtPadding, TAPE, "ragged_chunks"),
    (ForgetsWhereItsHeadsWere, {**TAPE, **CONTINUES}, "initial_output"),
    (PopsAtPadding, {}, "ragged_chunks"),
    (BeginsWithZeros, CONTINUES, "initial_output"),
    (ActsOnPadding, {"stacks": 2, "cells": 4}, "ragged_chunks"),
    (ReadsMaskedSentences, {"from": "encoder.grid"}, "padding"),
    (FindsMaskedSentences, {"from": "encoder.grid", "query": "encoder"}, "padding"),
    (RunsOnPadding, {"steps": 2}, "padding"),
    (ForgetsAllButTheFirst, {"heads": 2, "forget_gate": "exp"}, "reach"),
    (HasNoState, {}, "form"),
]


@pytest.mark.parametrize(
    ("block", "settings", "law"), MUTANTS, ids=[block.__name__ for block, _, _ in MUTANTS]
)
def test_a_mutant_of_a_block_is_caught(
    block: type[Block], settings: dict[str, Any], law: str
) -> None:
    with pytest.raises(LawError) as raised:
        check_block(block, settings, compiles=False)
    assert raised.value.law == law, raised.value


def test_every_law_catches_a_mutant() -> None:
    caught = {law for _, law in [*BROKEN, *((block, law) for block, _, law in MUTANTS)]}
    assert caught >= {*LAWS, "settings"}
