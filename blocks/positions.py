"""`positions`: tells each position where it is, by adding a vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, BlockError, Context, Count, NoEffect, Site, State, write
from blocks.core.functional import count_positions, no_positions, sinusoidal


class Positions(Block):
    """Position embeddings, sinusoidal or learned.

    sinusoidal: y_t = x_t + [sin(t w_i), cos(t w_i)], w_i = 10000^(-2i/D)

    learned: y_t = x_t + E_t

    Sinusoidal embeddings are those of Vaswani et al. 2017, section 3.5; learned ones those of
    Gehring et al. 2017, section 3.1. On a grid the sinusoids of the position t are added to the
    first half of the features and those of the column w to the second; learned embeddings add a
    vector of the position and one of the column, F_w.
    With `per_iteration`, in iteration k of a repeat, [sin(k w_i), cos(k w_i)] is added too
    (Dehghani et al. 2019, section 2.1).

    Settings:
        kind: sinusoidal | learned.
        max_length: Rows of the learned table, 512 by default; later positions share the last row.
            Columns of a grid have a table of their own.
        per_iteration: Whether the innermost `repeat` around it counts too, from 0.

    Shapes: (B, T, D) -> (B, T, D), (B, T, W, D) -> (B, T, W, D). State: positions so far (B,).
    Raises BlockError for `per_iteration` where there is no repeat, for a `max_length` of sinusoidal
    positions, and for sinusoids of a grid with one feature.
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
        stream = site.stream
        if per_iteration:
            site.require_repeat("per_iteration")
        if kind == "sinusoidal" and max_length is not None:
            message = "`max_length` applies to `learned` positions only"
            raise NoEffect("max_length", message, fix="remove it, or write `kind: learned`")
        if stream.grid and kind == "sinusoidal" and stream.width == 1:
            message = "one feature cannot have a half for positions and one for columns"
            raise BlockError(
                "kind",
                message,
                code="width",
                fix=write("kind", "learned", ", or put a `linear` before it"),
            )
        self.columns, self.width, self.per_iteration = stream.columns, stream.width, per_iteration
        self.max_positions = (max_length or 512) if kind == "learned" else None
        self.table = nn.Embedding(self.max_positions, self.width) if self.max_positions else None
        self.column_table = (
            nn.Embedding(stream.columns, self.width) if self.max_positions and stream.grid else None
        )
        self.out = stream
        for table in (self.table, self.column_table):
            if table is not None:
                nn.init.normal_(table.weight, std=0.1)

    def start(self, x: Tensor, context: Context) -> State:
        return context.once(no_positions, context.mask)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        where = state[:, None] + torch.arange(x.shape[1], device=x.device)  # (B, T)
        added = (
            self._of_cells(where, x.dtype)
            if self.columns
            else self._of_positions(where, x.dtype, self.width)
        )
        if self.per_iteration:
            added = added + sinusoidal(where.new_full((1, 1), context.iteration), self.width).to(
                x.dtype
            )
        return x + added, context.once(count_positions, state, context.mask)

    def _of_positions(self, where: Tensor, dtype: torch.dtype, width: int) -> Tensor:
        """(...) -> (..., width)"""
        if self.table is None:
            return sinusoidal(where, width).to(dtype)
        return self.table(where.clamp(max=self.table.num_embeddings - 1))

    def _of_cells(self, where: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, T) -> (B, T, W, D)"""
        columns = torch.arange(self.columns, device=where.device)
        if self.column_table is not None:
            return self._of_positions(where, dtype, self.width)[:, :, None] + self.column_table(
                columns
            )
        half = (self.width + 1) // 2
        down = F.pad(self._of_positions(where, dtype, half), (0, self.width - half))  # (B, T, D)
        across = F.pad(sinusoidal(columns, self.width - half).to(dtype), (half, 0))  # (W, D)
        return down[:, :, None] + across
