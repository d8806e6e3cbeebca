"""The recipes with stacks and queues: each model against a loop over its paper's equations, one row
at a time.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from composer.recipe.recipe import load
from composer.recipe.yaml_reader import to_data
from tests.recipes.paper_models import (
    LENGTHS,
    PAPERS,
    REAL,
    SOURCE,
    TARGET,
    all_of,
    expect_same_function,
    model_of,
)


class Cells:
    """The cells of a stack (`top`) or of a queue, as the paper's V_t, s_t and r_t: with loops, for
    one row.
    """

    def __init__(self, top: bool, width: int) -> None:
        self.top, self.values, self.strengths = top, list[Tensor](), list[Tensor]()
        self.read = torch.zeros(1, width)

    def beyond(self, index: int) -> Tensor:
        cells = self.strengths[index + 1 :] if self.top else self.strengths[:index]
        return sum(cells, torch.zeros(()))

    def move(self, said: Tensor) -> None:
        """said: (1, m + 2), the value, what is pushed and what is popped, before their tanh and
        sigmoids.
        """
        value, (push, pop) = said[0, :-2].tanh(), said[0, -2:].sigmoid()
        self.strengths = [
            (item - (pop - self.beyond(index)).clamp(min=0)).clamp(min=0)
            for index, item in enumerate(self.strengths)
        ]
        self.values.append(value)
        self.strengths.append(push)
        weights = [
            torch.minimum(item, (1 - self.beyond(index)).clamp(min=0))
            for index, item in enumerate(self.strengths)
        ]
        self.read = sum(
            (weight * item for weight, item in zip(weights, self.values, strict=True)),
            torch.zeros(1),
        )[None]


@pytest.mark.parametrize(("name", "top"), [("stack", True), ("queue", False)])
def test_the_decoder_continues_the_controller_and_its_cells(name: str, top: bool) -> None:
    model = model_of(f"grefenstette2015_{name}", width=6, memory=4)
    hears, writes = (
        all_of(model, "rnn", side)[0].layers[0].weights() for side in ("encoder", "decoder")
    )
    kept, output = (all_of(model, f"{name}_memory", side)[0].map for side in ("encoder", "decoder"))
    x, y = model.readers()["source"].embedding(SOURCE["source"]), model.embedding(TARGET)
    outputs = torch.zeros(2, 4, 11)
    for row, length in enumerate(LENGTHS):
        cells, state = Cells(top, 4), (torch.zeros(1, 6), torch.zeros(1, 6))
        for one in x[row, :length]:
            state = torch.lstm_cell(torch.cat((one[None], cells.read), -1), state, *hears)
            cells.move(kept(state[0]))
        for t in range(int(REAL[row].sum())):
            state = torch.lstm_cell(torch.cat((y[row, t][None], cells.read), -1), state, *writes)
            cells.move(output(state[0]))
            outputs[row, t] = model.output(torch.cat((cells.read, state[0]), -1))[0]
    expect_same_function(model, model(SOURCE, TARGET)[REAL], outputs[REAL])


def test_joulin_and_mikolov_read_the_tops_of_the_previous_step() -> None:
    model = model_of("joulin_mikolov2015", width=6, stacks=2, cells=3)
    (linear,), (stacks,) = all_of(model, "linear"), all_of(model, "discrete_stacks")
    x, outputs = model.embedding(TARGET), torch.zeros(2, 4, 11)
    for row in range(2):
        cells = torch.full((2, 3), -1.0)
        for t in range(int(REAL[row].sum())):
            heard = torch.cat((x[row, t][None], cells[:, :2].flatten()[None]), -1)
            hidden = torch.sigmoid(linear.map(heard))
            cells = moved(cells, stacks.map(hidden).view(2, 4))
            outputs[row, t] = model.output(hidden)[0]
    expect_same_function(model, model({}, TARGET)[REAL], outputs[REAL])


def moved(cells: Tensor, said: Tensor) -> Tensor:
    """Push, pop and no-op of each stack, (2, 3), by how likely each is, after what was said of it
    (2, 4).
    """
    push, pop, stay = said[:, :3].softmax(-1).unbind(-1)
    pushed = torch.cat((said[:, 3:].sigmoid(), cells[:, :-1]), 1)
    popped = torch.cat((cells[:, 1:], torch.full((2, 1), -1.0)), 1)
    return push[:, None] * pushed + pop[:, None] * popped + stay[:, None] * cells


@pytest.mark.parametrize("name", ["queue", "deque", "lstm"])
def test_all_memories_are_trained_on_the_same_task(name: str) -> None:
    """Symbols, lengths and training are the same in all, so that scores can be compared."""
    one, other = (
        to_data(load(PAPERS / f"grefenstette2015_{item}.yaml").root) for item in (name, "stack")
    )
    assert list(one["data"]["generate"].values()) == list(other["data"]["generate"].values())
    assert one["training"] == other["training"]
