"""`ntm`: the memory of a Neural Turing Machine, with heads that read and write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from blocks.core import addressing, fixes
from blocks.core.addressing import AddressParams, AddressTape
from blocks.core.contract import (
    Block,
    BlockError,
    Bounds,
    Context,
    Count,
    Few,
    InitialState,
    NoEffect,
    Site,
    State,
)
from blocks.core.functional import no_autocast
from blocks.core.initial_state import MemoryInit, SlotMemoryInitializer
from blocks.core.loops import over_positions

Shift = Annotated[int, Bounds(minimum=0, maximum=1_000)]
"""How many slots a head may move in one step."""
Order = Literal["write_read", "read_write", "write_address_read"]
Tensors = tuple[Tensor, ...]
TAPE_FIELDS = len(AddressTape._fields)


class Ntm(Block):
    """Heads that write and read a memory of slots (Graves et al. 2014, sections 3.1 to 3.3).

    Each head's address is a linear map of x_t: k = tanh, beta = softplus, g = sigmoid, s = softmax,
    gamma = 1 + softplus (equations 5 to 9).
        w^c(i) = softmax_i(beta cos(k, M_(t-1)(i))), w^g = g w^c + (1 - g) w_(t-1)
        w~(i) = sum_j w^g(j) s(i - j), in a circle; w_t(i) = w~(i)^gamma / sum w~^gamma
    Then all writing heads erase, then all add, e = sigmoid and a = tanh; the reading heads read
    what is there now, so the equations hold in the order 3, 4, 2, which `order` changes:
        M~(i) = M_(t-1)(i) prod_h (1 - w_h(i) e_h), M_t(i) = M~(i) + sum_h w_h(i) a_h
        r_t = sum_i w_t(i) M_t(i)

    Settings:
        slots: How many slots the memory has, 1 or more.
        slot_width: How many numbers a slot holds.
        read_heads: How many heads read.
        write_heads: How many heads write.
        order: When the reading heads read: write_read, what the step has written, at places found
            before; read_write, what was there before it; write_address_read, what it has written,
            at places that they find there. Other implementations have one of the last two: that of
            their list of heads.
        shift: How many slots a head may move in one step, either way; fewer than half of the slots.
            0 for none.
        memory: What the memory holds at first: constant (1e-6 everywhere), learned (from there), or
            random (drawn once, uniform within 1 / sqrt(slots + slot_width)).
        initial_state: zeros (every head at slot 0, and what it reads there) | learned (from near
            there) | a memory (its mean, projected) | {copy: MEMORY.x} (the memory, the heads'
            places and what they read, of another ntm).

    Shapes: (B, T, D) -> (B, T, read_heads * slot_width). State: the memory (B, slots, slot_width),
    where the heads are (B, read_heads + write_heads, slots), and what they read, (B, read_heads *
    slot_width).
    Raises BlockError where a grid arrives, for a shift that the slots have no room for, for a state
    to copy of another kind, and for a `memory` beside one that is copied.
    """

    family = "memory"

    def __init__(
        self,
        site: Site,
        *,
        slots: Count = 128,
        slot_width: Count = 20,
        read_heads: Few = 1,
        write_heads: Few = 1,
        order: Order = "write_read",
        shift: Shift = 1,
        memory: MemoryInit = "constant",
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__()
        _check_settings(slots, shift, order, memory, initial_state)
        stream = site.sequence("ntm")
        self.slots, self.slot_width, self.shift = slots, slot_width, shift
        self.reading, self.writing, self.order = read_heads, write_heads, order
        self.out = stream._replace(width=read_heads * slot_width)
        self.state_kind = (
            "ntm",
            ("slots", slots),
            ("slot_width", slot_width),
            ("read_heads", read_heads),
            ("write_heads", write_heads),
        )
        self.asks = nn.Linear(
            stream.width,
            (read_heads + write_heads) * sum(addressing.param_sizes(slot_width, shift)),
        )
        self.writes = nn.Linear(stream.width, 2 * write_heads * slot_width)
        for layer in (self.asks, self.writes):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        heads = read_heads, write_heads
        self.initial = SlotMemoryInitializer(
            site, initial_state, memory, (slots, slot_width), heads, self.state_kind
        )

    def start(self, x: Tensor, context: Context) -> State:
        return self.initial(x.to(self.asks.weight.dtype), context)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        memory, places, read = state
        params = self._head_params(x, memory.dtype)
        with no_autocast(memory):
            before = memory.mT, places, read.unflatten(1, (self.reading, -1)), context.mask
            if self.order == "write_read":
                memory, passed, reads = NTMLoop.apply(*before, *params)
            else:
                memory, passed, reads = run_heads(self.order, *before, *params)
        self._record(passed, context)
        reads = reads.flatten(2)  # (B, T, R M)
        return reads.to(x.dtype), (memory.mT, passed[:, -1], reads[:, -1])

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        read: Tensor = state[2]
        return read[:, None]

    def _head_params(self, x: Tensor, dtype: torch.dtype) -> Tensors:
        """Return the parameters of the heads at all positions, as `NTMLoop` takes them."""
        x = x.to(self.asks.weight.dtype)
        addresses = (
            self.asks(x).to(dtype).unflatten(-1, (self.reading + self.writing, -1))
        )  # (B, T, H, .)
        erase, add = (
            self.writes(x).to(dtype).unflatten(-1, (2, self.writing, -1)).unbind(2)
        )  # (B, T, W, M)
        return (
            *addressing.split_params(addresses, self.slot_width, self.shift),
            torch.sigmoid(erase),
            torch.tanh(add),
        )

    def _record(self, passed: Tensor, context: Context) -> None:
        context.record("read_weights", passed[:, :, : self.reading])  # (B, T, R, N)
        context.record("write_weights", passed[:, :, self.reading :])  # (B, T, W, N)


def run_heads(
    order: Order, memory: Tensor, places: Tensor, read: Tensor, real: Tensor, *params: Tensor
) -> Tensors:
    """Run the other orders as `NTMLoop` does its own, with the gradient that autograd finds."""
    reading = read.shape[1]

    def step(
        state: Tensors, now: Tensor, share: Tensor, *params: Tensor
    ) -> tuple[Tensors, tuple[Tensor, Tensor]]:
        memory, places, read = state
        *addresses, erase, add = params
        if order == "read_write":
            new_places = addressing.address(
                memory, places, AddressParams(*addresses)
            ).places  # (B, H, N)
            seen = torch.bmm(new_places[:, :reading], memory.mT)  # (B, R, M)
            memory = write(memory, new_places[:, reading:] * share, erase, add)  # (B, M, N)
        else:
            readers = AddressParams(*(values[:, :reading] for values in addresses))
            writers = AddressParams(*(values[:, reading:] for values in addresses))
            write_places = addressing.address(memory, places[:, reading:], writers).places
            memory = write(memory, write_places * share, erase, add)
            new_places = torch.cat(
                (addressing.address(memory, places[:, :reading], readers).places, write_places), 1
            )
            seen = torch.bmm(new_places[:, :reading], memory.mT)
        places, read = torch.where(now, new_places, places), torch.where(now, seen, read)
        return (memory, places, read), (places, read)

    parts = (real[..., None, None], real[..., None, None].to(memory.dtype), *params)
    (memory, *_), (passed, reads) = over_positions(step, (memory, places, read), parts)
    return memory, passed, reads


class NTMLoop(torch.autograd.Function):
    """Position after position, what the heads are told of all of them given, (B, T, ., .) each.

    Its own gradient, which keeps one memory of a step, and adds all that is a memory's gradient up
    in one place.
    """

    @staticmethod
    def forward(
        ctx: Any, memory: Tensor, places: Tensor, read: Tensor, real: Tensor, *params: Tensor
    ) -> Tensors:
        reading, saves = read.shape[1], any(ctx.needs_input_grad)
        saved: list[Tensor] = []

        def step(
            state: Tensors, now: Tensor, share: Tensor, *one: Tensor
        ) -> tuple[Tensors, tuple[Tensor, Tensor]]:
            memory, places, read = state
            tape = addressing.address(memory, places, AddressParams(*one[:4]))
            places = torch.where(now, tape.places, places)  # (B, H, N)
            memory = write(memory, places[:, reading:] * share, one[4], one[5])  # (B, M, N)
            read = torch.where(now, torch.bmm(places[:, :reading], memory.mT), read)  # (B, R, M)
            if saves:
                saved.extend(tape)
            return (memory, places, read), (places, read)

        real = real[..., None, None]
        parts = (real, real.to(memory.dtype), *params)
        (memory, places, _), (passed, reads) = over_positions(
            step, (memory.contiguous(), places, read), parts
        )
        ctx.save_for_backward(parts[1], *params, *saved, memory, places)
        return memory, passed, reads

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, total: Tensor, passed: Tensor, reads: Tensor
    ) -> tuple[Tensor | None, ...]:
        params, saved = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
        fields = [saved[first:-2:TAPE_FIELDS] for first in range(TAPE_FIELDS)]
        tapes = [AddressTape(*values) for values in zip(*fields, strict=True)]
        total = total.clone(memory_format=torch.contiguous_format)  # (B, M, N), step by step
        places, read, after = (
            torch.zeros_like(passed[:, 0]),
            torch.zeros_like(reads[:, 0]),
            saved[-2:],
        )
        parts = [values.unbind(1) for values in (passed, reads, *params)]
        grads = []
        with no_autocast(total):
            for tape, place, seen, *one in reversed([*zip(tapes, *parts, strict=True)]):
                (places, read), data = step_backward(
                    total, places + place, read + seen, tape, after, one
                )
                grads.append(data)
                after = tape.memory, tape.before
        return (
            total,
            places,
            read,
            None,
            *(torch.stack(values[::-1], 1) for values in zip(*grads, strict=True)),
        )


def step_backward(
    total: Tensor,
    places: Tensor,
    read: Tensor,
    tape: AddressTape,
    after: Tensors,
    params: Sequence[Tensor],
) -> tuple[Tensors, Tensors]:
    """Return the gradients of what was before a step and of its numbers, from those of the
    weightings and the reads.

    `after` are the memory and the places that it left. The memory's gradient goes to `total`, in
    place.
    """
    (share, *addresses, erase, add), reading = params, read.shape[1]
    reader, writer = after[1][:, :reading], after[1][:, reading:] * share
    seen = read * share  # (B, R, M)
    total.baddbmm_(seen.mT, reader)
    wrote, *data = write_backward(total, tape.memory, writer, erase, add)
    places = places + torch.cat((torch.bmm(seen, after[0]), wrote.mul_(share)), 1)  # (B, H, N)
    grad_places = places * share
    before, where = addressing.address_backward(total, grad_places, AddressParams(*addresses), tape)
    return (before.add_(places.sub_(grad_places)), read - seen), (*where, *data)


def write(memory: Tensor, places: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """Return a memory (B, M, N) after heads at `places` (B, W, N) have all erased, then all added
    (B, W, M) each.
    """
    *_, last = erase_sequence(memory, places.split(1, 1), erase.split(1, 1))
    return last.baddbmm_(add.mT, places)  # new, since at least one head has erased


def erase_sequence(memory: Tensor, places: Tensors, erase: Tensors) -> list[Tensor]:
    """Return the memory before and after each head. places: (B, 1, N), erase: (B, 1, M) each"""
    left = [memory]
    for place, rate in zip(places, erase, strict=True):
        left.append(torch.addcmul(left[-1], place, left[-1] * rate.mT, value=-1.0))  # (B, M, N)
    return left


def write_backward(
    total: Tensor, memory: Tensor, places: Tensor, erase: Tensor, add: Tensor
) -> Tensors:
    """Replace the gradient `total` of what is written by that of the memory, and return those of
    the other three.
    """
    wrote, added = torch.bmm(add, total), torch.bmm(places, total.mT)  # (B, W, N), (B, W, M)
    heads, rates, rated = places.split(1, 1), erase.split(1, 1), []
    lefts = erase_sequence(memory, heads[:-1], rates[:-1])
    for left, place, rate, share in reversed(
        [*zip(lefts, heads, rates, wrote.split(1, 1), strict=True)]
    ):
        product = total * left  # (B, M, N)
        share.baddbmm_(rate, product, alpha=-1.0)
        rated.append(torch.baddbmm(rate, place, product.mT, beta=0.0, alpha=-1.0))  # (B, 1, M)
        total.addcmul_(place, torch.mul(total, rate.mT, out=product), value=-1.0)
    return wrote, torch.cat(rated[::-1], 1), added


def _check_settings(
    slots: int, shift: int, order: Order, memory: str, initial_state: str | dict[str, str]
) -> None:
    """Raise BlockError where settings do not go together."""
    needed = 2 * shift + 1
    if needed > slots:
        message = (
            f"a head that moves {shift} slots either way needs {needed}, and there are {slots}"
        )
        raise BlockError(
            "shift", message, fix=fixes.write("shift", (slots - 1) // 2, f", or `slots: {needed}`")
        )
    if slots == 1 and order == "write_address_read":
        raise NoEffect(
            "order", "there is one slot, and a head finds no other after a step has written"
        )
    if memory != "constant" and isinstance(initial_state, dict):
        message = (
            "`memory` conflicts with `initial_state: {copy: ...}`, which continues another ntm's"
            " memory"
        )
        raise NoEffect("memory", message, fix="remove `memory` here, or set it on the copied ntm")
