"""Continuous stacks, queues and deques (Grefenstette et al. 2015, section 3), told by heights.

The cells lie one upon another, and each is as thick as its strength. The height h_i is how much
lies below the upper edge of cell i: h_0 = 0 and h_i = s_1 + ... + s_i, so s_i = h_i - h_(i-1). What
the paper says of each strength with a sum over the cells above it is then said of all heights at
once: popping, pushing and reading only clamp and move them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, BlockError, Context, Site, State, write
from blocks.core.initial_state import resolve_copy

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


def push_top(heights: Tensor, strength: Tensor) -> Tensor:
    """Push a cell of `strength` (B, 1) on the top: (B, 1 + n) -> (B, 2 + n)"""
    return torch.cat((heights, heights[:, -1:] + strength), 1)


def push_bottom(heights: Tensor, strength: Tensor) -> Tensor:
    """Push a cell of `strength` (B, 1) under all others: (B, 1 + n) -> (B, 2 + n)"""
    return F.pad(heights + strength, (1, 0))


def read_top(heights: Tensor) -> Tensor:
    """Return the part of each cell within the top 1: (B, 1 + n) -> (B, n)

    min(s_i, max(0, 1 - sum_(j>i) s_j))
    """
    return torch.maximum(heights, heights[:, -1:] - 1.0).diff()


def read_bottom(heights: Tensor) -> Tensor:
    """Return the part of each cell within the lowest 1: (B, 1 + n) -> (B, n)

    min(s_i, max(0, 1 - sum_(j<i) s_j))
    """
    return heights.clamp(max=1.0).diff()


# ------------------------------------------------------------------------------------------- what
# the blocks share


class Ends(NamedTuple):
    """What is done at each end of a memory, the top first: how it is popped, pushed and read."""

    pop: tuple[Callable[[Tensor, Tensor], Tensor], ...]
    push: tuple[Callable[[Tensor, Tensor], Tensor], ...]
    read: tuple[Callable[[Tensor], Tensor], ...]


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
        self.ends, self.count, self.width = ends, len(ends.push), width or site.width
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
        values, heights = state  # (B, n, m), (B, 1 + n)
        pushed_values, push, pop = self._parse(x, context.mask)
        after: list[Tensor] = []
        for pushed, popped in zip(push.unbind(1), pop.unbind(1), strict=True):
            heights = self._pop_and_push(heights, pushed, popped)
            after.append(heights)
        values = self._append(values, pushed_values.to(values.dtype))
        weights = self._pad_cells(
            [self._read_weights(heights_t) for heights_t in after]
        )  # (B, T, ends, n)
        if context.records is not None:
            self._record(weights, after, context)
        return self._read(weights, values), (values, heights)

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        """Read the cells of the initial state: (B, 1, ends m)."""
        values, heights = state
        return self._read(self._read_weights(heights)[:, None], values)

    def _pop_and_push(self, heights: Tensor, push: Tensor, pop: Tensor) -> Tensor:
        """Pop, then push, at one position. heights (B, 1 + n); push, pop (B, ends) -> (B, 1 + n +
        ends)
        """
        for popped, amount in zip(self.ends.pop, pop.split(1, -1), strict=True):
            heights = popped(heights, amount)
        for pushed, strength in zip(self.ends.push, push.split(1, -1), strict=True):
            heights = pushed(heights, strength)
        return heights

    def _read_weights(self, heights: Tensor) -> Tensor:
        """Return the weight of each cell at each end: (B, 1 + n) -> (B, ends, n)"""
        return torch.stack([read(heights) for read in self.ends.read], 1)

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

    def _pad_cells(self, cells: Sequence[Tensor]) -> Tensor:
        """Stack the values of each position's cells, with zeros for later cells: (B, T, ., n)"""
        last = len(cells) - 1
        if not last:
            return torch.stack(list(cells), 1)
        padded = []
        for t, values in enumerate(cells):
            later = last - t
            below = later if self.count == 2 else 0
            padded.append(F.pad(values, (below, later)))
        return torch.stack(padded, 1)

    def _read(self, weights: Tensor, values: Tensor) -> Tensor:
        """(B, T, ends, n), (B, n, m) -> (B, T, ends m)"""
        read = weights.to(values.dtype).flatten(1, 2) @ values  # (B, T ends, m)
        return read.unflatten(1, weights.shape[1:3]).flatten(2)

    def _record(self, weights: Tensor, heights: Sequence[Tensor], context: Context) -> None:
        strengths = self._pad_cells(
            [heights_t.diff()[:, None] for heights_t in heights]
        )  # (B, T, 1, n)
        context.record("strengths", strengths[:, :, 0])
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
