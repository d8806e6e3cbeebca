"""States that are carried from window to window of a text: of all streams of all processes.

Part p of P, for the turns of an accumulation one after another and in each the processes, has the
streams p, p + P, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from blocks.core.contract import State
from composer.model.encoder_decoder import map_leaves, state_leaves


def join_streams(states: Sequence[Mapping[int, State]]) -> State | None:
    """Return the states of all streams in order, from each process's by turn; None if empty."""
    parts = []
    for turn in sorted(states[0]):
        parts += [of_rank[turn] for of_rank in states]
    return _interleave(parts) if parts else None


def _interleave(parts: Sequence[State]) -> State:
    if isinstance(parts[0], tuple):
        return tuple(_interleave(leaves) for leaves in zip(*parts, strict=True))
    joined = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    for offset, part in enumerate(parts):
        joined[offset :: len(parts)] = part
    return joined


def redistribute_state(
    state: State, turns: int, rank: int, world: int, device: torch.device
) -> dict[int, State]:
    """Return one process's part of `join_streams` by turn, of any number of processes."""
    parts = turns * world

    def part_of(leaf: Tensor, part: int) -> Tensor:
        return leaf[part::parts].to(device)

    streams = {}
    for turn in range(turns):
        streams[turn] = map_leaves(state, partial(part_of, part=turn * world + rank))
    return streams


def has_shapes_of(state: State, fresh: State) -> bool:
    """True if the state of a checkpoint has the shapes of a fresh one, so of the same blocks."""
    return _stream_shapes(state) == _stream_shapes(fresh)


def _stream_shapes(state: State) -> list[torch.Size]:
    """Return the shapes of the tensors of a state, without the number of streams."""
    return [leaf.shape[1:] for leaf in state_leaves(state)]
