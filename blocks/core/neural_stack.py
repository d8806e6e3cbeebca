"""Continuous stacks, queues and deques (Grefenstette et al. 2015, section 3), told by heights.

The cells lie one upon another, and each is as thick as its strength. The height h_i is how much
lies below the upper edge of cell i: h_0 = 0 and h_i = s_1 + ... + s_i, so s_i = h_i - h_(i-1). What
the paper says of each strength with a sum over the cells above it is then said of all heights at
once: popping, pushing and reading only clamp and move them. The cells of all positions lie there
from the start, and are thin until their position pushes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, BlockError, Context, Site, State, write
from blocks.core.initial_state import resolve_copy
from blocks.core.loops import over_positions

INITIAL_POP_BIAS = -1.0
"""The bias of what is popped, before training: a memory that is emptied at once teaches nothing."""


# -------------------------------------------------------------------------------------------
# heights


def pop_top(heights: Tensor, amount: Tensor) -> Tensor:
    """Pop `amount` (B, 1) off the top: s_i' = max(0, s_i - max(0, u - sum_(j>i) s_j)). heights: (B,
    1 + n)
    """
    return torch.minimum(heights, F.relu(heights[:, -1:] - amount))


def pop_bottom(heights: Tensor, amount: Tensor) -> Tensor:
    """Pop `amount` (B, 1) off the bottom: s_i' = max(0, s_i - max(0, u - sum_(j<i) s_j)). heights:
    (B, 1 + n)
    """
    return F.relu(heights - amount)


def read_top(heights: Tensor) -> Tensor:
    """Return the part of each cell within the top 1: (..., 1 + n) -> (..., n)

    min(s_i, max(0, 1 - sum_(j>i) s_j))
    """
    return torch.maximum(heights, heights[..., -1:] - 1.0).diff()


def read_bottom(heights: Tensor) -> Tensor:
    """Return the part of each cell within the lowest 1: (..., 1 + n) -> (..., n)

    min(s_i, max(0, 1 - sum_(j<i) s_j))
    """
    return heights.clamp(max=1.0).diff()


# ------------------------------------------------------------------------------------------- what
# the blocks share


class Ends(NamedTuple):
    """How each end of a memory is popped and read, the top first; each is pushed at."""

    pop: tuple[Callable[[Tensor, Tensor], Tensor], ...]
    read: tuple[Callable[[Tensor], Tensor], ...]


class Room(NamedTuple):
    """The state of a memory with room for the cells of a loop's positions."""

    values: Tensor  # (B, n, m)
    heights: Tensor  # (B, 1 + n)
    free: Tensor  # (ends,), the cell that is pushed next at each end


class NeuralStack(Block):
    """The cells of a stack, a queue or a deque: which, `ends` says. `block` is its word in a
    recipe.

    At each position v = tanh(W x + b), d and u = sigmoid(W x + b), of each end; then pop, push and
    read, in this order.
    """

    def __init__(
        self,
        site: Site,
        block: str,
        ends: Ends,
        width: int | None,
        initial_state: str | dict[str, str],
    ) -> None:
        super().__init__()
        stream = site.sequence(block)
        self.ends, self.count, self.width = ends, len(ends.pop), width or site.width
        self.out = stream._replace(width=self.count * self.width)
        self.state_kind = (block, ("width", self.width))
        self.copied = resolve_continuation(site, initial_state, self.state_kind)
        self.map = nn.Linear(stream.width, self.count * (self.width + 2))
        nn.init.xavier_uniform_(self.map.weight)
        nn.init.zeros_(self.map.bias)
        nn.init.constant_(self.map.bias.detach()[-self.count :], INITIAL_POP_BIAS)

    def start(self, x: Tensor, context: Context) -> State:
        """No cells, or those of the memory that is continued."""
        exact = torch.promote_types(x.dtype, torch.float32)
        if self.copied:
            values, heights = context.memories[self.copied].last
            return values, heights.to(exact)
        return x.new_zeros(x.shape[0], 0, self.width), x.new_zeros(x.shape[0], 1, dtype=exact)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        """x: (B, T, D) -> (B, T, ends m), and the state after it."""
        values, heights, *free = state  # (B, n, m), (B, 1 + n)
        pushed_values, push, pop = self._parse(x, context.mask)
        pushed_values = pushed_values.to(values.dtype)
        if free:
            cells = free[0][None]  # (1, ends)
        else:
            cells = self._pushed_cells(values, x.shape[1])  # (T, ends)
            values = self._append(values, pushed_values)
            heights = self._add_thin(heights, x.shape[1])
        edges = torch.arange(heights.shape[1], device=x.device)
        lifted = (edges > cells[..., None]).to(heights.dtype)[None]  # (1, T, ends, 1 + n)
        heights, (after,) = over_positions(self._step, heights, (push, pop, lifted))
        if free:
            values = values + lifted[0, 0].diff().mT.to(values.dtype) @ pushed_values[:, 0]
        weights = self._read_weights(after)  # (B, T, ends, n)
        if context.records is not None:
            self._record(weights, after, context)
        y = self._read(weights, values)
        if free:
            ways = 1 - 2 * torch.arange(self.count, device=x.device)  # up, then down
            return y, Room(values, heights, free[0] + ways)
        return y, (values, heights)

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        """Read the cells of the initial state: (B, 1, ends m)."""
        if not self.copied:
            return super().initial_output(x, state)
        values, heights = state
        return self._read(self._read_weights(heights[:, None]), values)

    def make_room(self, state: State, length: int) -> State:
        values, heights = state
        below = length if self.count == 2 else 0
        first = self._pushed_cells(values, length)[0]
        return Room(F.pad(values, (0, 0, below, length)), self._add_thin(heights, length), first)

    def _add_thin(self, heights: Tensor, length: int) -> Tensor:
        """Add thin cells for the positions to come: (B, 1 + n) -> (B, 1 + n + ends T)"""
        added = [heights, heights[:, -1:].expand(-1, length)]
        if self.count == 2:
            added.insert(0, heights[:, :1].expand(-1, length))
        return torch.cat(added, 1)

    def _pushed_cells(self, values: Tensor, length: int) -> Tensor:
        """Return the cell that each of so many positions pushes at each end: (T, ends)

        values: (B, n, m), before there is room.
        """
        below = length if self.count == 2 else 0
        first = [below + values.shape[1], below - 1][: self.count]
        position = torch.arange(length, device=values.device)
        ways = zip(first, (position, -position), strict=False)
        return torch.stack([one + way for one, way in ways], -1)

    def _step(
        self, heights: Tensor, push: Tensor, pop: Tensor, lifted: Tensor
    ) -> tuple[Tensor, tuple[Tensor]]:
        """Pop, then push. heights: (B, 1 + n), push and pop: (B, ends), lifted: (1, ends, 1 + n)"""
        for popped, amount in zip(self.ends.pop, pop.split(1, -1), strict=True):
            heights = popped(heights, amount)
        for strength, above in zip(push.split(1, -1), lifted.unbind(1), strict=True):
            heights = torch.addcmul(heights, strength, above)
        return heights, (heights,)

    def _read_weights(self, heights: Tensor) -> Tensor:
        """Return the weight of each cell at each end: (B, T, 1 + n) -> (B, T, ends, n)"""
        return torch.stack([read(heights) for read in self.ends.read], 2)

    def _parse(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values (B, T, ends, m), and the amounts pushed and popped (B, T, ends).

        The amounts are 0 where x is not real.
        """
        values, amounts = self.map(x).split((self.count * self.width, 2 * self.count), -1)
        exact = torch.promote_types(amounts.dtype, torch.float32)
        push, pop = (torch.sigmoid(amounts.to(exact)) * mask[..., None]).chunk(2, -1)
        return torch.tanh(values).unflatten(-1, (self.count, self.width)), push, pop

    def _append(self, values: Tensor, pushed_values: Tensor) -> Tensor:
        """Append cells of all positions: (B, n, m), (B, T, ends, m) -> (B, n + ends T, m)"""
        top, *bottom = pushed_values.unbind(2)  # (B, T, m) each
        return torch.cat((*(values_t.flip(1) for values_t in bottom), values, top), 1)

    def _read(self, weights: Tensor, values: Tensor) -> Tensor:
        """(B, T, ends, n), (B, n, m) -> (B, T, ends m)"""
        read = weights.to(values.dtype).flatten(1, 2) @ values  # (B, T ends, m)
        return read.unflatten(1, weights.shape[1:3]).flatten(2)

    def _record(self, weights: Tensor, heights: Tensor, context: Context) -> None:
        context.record("strengths", heights.diff())  # (B, T, n)
        for name, read in zip(
            ("read_weights", "read_weights_bottom"), weights.unbind(2), strict=False
        ):
            context.record(name, read)


def resolve_continuation(site: Site, chosen: str | dict[str, str], kind: tuple[object, ...]) -> str:
    """Return the memory whose last state is continued, "" for an empty beginning. Raises BlockError
    for any other.
    """
    if isinstance(chosen, dict):
        return resolve_copy(site, chosen, kind, projected=False)
    if chosen != "zeros":
        message = f"`{kind[0]}` begins empty, or as another one ended, and `{chosen}` is neither"
        fix = write(
            "initial_state", "zeros", f", or `{{copy: MEMORY.x}}` where x is another `{kind[0]}`"
        )
        raise BlockError("initial_state", message, fix=fix)
    return ""
