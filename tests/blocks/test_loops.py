"""Loops over positions, run by Python and as one node of an exported program of any length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from blocks.core.contract import BlockError, Context, State
from blocks.core.loops import is_free, is_one, over_positions, turns
from blocks.flatten import real_first


def exported(module: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    """Export a module for any number of positions, the second dimension of its inputs."""
    any_length = {1: torch.export.Dim("length", min=2)}
    with torch.no_grad():
        return torch.export.export(module, inputs, dynamic_shapes=tuple(any_length for _ in inputs))


class Decay(nn.Module):
    """A leaky sum, the largest input so far, and weights that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.tensor([rate]) for rate in (0.9, 0.5, 0.1))

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = turns([*self.weights], x.shape[1])

        def step(
            state: State, number: int | Tensor, one: Tensor, real: Tensor
        ) -> tuple[State, tuple[Tensor, Tensor]]:
            total, largest = state
            total = torch.where(real[:, None], weight(number) * total + one, total)
            most = one.amax(1)
            largest = {"most": torch.maximum(most, largest["most"]) if largest else most}
            return (total, largest), (total, one - total)

        state = x.new_zeros(x.shape[0], x.shape[2]), ()
        (_, largest), (y, z) = over_positions(step, state, (x, real), numbered=True)
        return y, z, largest["most"]


@pytest.mark.parametrize("length", [2, 5, 11])
def test_a_program_of_any_length_computes_what_the_loop_does(length: int) -> None:
    module, real = Decay(), torch.ones(2, 7, dtype=torch.bool)
    program = exported(module, torch.randn(2, 7, 3), real).module()
    # above 0, as a state that is not there yet begins from zeros
    x, real = torch.rand(2, length, 3), torch.arange(length) < torch.tensor([[length], [1]])
    for got, want in zip(program(x, real), module(x, real), strict=True):
        torch.testing.assert_close(got, want)


def test_loops_along_the_first_dimension() -> None:
    def add(total: Tensor, one: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        return total + one, (total,)

    last, (before,) = over_positions(add, torch.zeros(2), [torch.ones(3, 2)], dim=0)
    assert (last.tolist(), before.tolist()) == ([3, 3], [[0, 0], [1, 1], [2, 2]])


class Growing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def step(seen: Tensor, one: Tensor) -> tuple[Tensor, tuple[()]]:
            return torch.cat((seen, one[:, None]), 1), ()

        seen: Tensor = over_positions(step, x[:, :0], [x])[0]
        return seen


def test_a_state_that_grows_fits_no_program_of_any_length() -> None:
    assert Growing()(torch.ones(2, 3, 1)).shape == (2, 3, 1)
    with pytest.raises(BlockError, match="grows"):
        exported(Growing(), torch.ones(2, 3, 1))


def test_the_number_of_an_iteration_is_unknown_in_a_program_of_any_length() -> None:
    context = Context(torch.ones(1, 1, dtype=torch.bool), {}, {}, iterations=(3,))
    assert context.iteration == 3
    with pytest.raises(BlockError, match="iteration"):
        _ = context._replace(iterations=(torch.tensor(3),)).iteration


def test_a_length_is_free_only_while_exporting() -> None:
    assert not is_free(3)
    assert (is_one(1), is_one(2)) == (True, False)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_real_places_come_first_and_keep_their_order(share: float) -> None:
    there = torch.rand(4, 9) < share
    expected = (~there).to(torch.uint8).argsort(dim=1, stable=True)
    assert torch.equal(real_first(there), expected)
