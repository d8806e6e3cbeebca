"""The states that a training on windows of a text carries: those of all its streams, over processes
and turns.

Part p of P, for the turns of an accumulation one after another and in each the processes, has the
streams p, p + P, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from blocks.core.contract import State
from composer.model.encoder_decoder import map_leaves, state_leaves


def join_streams(states: Sequence[Mapping[int, State]]) -> State | None:
    """Return the states of all streams in their order, from those of each process by turn; None
    without any.
    """
    parts = [of_rank[turn] for turn in sorted(states[0]) for of_rank in states]
    return _interleave(parts) if parts else None


def _interleave(parts: Sequence[State]) -> State:
    if isinstance(parts[0], tuple):
        return tuple(_interleave(leaves) for leaves in zip(*parts, strict=True))
    joined = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    for at, part in enumerate(parts):
        joined[at :: len(parts)] = part
    return joined


def deal_streams(
    state: State, turns: int, rank: int, world: int, device: torch.device
) -> dict[int, State]:
    """Return one process's states of some streams by turn, of `join_streams` of any number of
    processes.
    """
    parts = turns * world
    return {
        turn: map_leaves(state, lambda leaf, part=turn * world + rank: leaf[part::parts].to(device))  # type: ignore[misc]
        for turn in range(turns)
    }


def has_shapes_of(state: State, fresh: State) -> bool:
    """Return whether a checkpoint's states are of the same blocks, in the same version, as a fresh
    one is.
    """
    shapes = [[leaf.shape[1:] for leaf in state_leaves(of)] for of in (state, fresh)]
    return shapes[0] == shapes[1]
