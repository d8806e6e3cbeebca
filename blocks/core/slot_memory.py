"""What a memory of slots holds before the first position, and where its heads are."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blocks.core.contract import Context, Site, State
from blocks.core.initial_state import copied, mean

EMPTY = 1e-6
"""What an empty memory is filled with: a slot of zeros would have no direction that could resemble a key."""

Filling = Literal["constant", "learned", "random"]


class Tape(nn.Module):
    """The state before the first position: the memory (B, N, M), the heads' places (B, H, N), what they read (B, R M).

    `heads` are how many read and how many write; `kind` is the kind of the state. What is learned, or projected from a
    memory's mean, begins with every head near slot 0: the logits of its places have 2 log N there.
    Raises BlockError where the memory is unknown, or what it copies is of another kind.
    """

    filled: Tensor

    def __init__(
        self,
        site: Site,
        chosen: str | dict[str, str],
        filling: Filling,
        size: tuple[int, int],
        heads: tuple[int, int],
        kind: tuple[Any, ...],
    ) -> None:
        super().__init__()
        self.reading, self.heads, self.slots = heads[0], sum(heads), size[0]
        self.copied = self.memory = ""
        self.learned: nn.Parameter | None = None
        if isinstance(chosen, dict):
            self.copied = copied(site, chosen, kind)
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

    def _fill(self, filling: Filling, size: tuple[int, int]) -> None:
        if filling == "learned":
            self.filled = nn.Parameter(filled(filling, *size))
        else:
            self.register_buffer("filled", filled(filling, *size))

    def forward(self, like: Tensor, context: Context) -> State:
        """like: (B, ...), for the batch, the precision and the device."""
        if self.copied:
            return context.memories[self.copied].last
        memory = self.filled.to(like.dtype).expand(like.shape[0], -1, -1)  # (B, N, M)
        if self.learned is not None:
            return (memory, *self._placed(self.learned.expand(like.shape[0], -1)))
        if self.memory:
            return (memory, *self._placed(self.project(mean(context.memories[self.memory])).to(like.dtype)))
        places = first_slot(like, self.slots).expand(like.shape[0], self.heads, -1)  # (B, H, N)
        return memory, places, memory[:, :1].expand(-1, self.reading, -1).flatten(1)

    def _placed(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        places, reads = whole.split(self.sizes, -1)
        logits = places.unflatten(-1, (self.heads, -1)) + 2 * math.log(self.slots) * first_slot(whole, self.slots)
        return logits.softmax(-1).to(whole.dtype), torch.tanh(reads)  # (B, H, N), (B, R M)


def first_slot(like: Tensor, slots: int) -> Tensor:
    """A head's place at slot 0: (N,)"""
    return (torch.arange(slots, device=like.device) == 0).to(like.dtype)


def filled(filling: Filling, slots: int, width: int) -> Tensor:
    """What a memory holds at first, (N, M)."""
    if filling == "random":
        most = (slots + width) ** -0.5
        return torch.empty(slots, width).uniform_(-most, most)
    return torch.full((slots, width), EMPTY)
