"""A stack: blocks in list order. Encoder, decoder, branch, residual and repeat are all made of these few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
                context.named_outputs[name] = Output(block.initial_output(x, states[-1]), context.mask)
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
                context.named_outputs[name] = Output(x, context.mask, last)
            after.append(last)
        return x, tuple(after)

    def mask(self, mask: Tensor) -> Tensor:
        for block in self.inner():
            mask = block.mask(mask)
        return mask

    def inner(self) -> list[Block]:
        """The blocks, in order."""
        return cast("list[Block]", list(self.blocks))


def check_same_stream(site: Site, stack: Block, why: str) -> None:
    """Raises BlockError where `stack` does not hand on the stream that arrives at `site`."""
    check_same_positions(site, stack, why)
    before, after = site.stream, stack.out
    if after.width != before.width:
        raise BlockError(
            "stack",
            f"the stack turns the width {before.width} into {after.width}; {why}",
            code="width",
            fix=f"end the stack with `- linear: {before.width}`, or give its last block `width: {before.width}`",
        )


def check_same_positions(site: Site, stack: Block, why: str) -> None:
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
    if after.length_ratio != before.length_ratio:
        raise BlockError(
            "stack",
            f"the stack changes the number of positions; {why}",
            code="pace",
            fix="move the block that changes the length out of the stack",
        )


StackStep = Callable[[Tensor, State, Context], tuple[Tensor, State]]


def checkpointed(step: StackStep, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
    """What `step` makes, with equal gradients (Chen et al. 2016); only x, the state and the outputs stay in memory.

    What the step puts on the board, and its penalties, leave it as outputs: the second run must leave no trace.
    """
    if not torch.is_grad_enabled() or context.records is not None or x.is_meta:
        return step(x, state, context)

    def run(x: Tensor, state: State) -> tuple[Tensor, State, dict[str, Any], dict[str, list[Tensor]] | None]:
        board = dict(context.named_outputs)
        penalties: dict[str, list[Tensor]] | None = None if context.penalties is None else {}
        y, last = step(x, state, context._replace(named_outputs=board, penalties=penalties))
        return y, last, board, penalties

    y, last, board, penalties = checkpoint(run, x, state, use_reentrant=False)
    context.named_outputs.update(board)
    for name, values in (penalties or {}).items():
        for value in values:
            context.penalty(name, value)
    return y, last
