"""A stack: blocks in list order. Encoder, decoder, branch, residual and repeat are all made of these few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from blocks.core.contract import Block, BlockError, Context, Output, Site, State, Stream


class Stack(Block):
    """Runs its blocks one after another: block, then mask, then name. Its state is the tuple of theirs.

    `reads` and `gives` have, for each block, the names that it and all inside it read and give.
    """

    def __init__(
        self,
        arriving: Stream,
        blocks: Sequence[Block],
        names: Sequence[str | None],
        reads: Sequence[frozenset[str]] = (),
        gives: Sequence[frozenset[str]] = (),
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.labels = tuple(names)
        self.reads, self.gives = tuple(reads), tuple(gives)
        self.out = blocks[-1].out if blocks else arriving
        self.reads_stream = all(block.reads_stream for block in blocks)

    def start(self, x: Tensor, context: Context) -> State:
        """Of each block in turn; what `prev` is of a named one at the first position is put on the board."""
        states = []
        for block, name in zip(self.inner(), self.labels, strict=True):
            states.append(block.start(x, context))
            if name is not None:
                context.board[name] = Output(block.before(x, states[-1]), context.mask)
        return tuple(states)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.part(slice(None), x, state, context)

    def part(self, which: slice, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        """Runs some of the blocks. `state` is theirs."""
        after = []
        for block, name, before in zip(self.inner()[which], self.labels[which], state, strict=True):
            if context.records is not None:
                context = context._replace(path=block.path)
            x, last = block(x, before, context)
            context = context._replace(mask=block.mask(context.mask))
            if name is not None:
                context.board[name] = Output(x, context.mask, last)
            after.append(last)
        return x, tuple(after)

    def mask(self, mask: Tensor) -> Tensor:
        for block in self.inner():
            mask = block.mask(mask)
        return mask

    def inner(self) -> list[Block]:
        """The blocks, in order."""
        return cast("list[Block]", list(self.blocks))


def keeps_stream(site: Site, stack: Block, why: str) -> None:
    """Raises BlockError where `stack` does not hand on the stream that arrives at `site`."""
    keeps_positions(site, stack, why)
    before, after = site.stream, stack.out
    if after.width != before.width:
        raise BlockError(
            "stack",
            f"the stack turns the width {before.width} into {after.width}; {why}",
            code="width",
            fix=f"end the stack with `- linear: {before.width}`, or give its last block `width: {before.width}`",
        )


def keeps_positions(site: Site, stack: Block, why: str) -> None:
    """Raises BlockError where `stack` does not hand on as many positions of the same kind as arrive at `site`."""
    before, after = site.stream, stack.out
    if after.grid != before.grid:
        raise BlockError(
            "stack",
            f"the stack turns a {before.kind} into a {after.kind}; {why}",
            code="kind",
            fix="keep the kind of the stream inside",
        )
    if after.columns != before.columns:
        raise BlockError(
            "stack",
            f"the stack turns {before.columns} columns into {after.columns}; {why}",
            code="kind",
            fix="keep the columns of the grid inside",
        )
    if after.pace != before.pace:
        raise BlockError(
            "stack",
            f"the stack changes the number of positions; {why}",
            code="pace",
            fix="move the block that changes the length out of the stack",
        )
