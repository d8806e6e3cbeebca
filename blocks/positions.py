"""`positions`: tells each position where it is, by adding a vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, NoEffect, Site, State
from blocks.core.functional import count_positions, no_positions, sinusoidal


class Positions(Block):
    """Position embeddings, sinusoidal (Vaswani et al. 2017, section 3.5) or learned (Gehring et al. 2017, section 3.1).

    sinusoidal: y_t = x_t + [sin(t w_i), cos(t w_i)], w_i = 10000^(-2i/D);   learned: y_t = x_t + E_t.
    With `per_iteration`, in iteration k of a repeat, [sin(k w_i), cos(k w_i)] is added too (Dehghani et al. 2019,
    section 2.1).

    Settings:
        kind: sinusoidal | learned.
        max_length: Rows of the learned table, 512 by default; later positions share the last row.
        per_iteration: Whether the innermost `repeat` around it counts too, from 0.

    Shapes: (B, T, D) -> (B, T, D). State: positions so far (B,).
    Raises BlockError where a grid arrives, for `per_iteration` where there is no repeat, and for a `max_length` of
    sinusoidal positions.
    """

    family = "position-wise"

    def __init__(
        self,
        site: Site,
        *,
        kind: Literal["sinusoidal", "learned"] = "sinusoidal",
        max_length: Count | None = None,
        per_iteration: bool = False,
    ) -> None:
        super().__init__()
        stream = site.sequence("positions")
        # whether the uses of a named stack are inside a repeat is not known here
        in_model, in_named_stack = site.path[:1] == ("model",), site.path[1:2] == ("stacks",)
        if per_iteration and in_model and not in_named_stack and "repeat" not in site.path:
            message = "there is no `repeat` around it, so no iteration to count"
            fix = "remove `per_iteration`, or move this block into the stack of a `repeat`"
            raise NoEffect("per_iteration", message, fix=fix)
        if kind == "sinusoidal" and max_length is not None:
            message = "`max_length` applies to `learned` positions only"
            raise NoEffect("max_length", message, fix="remove it, or write `kind: learned`")
        self.width, self.per_iteration = stream.width, per_iteration
        self.max_positions = (max_length or 512) if kind == "learned" else None
        self.table = nn.Embedding(self.max_positions, self.width) if self.max_positions else None
        self.out = stream
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.1)

    def start(self, x: Tensor, context: Context) -> State:
        return context.once(no_positions, context.mask)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        where = state[:, None] + torch.arange(x.shape[1], device=x.device)  # (B, T)
        if self.table is None:
            added = sinusoidal(where, self.width).to(x.dtype)  # (B, T, D)
        else:
            added = self.table(where.clamp(max=self.table.num_embeddings - 1))  # (B, T, D)
        if self.per_iteration:
            iteration = context.iterations[-1] if context.iterations else 0
            added = added + sinusoidal(where.new_full((1, 1), iteration), self.width).to(x.dtype)
        return x + added, context.once(count_positions, state, context.mask)
