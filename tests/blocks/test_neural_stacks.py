"""The stack, the queue and the deque of Grefenstette et al. 2015: Python's own, their equations,
and a case by hand.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.deque_memory import DequeMemory
from blocks.queue_memory import QueueMemory
from blocks.stack_memory import StackMemory
from tests.blocks.single_block import close, context_of, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "deque_memory": ({}, {"width": 5}, {"initial_state": {"copy": "encoder.same"}}),
    "queue_memory": ({}, {"width": 5}, {"initial_state": {"copy": "encoder.same"}}),
    "stack_memory": ({}, {"width": 5}, {"initial_state": {"copy": "encoder.same"}}),
}
"""Settings with which the laws are checked, by block."""

Memory = StackMemory | QueueMemory | DequeMemory
ENDS: dict[type[Memory], int] = {StackMemory: 1, QueueMemory: 1, DequeMemory: 2}
KINDS = tuple(ENDS)
SURE = 1e3
"""A logit whose sigmoid is 1, and whose negative's is 0."""


def controlled_memory(kind: type[Memory], width: int, **settings: Any) -> Memory:
    """A memory that does as it is told: what arrives is the values (before their tanh), then d,
    then u.
    """
    block = kind(site_of(ENDS[kind] * (width + 2)), width=width, **settings).double()
    block.map.weight.data.copy_(torch.eye(ENDS[kind] * (width + 2)))
    block.map.bias.data.zero_()
    return block


def control_inputs(values: Tensor, push: Tensor, pop: Tensor) -> Tensor:
    """What makes such a memory push `values` (B, T, ends m) by `push` and pop by `pop`, (B, T,
    ends) each.
    """
    return torch.cat((torch.atanh(values), torch.logit(push), torch.logit(pop)), -1)


# ------------------------------------------------------------------------------------------- by
# hand


def test_three_positions_equal_figure_1_of_the_paper() -> None:
    """The program of the paper's Figure 1: push 0.8; pop 0.1 and push 0.5; pop 0.9 and push 0.9."""
    values = torch.tensor([[[0.5, 0.0], [0.0, 0.5], [-0.5, 0.5]]], dtype=torch.float64)
    push = torch.tensor([[[0.8], [0.5], [0.9]]], dtype=torch.float64)
    pop = torch.tensor([[[0.0], [0.1], [0.9]]], dtype=torch.float64)
    x = control_inputs(values, push, pop.clamp(min=1e-300))
    # a stack's strengths are 0.8 | 0.7 0.5 | 0.3 0.0 0.9, and its uppermost 1 has these parts of
    # them
    weights = torch.tensor([[0.8, 0.0, 0.0], [0.5, 0.5, 0.0], [0.1, 0.0, 0.9]], dtype=torch.float64)
    close(run(controlled_memory(StackMemory, 2), x)[0], (weights @ values[0])[None])
    # a queue's are 0.8 | 0.7 0.5 | 0.0 0.3 0.9, and its oldest 1 has these
    weights = torch.tensor([[0.8, 0.0, 0.0], [0.7, 0.3, 0.0], [0.0, 0.3, 0.7]], dtype=torch.float64)
    close(run(controlled_memory(QueueMemory, 2), x)[0], (weights @ values[0])[None])


# -------------------------------------------------------------------------------------------
# Python's own


def of_python(
    kind: type[Memory], values: Sequence[Any], push: Sequence[Any], pop: Sequence[Any]
) -> Tensor:
    """What a deque reads, which a stack uses at one end, and a queue at both: (T, ends m)"""
    cells: deque[Tensor] = deque()
    read = []
    for written, pushed, popped in zip(values, push, pop, strict=True):
        takes = [cells.popleft] if kind is QueueMemory else [cells.pop, cells.popleft]
        for take, flag in zip(takes, popped, strict=False):
            if flag and cells:
                take()
        for lay, value, flag in zip(
            (cells.append, cells.appendleft), written, pushed, strict=False
        ):
            if flag:
                lay(value)
        ends = (0,) if kind is QueueMemory else (-1, 0)[: ENDS[kind]]
        read.append(
            torch.cat([cells[end] if cells else torch.zeros_like(written[0]) for end in ends])
        )
    return torch.stack(read)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_strengths_of_one_equal_python_containers(kind: type[Memory], seed: int) -> None:
    rng, length, width = random.Random(seed), 60, 3
    values = (
        torch.rand(
            length, ENDS[kind], width, generator=torch.Generator().manual_seed(seed)
        ).double()
        - 0.5
    )
    push, pop = (
        [[rng.random() < share for _ in range(ENDS[kind])] for _ in range(length)]
        for share in (0.6, 0.4)
    )
    amounts = [SURE * (2 * torch.tensor(item).double() - 1) for item in (push, pop)]
    y, _ = run(
        controlled_memory(kind, width),
        torch.cat((torch.atanh(values).flatten(1), *amounts), -1)[None],
    )
    close(y[0], of_python(kind, list(values), push, pop))


# ------------------------------------------------------------------------------------------- the
# equations


def thinned(strengths: list[Tensor], amount: Tensor, from_top: bool) -> list[Tensor]:
    """Equations 2, 5, 7 and 8: what popping `amount` leaves of each cell."""
    left = []
    for i, strength in enumerate(strengths):
        beyond = sum(strengths[i + 1 :] if from_top else strengths[:i], torch.zeros(()).double())
        left.append((strength - (amount - beyond).clamp(min=0)).clamp(min=0))
    return left


def seen(strengths: list[Tensor], values: list[Tensor], from_top: bool) -> Tensor:
    """Equations 3, 10 and 11: what lies in the outermost 1."""
    read = torch.zeros_like(values[0])
    for i, strength in enumerate(strengths):
        beyond = sum(strengths[i + 1 :] if from_top else strengths[:i], torch.zeros(()).double())
        read = read + torch.minimum(strength, (1 - beyond).clamp(min=0)) * values[i]
    return read


def of_paper(kind: type[Memory], values: Tensor, push: Tensor, pop: Tensor) -> Tensor:
    """The equations, cell by cell: (T, ends, m), (T, ends), (T, ends) -> (T, ends m)"""
    tops = {StackMemory: (True,), QueueMemory: (False,), DequeMemory: (True, False)}[kind]  # type: ignore[index]
    cells, strengths, read = [], [], []
    for written, pushed, popped in zip(values, push, pop, strict=True):
        for amount, top in zip(popped, tops, strict=True):
            strengths = thinned(strengths, amount, top)
        cells, strengths = [*cells, written[0]], [*strengths, pushed[0]]
        if kind is DequeMemory:
            cells, strengths = [written[1], *cells], [pushed[1], *strengths]
        read.append(torch.cat([seen(strengths, cells, top) for top in tops]))
    return torch.stack(read)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_the_equations(kind: type[Memory]) -> None:
    block = torch.Generator().manual_seed(3)
    values, push, pop = (
        torch.rand(9, *size, generator=block, dtype=torch.float64).requires_grad_()
        for size in ((ENDS[kind], 2), (ENDS[kind],), (ENDS[kind],))
    )
    x = control_inputs(values.flatten(1), push, pop)[None]
    mine, theirs = run(controlled_memory(kind, 2), x)[0][0], of_paper(kind, values, push, pop)
    close(mine, theirs)
    weight = torch.rand(mine.shape, generator=block, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((mine * weight).sum(), (values, push, pop), retain_graph=True),
        torch.autograd.grad((theirs * weight).sum(), (values, push, pop)),
        strict=True,
    ):
        close(one, other)


# ------------------------------------------------------------------------------------------- states


def random_inputs(kind: type[Memory], rows: int, length: int) -> Tensor:
    size = (rows, length, 4 * ENDS[kind])
    return torch.randn(size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_position_is_a_cell_without_strength_and_pops_nothing(kind: type[Memory]) -> None:
    block, x = controlled_memory(kind, 2), random_inputs(kind, 1, 6)
    _, full = run(block, x[:, :4])
    _, padded = run(block, x, mask_of(4, 6)[:1])
    strengths, others = full[1].diff(), padded[1].diff()
    close(others.sum(1), strengths.sum(1))
    close(others[others > 0], strengths[strengths > 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_can_start_from_the_encoders_memory(kind: type[Memory]) -> None:
    there, x = controlled_memory(kind, 2), random_inputs(kind, 2, 5)
    mask = mask_of(5, 3)
    read, last = run(there, x, mask)
    memory = {"encoder": Named(Stream(2)), "encoder.cells": Named(there.out, there.state_kind)}
    here = kind(site_of(8, memories=memory), width=2, initial_state={"copy": "encoder.cells"})
    context = context_of(mask[:, :1], {"encoder.cells": Output(read, mask, last)})
    begun = here.double().start(x[:, :1], context)
    close(begun, last)
    close(here.initial_output(x[:, :1], begun)[:, 0], torch.stack((read[0, 4], read[1, 2])))
    empty = there.start(x[:, :1], context)
    close(there.initial_output(x[:, :1], empty), torch.zeros(2, 1, 2 * ENDS[kind]).double())


@pytest.mark.parametrize("kind", KINDS)
def test_little_is_popped_before_training(kind: type[Memory]) -> None:
    block = kind(site_of(4), width=3)
    biases = block.map.bias
    assert biases[-ENDS[kind] :].tolist() == [-1.0] * ENDS[kind]
    assert not biases[: -ENDS[kind]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_records_show_the_read_weights(kind: type[Memory]) -> None:
    block, x = controlled_memory(kind, 2), random_inputs(kind, 1, 4)
    context = context_of(mask_of(4))._replace(records={})
    read, (values, heights) = block(x, block.start(x, context), context)
    records = {record.name: value for record, (value,) in (context.records or {}).items()}
    close(records["read_weights"] @ values, read[..., :2])
    close(records["strengths"][:, -1], heights.diff())
    if kind is DequeMemory:
        close(records["read_weights_bottom"] @ values, read[..., 2:])


# -------------------------------------------------------------------------------------------
# refusals


def refused(build: Callable[[], object]) -> BlockError:
    with pytest.raises(BlockError) as caught:
        build()
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", ["learned", "encoder"])
def test_cells_are_neither_learned_nor_projected(kind: type[Memory], chosen: str) -> None:
    memory = {"encoder": Named(Stream(2))}
    error = refused(lambda: kind(site_of(4, memories=memory), initial_state=chosen))
    assert error.setting == "initial_state"
    assert "zeros" in error.fix.text
    assert "copy" in error.fix.text


def test_a_queue_does_not_continue_a_stack() -> None:
    memory = {
        "encoder": Named(Stream(2)),
        "encoder.cells": Named(Stream(2), ("stack_memory", ("width", 2))),
    }
    site = site_of(4, memories=memory)
    error = refused(lambda: QueueMemory(site, width=2, initial_state={"copy": "encoder.cells"}))
    assert error.setting == "initial_state"
    StackMemory(site, width=2, initial_state={"copy": "encoder.cells"})


# -------------------------------------------------------------------------------------------
# room


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_with_room_does_at_each_position_what_one_without_does(kind: type[Memory]) -> None:
    block, x, mask = kind(site_of(6), width=3).double(), torch.randn(2, 9, 6), mask_of(9, 7)
    context = context_of(mask)
    before = block(x[:, :4], block.start(x, context), context_of(mask[:, :4]))[1]  # some cells
    expected, after = block(x[:, 4:], before, context_of(mask[:, 4:]))
    room = block.make_room(before, 5)
    sizes = [leaf.shape for leaf in room]
    for t in range(4, 9):
        y, room = block(x[:, t : t + 1], room, context_of(mask[:, t : t + 1]))
        close(y, expected[:, t - 4 : t - 3])
        assert [leaf.shape for leaf in room] == sizes
    for got, want in zip(room[:2], after, strict=True):
        close(got, want)
