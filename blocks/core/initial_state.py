"""Initial states of recurrent blocks and slot memories: zeros, learned, a projected memory mean, or
a copied state.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from blocks.core.contract import BlockError, Context, Output, Site, State
from blocks.core.fixes import Fix, Set

UNKNOWN_STATE = ("unknown",)
"""The kind of the state of a block that was refused: as far as anyone knows, it can be copied by
any other.
"""


class StateInitializer(nn.Module):
    """The state before the first position.

    `sizes` has the widths of the state's leaves in the state's own form, a tuple of tuples; `kind`
    is its kind. A memory's is tanh(W m + b) of m, the mean over its real positions.
    Raises BlockError where the memory is unknown, or what it copies is of another kind.
    """

    layouts: ClassVar = {"learned": ""}

    def __init__(
        self,
        site: Site,
        chosen: str | dict[str, str],
        sizes: tuple[tuple[int, ...], ...],
        kind: tuple[object, ...],
    ) -> None:
        super().__init__()
        self.sizes, total = sizes, sum(sum(leaf_sizes) for leaf_sizes in sizes)
        self.copied = self.memory = ""
        self.learned: nn.Parameter | None = None
        if isinstance(chosen, dict):
            self.copied = resolve_copy(site, chosen, kind)
        elif chosen == "learned":
            self.learned = nn.Parameter(torch.empty(1, total))
            nn.init.normal_(self.learned, std=0.1)
        elif chosen != "zeros":
            self.memory = site.memory(chosen, "initial_state")
            self.project = nn.Linear(site.memories[self.memory].stream.width, total)
            nn.init.xavier_uniform_(self.project.weight)
            nn.init.zeros_(self.project.bias)

    def forward(self, like: Tensor, context: Context) -> State:
        """like: (B, ...), for the batch, the precision and the device -> leaves (B, size)"""
        if self.copied:
            return context.memories[self.copied].last
        return self._split(self._all_values(like, context))

    def _all_values(self, like: Tensor, context: Context) -> Tensor:
        if self.learned is not None:
            return self.learned.to(like.dtype).expand(like.shape[0], -1)
        if self.memory:
            return torch.tanh(self.project(memory_mean(context.memories[self.memory]))).to(
                like.dtype
            )
        return like.new_zeros(like.shape[0], sum(sum(leaf_sizes) for leaf_sizes in self.sizes))

    def _split(self, values: Tensor) -> State:
        states, first = [], 0
        for leaf_sizes in self.sizes:
            leaves = values[..., first : first + sum(leaf_sizes)].split(leaf_sizes, dim=-1)
            first += sum(leaf_sizes)
            states.append(tuple(leaves))
        return tuple(states)


def resolve_copy(
    site: Site, chosen: dict[str, str], kind: tuple[object, ...], projected: bool = True
) -> str:
    """Return the name whose last state is copied. Raises BlockError where it has none of this
    `kind`.

    The error speaks of what can be written instead: a projection, or where there is none, zeros.
    """
    if set(chosen) != {"copy"}:
        raise BlockError(
            "initial_state",
            "a mapping here has the one key `copy`",
            fix="write `{copy: encoder.x}`",
        )
    name = site.memory(chosen["copy"], "initial_state")
    there = site.memories[name].state_kind
    if there not in (kind, UNKNOWN_STATE):
        left, wanted = describe_difference(there, kind), describe_difference(kind, there)
        other, why = (name.partition(".")[0], " for a projection") if projected else ("zeros", "")
        message = f"`{name}` leaves {left}, and this starts from {wanted}"
        words = (
            f"copy from a `{kind[0]}` with the same settings, or write `initial_state:"
            f" {other}`{why}"
        )
        raise BlockError("initial_state", message, fix=Fix(words, Set(("initial_state",), other)))
    return name


def describe_difference(kind: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    """Describe what a kind of state has and `other` has not. A kind is a block's word and pairs
    (what, how many).
    """
    if not kind:
        return "no state that can be copied"
    block, *parts = kind
    own = [f"{what} {value}" for what, value in parts if (what, value) not in other]
    # which follows from the others
    own = [part for part in own if not part.startswith("kept width")] or own
    return f"the state of `{block}`" + (f" with {', '.join(own)}" if own else "")


def memory_mean(memory: Output) -> Tensor:
    """Return the mean over a memory's real positions, zeros where there is none: (B, D)"""
    states, mask = memory.states.flatten(1, -2), memory.mask.flatten(1)  # (B, S, D), (B, S)
    total = states.masked_fill(~mask[..., None], 0.0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


EMPTY_SLOT = 1e-6
"""What an empty memory is filled with: a slot of zeros would have no direction that could resemble
a key.
"""

MemoryInit = Literal["constant", "learned", "random"]


class SlotMemoryInitializer(nn.Module):
    """The state before the first position: the memory (B, N, M), the heads' places (B, H, N), what
    they read (B, R M).

    `heads` are how many read and how many write; `kind` is the kind of the state. What is learned,
    or projected from a memory's mean, begins with every head near slot 0: the logits of its places
    have 2 log N there.
    Raises BlockError where the memory is unknown, or what it copies is of another kind.
    """

    filled: Tensor

    layouts: ClassVar = {"learned": "", "filled": ""}

    def __init__(
        self,
        site: Site,
        chosen: str | dict[str, str],
        filling: MemoryInit,
        size: tuple[int, int],
        heads: tuple[int, int],
        kind: tuple[object, ...],
    ) -> None:
        super().__init__()
        self.reading, self.heads, self.slots = heads[0], sum(heads), size[0]
        self.copied = self.memory = ""
        self.learned: nn.Parameter | None = None
        if isinstance(chosen, dict):
            self.copied = resolve_copy(site, chosen, kind)
            return
        self._fill(filling, size)
        self.sizes = [self.heads * size[0], self.reading * size[1]]
        if chosen == "learned":
            self.learned = nn.Parameter(torch.zeros(1, sum(self.sizes)))
        elif chosen != "zeros":
            self.memory = site.memory(chosen, "initial_state")
            self.project = nn.Linear(site.memories[self.memory].stream.width, sum(self.sizes))
            nn.init.xavier_uniform_(self.project.weight)
            nn.init.zeros_(self.project.bias)

    def _fill(self, filling: MemoryInit, size: tuple[int, int]) -> None:
        if filling == "learned":
            self.filled = nn.Parameter(initial_memory(filling, *size))
        else:
            self.register_buffer("filled", initial_memory(filling, *size))

    def forward(self, like: Tensor, context: Context) -> State:
        """like: (B, ...), for the batch, the precision and the device."""
        if self.copied:
            return context.memories[self.copied].last
        memory = self.filled.to(like.dtype).expand(like.shape[0], -1, -1)  # (B, N, M)
        if self.learned is not None:
            return (memory, *self._normalise(self.learned.expand(like.shape[0], -1)))
        if self.memory:
            return (
                memory,
                *self._normalise(
                    self.project(memory_mean(context.memories[self.memory])).to(like.dtype)
                ),
            )
        places = first_slot(like, self.slots).expand(like.shape[0], self.heads, -1)  # (B, H, N)
        return memory, places, memory[:, :1].expand(-1, self.reading, -1).flatten(1)

    def _normalise(self, values: Tensor) -> tuple[Tensor, Tensor]:
        places, reads = values.split(self.sizes, -1)
        logits = places.unflatten(-1, (self.heads, -1)) + 2 * math.log(self.slots) * first_slot(
            values, self.slots
        )
        return logits.softmax(-1).to(values.dtype), torch.tanh(reads)  # (B, H, N), (B, R M)


def first_slot(like: Tensor, slots: int) -> Tensor:
    """Return a head's weighting with all weight on slot 0: (N,)"""
    return (torch.arange(slots, device=like.device) == 0).to(like.dtype)


def initial_memory(filling: MemoryInit, slots: int, width: int) -> Tensor:
    """Return the initial values of a memory: (N, M)."""
    if filling == "random":
        most = (slots + width) ** -0.5
        return torch.empty(slots, width).uniform_(-most, most)
    return torch.full((slots, width), EMPTY_SLOT)
