"""`ntm`: the memory of a Neural Turing Machine, with heads that read and write it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import torch
from torch import Tensor, nn

from blocks.core import addressing
from blocks.core.contract import Block, BlockError, Bounds, Context, Count, InitialState, Site, State
from blocks.core.tape import Filling, Tape

Shift = Annotated[int, Bounds(minimum=0, maximum=1_000)]
"""How many slots a head may move in one step."""
Tensors = tuple[Tensor, ...]


class Ntm(Block):
    """Heads that write and read a memory of slots (Graves, Wayne & Danihelka 2014, sections 3.1 to 3.3).

    Each head says where, by a linear map of x_t: k = tanh, beta = softplus, g = sigmoid, s = softmax,
    gamma = 1 + softplus.
        w^c(i) = softmax_i(beta cos(k, M_(t-1)(i))), w^g = g w^c + (1 - g) w_(t-1)       (equations 5 to 7)
        w~(i) = sum_j w^g(j) s(i - j), in a circle; w_t(i) = w~(i)^gamma / sum w~^gamma   (equations 8 and 9)
    Then all writing heads erase, then all add, e = sigmoid and a = tanh; the reading heads read what is there now, so
    the equations hold in the order 3, 4, 2:
        M~(i) = M_(t-1)(i) prod_h (1 - w_h(i) e_h), M_t(i) = M~(i) + sum_h w_h(i) a_h   (equations 3 and 4)
        r_t = sum_i w_t(i) M_t(i)                                                        (equation 2)

    Settings:
        slots: How many slots the memory has, 1 or more.
        slot_width: How many numbers a slot holds.
        read_heads: How many heads read.
        write_heads: How many heads write.
        shift: How many slots a head may move in one step, either way; fewer than half of the slots. 0 for none.
        memory: What the memory holds at first: constant (1e-6 everywhere), learned (from there), or random (drawn once,
            uniform within 1 / sqrt(slots + slot_width)).
        initial_state: zeros (every head at slot 0, and what it reads there) | learned (from near there) | a memory (its
            mean, projected) | {copy: MEMORY.x} (the memory, the heads' places and what they read, of another ntm).

    Shapes: (B, T, D) -> (B, T, read_heads * slot_width). State: the memory (B, slots, slot_width), where the heads are
    (B, read_heads + write_heads, slots), and what they read, (B, read_heads * slot_width).
    Raises BlockError where a grid arrives, for a shift that the slots have no room for, for a state to copy of another
    kind, and for a `memory` beside one that is copied.
    """

    def __init__(self, site: Site, *, slots: Count = 128, slot_width: Count = 20, read_heads: Count = 1,
                 write_heads: Count = 1, shift: Shift = 1, memory: Filling = "constant",
                 initial_state: InitialState = "zeros") -> None:  # fmt: skip
        super().__init__()
        _refuse(slots, shift, memory, initial_state)
        stream = site.sequence("ntm")
        self.slots, self.slot_width, self.shift = slots, slot_width, shift
        self.reading, self.writing = read_heads, write_heads
        self.out = stream._replace(width=read_heads * slot_width)
        self.state_kind = ("ntm", ("slots", slots), ("slot_width", slot_width), ("read_heads", read_heads),
                           ("write_heads", write_heads))  # fmt: skip
        self.asks = nn.Linear(stream.width, (read_heads + write_heads) * sum(addressing.sizes(slot_width, shift)))
        self.writes = nn.Linear(stream.width, 2 * write_heads * slot_width)
        for layer in (self.asks, self.writes):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        heads = read_heads, write_heads
        self.initial = Tape(site, initial_state, memory, (slots, slot_width), heads, self.state_kind)

    def start(self, x: Tensor, context: Context) -> State:
        state: State = self.initial(x.to(self.asks.weight.dtype), context)
        return state

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        memory, places, read = state
        asked, erase, add = self._said(x, context.mask, memory.dtype)
        reads, passed = [], []
        with exactly(memory):
            for one, e, a, real in zip(asked, erase, add, context.mask.unbind(1), strict=True):
                found = addressing.address(memory, places, one)  # (B, H, N)
                places = torch.where(real[:, None, None], found, places)
                memory = written(memory, places[:, self.reading :], e, a)
                seen = (places[:, : self.reading] @ memory).flatten(1)  # (B, R M)
                read = torch.where(real[:, None], seen, read)
                reads.append(read)
                passed.append(places)
        self._shown(passed, context)
        return torch.stack(reads, 1).to(x.dtype), (memory, places, read)

    def before(self, x: Tensor, state: State) -> Tensor:
        read: Tensor = state[2]
        return read[:, None]

    def _said(self, x: Tensor, mask: Tensor, dtype: torch.dtype) -> tuple[list[addressing.Where], Tensors, Tensors]:
        """What the heads are told, position by position; at a masked one to erase nothing and to add nothing."""
        x = x.to(self.asks.weight.dtype)
        told = self.asks(x).to(dtype).unflatten(-1, (self.reading + self.writing, -1))  # (B, T, H, .)
        whole = addressing.where(told, self.slot_width, self.shift)
        asked = [addressing.Where(*one) for one in zip(*(each.unbind(1) for each in whole), strict=True)]
        data = self.writes(x).to(dtype).unflatten(-1, (2, self.writing, -1))  # (B, T, 2, W, M)
        data = torch.stack((torch.sigmoid(data[:, :, 0]), torch.tanh(data[:, :, 1])), 2)
        data = data.masked_fill(~mask[:, :, None, None, None], 0.0)
        return asked, data[:, :, 0].unbind(1), data[:, :, 1].unbind(1)

    def _shown(self, places: list[Tensor], context: Context) -> None:
        if context.records is not None:
            whole = torch.stack(places, 1)  # (B, T, H, N)
            context.record("read_weights", whole[:, :, : self.reading])
            context.record("write_weights", whole[:, :, self.reading :])


def exactly(x: Tensor) -> AbstractContextManager[object]:
    """Where autocast must not round: what a state of many steps is made of. There is no autocast on meta."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def written(memory: Tensor, places: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """A memory (B, N, M) after heads at `places` (B, W, N) have all erased, then all added (B, W, M) each."""
    one = memory.new_ones(())
    for place, each in zip(places.split(1, 1), erase.split(1, 1), strict=True):  # (B, 1, N), (B, 1, M)
        memory = memory * torch.baddbmm(one, place.mT, each, alpha=-1.0)  # (B, N, M)
    return torch.baddbmm(memory, places.mT, add)


def _refuse(slots: int, shift: int, memory: str, initial_state: str | dict[str, str]) -> None:
    """Raises BlockError where settings do not go together."""
    needed = 2 * shift + 1
    if needed > slots:
        raise BlockError("shift", f"a head that moves {shift} slots either way needs {needed}, and there are {slots}",
                         fix=f"write `shift: {(slots - 1) // 2}`, or `slots: {needed}`")  # fmt: skip
    if memory != "constant" and isinstance(initial_state, dict):
        raise BlockError("memory", "the memory of another ntm is continued here, and needs none to begin with",
                         fix="remove `memory` here, and write it where the copied ntm stands")  # fmt: skip
