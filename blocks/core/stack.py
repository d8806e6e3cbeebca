"""A stack: blocks in list order. Encoder, decoder, branch, residual and repeat are all made of these few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from blocks.core.contract import Block, BlockError, Context, Output, Site, State, Stream


class Stack(Block):
    """Runs its blocks one after another: block, then mask, then name. Its state is the tuple of theirs."""

    def __init__(self, arriving: Stream, blocks: Sequence[Block], names: Sequence[str | None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.labels = tuple(names)
        self.out = blocks[-1].out if blocks else arriving

    def start(self, x: Tensor, context: Context) -> State:
        return tuple(block.start(x, context) for block in self.inner())

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        after = []
        for block, name, before in zip(self.inner(), self.labels, state, strict=True):
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
    before, after = site.stream, stack.out
    if after.grid != before.grid:
        raise BlockError("stack", f"the stack turns a {_kind(before.grid)} into a {_kind(after.grid)}; {why}",
                         code="kind", fix="keep the kind of the stream inside")  # fmt: skip
    if after.pace != before.pace:
        raise BlockError("stack", f"the stack changes the number of positions; {why}", code="pace",
                         fix="move the block that changes the length out of the stack")  # fmt: skip
    if after.width != before.width:
        raise BlockError("stack", f"the stack turns the width {before.width} into {after.width}; {why}", code="width",
                         fix=f"end the stack with `- linear: {before.width}`, or give its last block "
                             f"`width: {before.width}`")  # fmt: skip


def _kind(grid: bool) -> str:
    return "grid" if grid else "sequence"
