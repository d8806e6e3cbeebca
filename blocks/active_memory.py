"""`active_memory`: a decoder that writes its answer on a tape and reads it off a grid that changes
as a whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from blocks.core.contract import (
    Block,
    BlockError,
    Blocks,
    Context,
    Memory,
    Named,
    NoEffect,
    Output,
    Penalties,
    Site,
    State,
)
from blocks.core.functional import mask_cells
from blocks.core.loops import over_positions
from blocks.core.scope import Scope
from blocks.core.stack import (
    Stack,
    add_step_penalties,
    check_same_stream,
    checkpointed,
    collect_penalties,
)

TAPE = "tape"


class ActiveMemory(Block):
    """The decoder of the Extended Neural GPU (Kaiser & Bengio 2016, section 3): one step of the
    memory for each symbol.

    d_0 is the memory that an encoder left, the tape p_0 is empty. At position k the symbol o_(k-1)
    that arrives is written on the tape at its place k - 1, d_(k+1) = f(d_k, p_k), and what leaves
    is row k of d_(k+1). f may read all of d and of the tape, which is called `tape` in it; it is as
    an encoder: nothing in it is causal, for what is not yet written is not there.

    Settings:
        stack: The blocks f; they keep the grid. `tape` is the output tape, a grid as wide as what
            arrives here.
        from: The memory to start from, a grid: an encoder's name, or `encoder.x` for its output
            named x. The only encoder where there is one.
        write: The columns of the tape that a symbol is written to: first, as in the paper's
            equation, or all, as in its authors' code.
        recompute: Whether a step's inner values are computed again for the gradients, which takes
            more time and less memory.

    Shapes: (B, T, D) reads (B, S, W, M) -> (B, T, W, M). State: d (B, S, W, M), p (B, S, W, D),
    positions so far (B,).
    Raises BlockError where there is no memory, or several and no `from`, where it is no grid, and
    where f does not keep the grid.
    """

    family = "convolution"

    def __init__(
        self,
        site: Site,
        *,
        stack: Blocks,
        from_: Memory | None = None,
        write: Literal["first", "all"] = "first",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.memory, self.all, self.recompute = (
            site.memory(from_, "from"),
            write == "all",
            recompute,
        )
        memory, arriving = site.memories[self.memory].stream, site.sequence("active_memory")
        if not memory.grid:
            message = f"`{self.memory}` is a sequence, and `active_memory` starts from a grid"
            fix = "end the encoder with a grid: `- grid: 4`, and no `select_column`"
            raise BlockError("from", message, code="kind", fix=fix)
        self.tape_width = arriving.width
        tape = Named(memory._replace(width=arriving.width))
        outer = site.names
        names = Scope(
            {TAPE: tape}, outer.taken, outer.declared, outer.reserved, [], refused=outer.refused
        )
        self.stack: Stack = site.stack(("stack",), stack, names=names, stream=memory, causal="")
        check_same_stream(
            replace(site, stream=memory), self.stack, "a memory goes from step to step"
        )
        if self.all and (memory.columns == 1 or TAPE not in names.reads):
            one = "the tape has one column"
            raise NoEffect(
                "write", one if memory.columns == 1 else "nothing in the stack reads the tape"
            )
        site.names.taken |= names.taken
        self.out = arriving._replace(width=memory.width, grid=True, columns=memory.columns)

    def start(self, x: Tensor, context: Context) -> State:
        memory = context.memories[self.memory]
        d = mask_cells(memory.states, memory.mask)  # (B, S, W, M)
        return (
            d,
            d.new_zeros(*d.shape[:3], self.tape_width),
            d.new_zeros(d.shape[0], dtype=torch.long),
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        mask = context.memories[self.memory].mask  # (B, S, W)
        costs: list[Penalties] = []
        context.record("before", state[0][:, None])

        def step(state: State, one: Tensor, real: Tensor) -> tuple[State, tuple[Tensor]]:
            d, p, count = state
            own = collect_penalties(context)._replace(mask=mask, records=None)
            p = self._write(p, one, count - 1, real)
            new = self._step(d, p, own)
            context.record("image", new[:, None])
            if own.penalties is not None:
                costs.append(own.penalties)
            row = self._row(new, count, mask)
            return (torch.where(real[:, None, None, None], new, d), p, count + real), (row,)

        state, (y,) = over_positions(step, state, (x, context.mask))
        add_step_penalties(context, costs, context.mask.t())
        return y, state  # (B, T, W, M)

    def mask(self, mask: Tensor) -> Tensor:
        return mask[..., None].expand(-1, -1, self.out.columns)  # (B, T, W)

    def _write(self, p: Tensor, symbol: Tensor, where: Tensor, real: Tensor) -> Tensor:
        """Write a symbol (B, D) on the tape at the positions (B,), nothing before the first. -> (B,
        S, W, D)
        """
        places, columns = (torch.arange(size, device=p.device) for size in p.shape[1:3])
        here = (places == where[:, None]) & real[:, None]  # (B, S)
        there = here[:, :, None] & (columns >= 0 if self.all else columns == 0)  # (B, S, W)
        return torch.where(there[..., None], symbol[:, None, None].to(p.dtype), p)

    def _step(self, d: Tensor, p: Tensor, context: Context) -> Tensor:
        context = context._replace(named_outputs={TAPE: Output(p, context.mask)})
        start = self.stack.start(d[:, :1], context)
        step = partial(checkpointed, self.stack) if self.recompute else self.stack
        return step(d, start, context)[0]

    @staticmethod
    def _row(d: Tensor, where: Tensor, mask: Tensor) -> Tensor:
        """Row `where` (B,) of a memory (B, S, W, M); zeros beyond its end. -> (B, W, M)"""
        rows = torch.arange(d.shape[0], device=d.device)
        near = where.clamp(max=d.shape[1] - 1)
        there = mask[rows, near] & (where == near)[:, None]  # (B, W)
        return mask_cells(d[rows, near], there)
