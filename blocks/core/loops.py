"""Loops over positions: Python's where a model runs, one node of the graph where it is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.utils import _pytree as pytree

from blocks.core.contract import BlockError, State

Step = Callable[..., tuple[Any, tuple[Tensor, ...]]]
"""From the state and what each input has at a position, to the state after it and its outputs."""
Number: TypeAlias = "int | Tensor"
"""The number of a position, from 0; in a program for any length a tensor ()."""


def over_positions(
    step: Step, state: State, inputs: Sequence[Tensor], dim: int = 1, numbered: bool = False
) -> tuple[Any, tuple[Tensor, ...]]:
    """Run `state, outputs = step(state, *inputs_t)` position by position.

    inputs: (B, T, ...) each -> the last state, the outputs (B, T, ...) each; T is `dim`. A part of
    the state that is `()` at first may be any state after. With `numbered` the step is given the
    number of the position before the inputs. Raises BlockError where the state grows in a program
    for any length.
    """
    if is_free(inputs[0].shape[dim]):
        return _scan(step, state, inputs, dim, numbered)
    outputs: list[tuple[Tensor, ...]] = []
    for number, at_position in enumerate(zip(*(x.unbind(dim) for x in inputs), strict=True)):
        state, made = step(state, number, *at_position) if numbered else step(state, *at_position)
        outputs.append(made)
    return state, tuple(torch.stack(made, dim) for made in zip(*outputs, strict=True))


def is_free(length: int) -> bool:
    """True while exporting a program for any length: to compare the length would fix it."""
    return torch.compiler.is_exporting() and not isinstance(length, int)


def is_one(length: int) -> bool:
    """True if there is one position, and never any other number of them."""
    return not is_free(length) and length == 1


def is_compiled() -> bool:
    """True in `torch.compile`, which fuses operators by itself; a program that is exported has none
    that fuses them.
    """
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def turns(several: Sequence[Any], length: int) -> Callable[[Number], Any]:
    """Return the function from a position's number to whose turn it is, of several: states,
    parameters or, if the length is not free, anything.
    """
    count = len(several)
    if count == 1:
        return lambda number: several[0]
    if not is_free(length):
        return lambda number: several[int(number) % count]
    stacked = pytree.tree_map(lambda *leaves: torch.stack(leaves), *several)

    def turn(number: Number) -> Any:
        which = torch.as_tensor(number)[None] % count
        return pytree.tree_map(lambda leaf: leaf.index_select(0, which)[0], stacked)

    return turn


def _scan(
    step: Step, state: State, inputs: Sequence[Tensor], dim: int, numbered: bool
) -> tuple[State, tuple[Tensor, ...]]:
    over = [x.movedim(dim, 0) for x in inputs]
    if numbered:
        over.insert(0, torch.arange(over[0].shape[0], device=over[0].device))
    # asked for its sizes alone, the first step is no part of the program
    state = _fill(state, step(state, *(x[0] for x in over))[0])
    leaves, layout = pytree.tree_flatten(state)

    def run(carried: list[Tensor], at_position: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after, made = step(pytree.tree_unflatten(carried, layout), *at_position)
        return _copies(pytree.tree_leaves(after)), _copies(made)

    last, outputs = scan(run, _copies(leaves), over)
    return pytree.tree_unflatten(last, layout), tuple(one.movedim(0, dim) for one in outputs)


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return what a scan wants: new tensors, of standard strides."""
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]


def _fill(state: State, after: State) -> State:
    """Return `state`, with zeros for what the step makes where there is nothing yet."""
    if isinstance(state, tuple | list):
        if not state:
            return pytree.tree_map(torch.zeros_like, after)
        parts = [_fill(old, new) for old, new in zip(state, after, strict=True)]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if any(map(_differ, state.shape, after.shape)):
        raise BlockError("", "a state that grows at every position fits no program for any length")
    return state


def _differ(one: int, other: int) -> bool:
    """True if two sizes differ; one that is free is compared with none."""
    return isinstance(one, int) and isinstance(other, int) and one != other
