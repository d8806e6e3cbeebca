"""`discrete_stacks` against lists of Python, the paper's equations number by number, and its
refusals.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.discrete_stacks import DiscreteStacks
from tests.blocks.single_block import close, context_of, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "discrete_stacks": (
        {"stacks": 2, "cells": 4},
        {"stacks": 3, "cells": 3, "depth": 3, "no_op": False},
        {"stacks": 2, "cells": 5, "rounding": "evaluation", "depth": 1},
        {"stacks": 2, "cells": 4, "initial_state": {"copy": "encoder.same"}},
    ),
}
"""Settings with which the laws are checked, by block."""

PUSH, POP, STAY = 0, 1, 2


def controlled_stacks(stacks: int, actions: int = 3, **settings: Any) -> DiscreteStacks:
    """Stacks that do as they are told: for each, the logits of its actions arrive, then that of
    what is pushed.
    """
    width = stacks * (actions + 1)
    block = DiscreteStacks(site_of(width), stacks=stacks, no_op=actions == 3, **settings).double()
    block.map.weight.data.copy_(torch.eye(width))
    block.map.bias.data.zero_()
    return block.eval()


def control_inputs(actions: list[list[int]], values: Tensor) -> Tensor:
    """What makes them take these actions whole, and push `values` (T, stacks): (1, T, .)"""
    sure = 1e3 * torch.nn.functional.one_hot(torch.tensor(actions), 3).double()  # (T, stacks, 3)
    return torch.cat((sure, torch.logit(values)[..., None]), -1).flatten(1)[None]


@pytest.mark.parametrize("seed", range(5))
def test_certain_actions_equal_python_lists(seed: int) -> None:
    generator, length, stacks, depth = random.Random(seed), 50, 3, 2
    actions = [generator.choices((PUSH, POP, STAY), (5, 4, 2), k=stacks) for _ in range(length)]
    values = torch.rand(
        length, stacks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    lists: list[list[float]] = [[] for _ in range(stacks)]
    read = []
    for chosen, written in zip(actions, values.tolist(), strict=True):
        for cells, action, value in zip(lists, chosen, written, strict=True):
            if action == PUSH:
                cells.append(value)
            elif action == POP and cells:
                cells.pop()
        read.append(
            [number for cells in lists for number in ([-1.0] * depth + cells)[: -depth - 1 : -1]]
        )
    y, _ = run(controlled_stacks(stacks, depth=depth), control_inputs(actions, values))
    close(y, torch.tensor([read], dtype=torch.float64))


def test_cells_pushed_below_the_last_one_are_lost() -> None:
    values = torch.tensor([[0.1], [0.2], [0.3], [0.5], [0.5]], dtype=torch.float64)
    y, _ = run(
        controlled_stacks(1, cells=2, depth=2),
        control_inputs([[PUSH], [PUSH], [PUSH], [POP], [POP]], values),
    )
    expected = [[0.1, -1.0], [0.2, 0.1], [0.3, 0.2], [0.2, -1.0], [-1.0, -1.0]]
    close(y, torch.tensor([expected], dtype=torch.float64))


# ------------------------------------------------------------------------------------------- the
# equations


def of_paper(x: Tensor, stacks: int, actions: int, cells: int, depth: int) -> Tensor:
    """Equations 3 to 6 of Joulin & Mikolov 2015, number by number: (T, .) -> (T, stacks depth)"""
    numbers = [[torch.tensor(-1.0).double()] * cells for _ in range(stacks)]
    read = []
    for message in x:
        for which, logits in enumerate(message.unflatten(0, (stacks, actions + 1))):
            chosen, before = (
                logits[:-1].softmax(0),
                [logits[-1].sigmoid(), *numbers[which], torch.tensor(-1.0)],
            )
            after = [chosen[PUSH] * before[i] + chosen[POP] * before[i + 2] for i in range(cells)]
            if actions == 3:
                after = [item + chosen[STAY] * before[i + 1] for i, item in enumerate(after)]
            numbers[which] = after
        read.append(torch.stack([item for stack in numbers for item in stack[:depth]]))
    return torch.stack(read)


@pytest.mark.parametrize("actions", [2, 3])
def test_the_state_equals_the_equations(actions: int) -> None:
    x = torch.randn(
        9, 2 * (actions + 1), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    mine, theirs = (item.clone().requires_grad_() for item in (x, x))
    y, _ = run(controlled_stacks(2, actions, cells=4, depth=3), mine[None])
    expected = of_paper(theirs, 2, actions, 4, 3)
    close(y[0], expected)
    weight = torch.randn(
        expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    close(
        torch.autograd.grad((y[0] * weight).sum(), mine),
        torch.autograd.grad((expected * weight).sum(), theirs),
    )


def test_rounding_takes_the_most_probable_action_in_evaluation_only() -> None:
    block, soft = (
        controlled_stacks(1, rounding="evaluation", depth=1),
        controlled_stacks(1, depth=1),
    )
    x = control_inputs([[PUSH], [PUSH], [POP]], torch.tensor([[0.25], [0.75], [0.5]]).double())
    mild = torch.cat((x[..., :3] / 1e3, x[..., 3:]), -1)
    close(run(block, mild)[0], torch.tensor([[[0.25], [0.75], [0.25]]]).double())
    close(run(block.train(), mild)[0], run(soft, mild)[0])
    assert not torch.allclose(run(soft, mild)[0], run(soft, x)[0])


def test_a_masked_position_does_not_change_the_state() -> None:
    block = controlled_stacks(2, 2, cells=4)
    x = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    close(run(block, x, mask_of(4, 6)[:1])[1], run(block, x[:, :4])[1])


def test_a_decoder_can_start_from_the_encoders_stacks() -> None:
    there = controlled_stacks(2, 2, cells=4)
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    read, last = run(there, x)
    memories = {"encoder": Named(Stream(4)), "encoder.tops": Named(there.out, there.state_kind)}
    copying = {"copy": "encoder.tops"}
    here = DiscreteStacks(site_of(3, memories=memories), stacks=2, cells=4, initial_state=copying)
    context = context_of(mask_of(1), {"encoder.tops": Output(read, mask_of(5), last)})
    begun = here.double().start(x[:, :1], context)
    close(begun, last)
    close(here.initial_output(x[:, :1], begun), read[:, -1:])
    with pytest.raises(BlockError, match="cells 4"):
        DiscreteStacks(site_of(3, memories=memories), stacks=2, cells=5, initial_state=copying)


def test_records_show_the_upper_cells() -> None:
    block = controlled_stacks(2, cells=20, depth=1)
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    context = context_of(mask_of(5))._replace(records={})
    _, last = block(x, block.start(x, context), context)
    ((record, (records,)),) = (context.records or {}).items()
    assert record.name == "stacks"
    close(records[:, -1], last[..., :16])


def test_reading_more_cells_than_the_depth_is_refused() -> None:
    with pytest.raises(BlockError) as caught:
        DiscreteStacks(site_of(3), depth=3, cells=2)
    assert (caught.value.setting, caught.value.fix.text) == (
        "depth",
        "write `depth: 2`, or `cells: 3`",
    )
