"""`discrete_stacks`: stacks of numbers whose actions are chosen among a few."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, BlockError, Context, Count, InitialState, Site, State, write
from blocks.core.loops import over_positions
from blocks.core.neural_stack import resolve_continuation

EMPTY_CELL = -1.0
"""What stands in a cell below a stack's bottom; what is pushed lies between 0 and 1."""
RECORDED_CELLS = 16
"""Cells of each stack in a picture."""


class DiscreteStacks(Block):
    """Stacks of numbers with soft actions (Joulin & Mikolov 2015, section 3.2, equations 3 to 6).

    a = softmax(A x + b) over push, pop and no-op; v = sigmoid(D x + b)

    s_0' = a_push v + a_pop s_1 + a_no s_0

    s_i' = a_push s_(i-1) + a_pop s_(i+1) + a_no s_i

    Each stack has its own A and D, and an empty cell is -1. y = the uppermost `depth` numbers of
    each s'. In the paper the next position reads them: put the block into a `recurrent`, and read
    `prev`.

    Settings:
        stacks: How many stacks, each with actions of its own, 1 or more.
        depth: How many numbers are read of each, from its top, 1 to `cells`.
        cells: How many numbers a stack holds, 1 or more; what is pushed below the last one is lost.
        no_op: Whether an action is to leave a stack as it is.
        rounding: none | evaluation: whether, outside training, the likeliest action alone is taken.
        initial_state: zeros (empty stacks) | {copy: MEMORY.x} (the stacks of another
            discrete_stacks).

    Shapes: (B, T, D) -> (B, T, stacks depth). State: (B, stacks, cells), the tops first.
    Raises BlockError where a grid arrives, where more is read than a stack holds, for another
    initial state, and where what is copied is of another kind.
    """

    family = "memory"
    not_packed = (
        "what it has put away belongs to a row, and would be read by the documents after it"
    )

    def __init__(
        self,
        site: Site,
        *,
        stacks: Count = 10,
        depth: Count = 2,
        cells: Count = 64,
        no_op: bool = True,
        rounding: Literal["none", "evaluation"] = "none",
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__()
        stream = site.sequence("discrete_stacks")
        if depth > cells:
            message = f"{depth} numbers are read of a stack that holds {cells}"
            raise BlockError("depth", message, fix=write("depth", cells, f", or `cells: {depth}`"))
        self.depth, self.sizes, self.actions, self.rounding = (
            depth,
            (stacks, cells),
            2 + no_op,
            rounding,
        )
        self.out = stream._replace(width=stacks * depth)
        self.state_kind = ("discrete_stacks", ("stacks", stacks), ("cells", cells))
        self.copied = resolve_continuation(site, initial_state, self.state_kind)
        self.map = nn.Linear(stream.width, stacks * (self.actions + 1))
        nn.init.xavier_uniform_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def start(self, x: Tensor, context: Context) -> State:
        exact = torch.promote_types(x.dtype, torch.float32)
        if self.copied:
            last: Tensor = context.memories[self.copied].last
            return last.to(exact)
        return x.new_full((x.shape[0], *self.sizes), EMPTY_CELL, dtype=exact)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        actions, pushed = self._actions(x, context.mask)
        shown = max(self.depth, RECORDED_CELLS)

        def step(stacks: Tensor, action: Tensor, value: Tensor) -> tuple[Tensor, tuple[Tensor]]:
            stacks = apply_actions(stacks, action, value)
            return stacks, (stacks[..., :shown],)

        state, (tops,) = over_positions(step, state, (actions, pushed))  # (B, T, stacks, shown)
        context.record("stacks", tops[..., :RECORDED_CELLS])
        return self._read(tops, x), state

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        return self._read(state[:, None], x)

    def _actions(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the actions (B, T, stacks, 3), all no-op in padding, and what is
        pushed.
        """
        numbers = self.map(x).unflatten(
            -1, (self.sizes[0], self.actions + 1)
        )  # (B, T, stacks, actions + 1)
        numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
        chosen = numbers[..., :-1].softmax(-1)
        if self.rounding == "evaluation" and not self.training:
            chosen = F.one_hot(chosen.argmax(-1), self.actions).to(chosen.dtype)
        chosen = F.pad(chosen, (0, 3 - self.actions))  # (B, T, stacks, 3)
        still = F.one_hot(torch.full_like(mask, 2, dtype=torch.long), 3).to(
            chosen.dtype
        )  # (B, T, 3)
        return torch.where(mask[..., None, None], chosen, still[:, :, None]), torch.sigmoid(
            numbers[..., -1]
        )

    def _read(self, stacks: Tensor, like: Tensor) -> Tensor:
        """(B, T, stacks, .) -> (B, T, stacks depth)"""
        return stacks[..., : self.depth].flatten(2).to(like.dtype)


def apply_actions(stacks: Tensor, action: Tensor, value: Tensor) -> Tensor:
    """Apply one position's actions. stacks: (B, S, N), action: (B, S, 3) of push, pop and no-op,
    value: (B, S)
    """
    around = F.pad(
        torch.cat((value[..., None], stacks), -1), (0, 1), value=EMPTY_CELL
    )  # (B, S, N + 2)
    push, pop, stay = action.unsqueeze(-2).unbind(-1)  # (B, S, 1) each
    return push * around[..., :-2] + pop * around[..., 2:] + stay * stacks
