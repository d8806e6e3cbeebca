"""`source_state`: reads a memory position by position."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.core.contract import Block, BlockError, Context, Memory, Site, State


class SourceState(Block):
    """A memory's states in place of the stream, one for each position (as Kaiser & Bengio 2016 read
    the Neural GPU's).

    y_t = m_t, and 0 beyond the memory's end. In an encoder it reads another encoder's state of the
    same word, so that `parallel` or `add` can merge the factors of a word (Sennrich & Haddow 2016,
    section 3); in a decoder position t reads source position t.

    Settings:
        from: The memory to read: an encoder's name, or `encoder.x` for its output named x. The only
            encoder where there is one; with two it must be given.

    Shapes: (B, T, .) reads (B, S, D) -> (B, T, D). State: positions so far (B,).
    Raises BlockError where there is no memory, or several and no `from`, and where it has no
    positions to follow.
    """

    family = "recurrence"

    reads_stream = False

    def __init__(self, site: Site, *, from_: Memory | None = None) -> None:
        super().__init__()
        self.memory = site.memory(from_, "from")
        memory = site.memories[self.memory].stream
        if memory.grid:
            message = f"`{self.memory}` is a grid, and `source_state` reads a sequence"
            fix = "end the encoder with `select_column`, `sum_columns` or `flatten`"
            raise BlockError("from", message, code="kind", fix=fix)
        if memory.length_ratio == 0:
            message = (
                f"`{self.memory}` has one position for all, and `source_state` follows positions"
            )
            fix = f"write `concat: {self.memory}`, which every position sees"
            raise BlockError("from", message, code="length", fix=fix)
        self.out = site.sequence("source_state")._replace(width=memory.width)

    def start(self, x: Tensor, context: Context) -> State:
        return torch.zeros(x.shape[0], dtype=torch.long, device=x.device)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        memory, count = context.memories[self.memory], x.shape[1]
        where = state[:, None] + torch.arange(count, device=x.device)  # (B, T)
        near = where.clamp(max=memory.mask.shape[1] - 1)
        there = memory.mask.gather(1, near) & (where == near)  # (B, T)
        read = memory.states.gather(1, near[..., None].expand(-1, -1, self.out.width))  # (B, T, D)
        return read.masked_fill(~there[..., None], 0.0), state + context.mask.sum(1)
