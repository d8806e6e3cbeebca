"""Loops over positions: Python's where a model runs, one node of the graph where it is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.utils import _pytree as pytree

from blocks.core.contract import State

Step = Callable[..., tuple[State, tuple[Tensor, ...]]]
"""From the state and what each input has at a position, to the state after it and its outputs."""


def over_positions(
    step: Step, state: State, inputs: Sequence[Tensor], dim: int = 1
) -> tuple[State, tuple[Tensor, ...]]:
    """Run `state, outputs = step(state, *inputs_t)` position by position.

    inputs: (B, T, ...) each -> the last state, the outputs (B, T, ...) each; T is `dim`. The state
    keeps its sizes.
    """
    if torch.compiler.is_exporting() and not _has_one(inputs[0], dim):
        return _scan(step, state, inputs, dim)
    outputs: list[tuple[Tensor, ...]] = []
    for at_position in zip(*(x.unbind(dim) for x in inputs), strict=True):
        state, made = step(state, *at_position)
        outputs.append(made)
    return state, tuple(torch.stack(made, dim) for made in zip(*outputs, strict=True))


def _has_one(x: Tensor, dim: int) -> bool:
    """True if a program is for one position: a comparison would fix a size that is free."""
    return isinstance(x.shape[dim], int) and x.shape[dim] == 1


def _scan(
    step: Step, state: State, inputs: Sequence[Tensor], dim: int
) -> tuple[State, tuple[Tensor, ...]]:
    leaves, layout = pytree.tree_flatten(state)

    def run(carried: list[Tensor], at_position: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after, made = step(pytree.tree_unflatten(carried, layout), *at_position)
        # a scan wants new tensors
        return [leaf.clone() for leaf in pytree.tree_leaves(after)], [one.clone() for one in made]

    last, outputs = scan(run, [leaf.clone() for leaf in leaves], list(inputs), dim=dim)
    return pytree.tree_unflatten(last, layout), tuple(outputs)
