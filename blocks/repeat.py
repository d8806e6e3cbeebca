"""`repeat`: a stack several times over."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from blocks.core.contract import Block, Blocks, Context, Count, Site, State
from blocks.core.stack import Stack, keeps_stream


class Repeat(Block):
    """The same stack `times` times, each with parameters of its own, or all with the same (Dehghani et al. 2019).

    Settings:
        times: How often, 1 or more.
        stack: The blocks. A name given inside is this iteration's, and afterwards the last one's.
        share: Whether all iterations use the same parameters; the stack then keeps the width and the length.

    Shapes: (B, T, D) -> (B, T, .). State: one of the stack's for each iteration.
    Raises BlockError where a shared stack changes the stream.
    """

    def __init__(self, site: Site, *, times: Count, stack: Blocks, share: bool = False) -> None:
        super().__init__()
        self.times = times
        built: list[Stack] = []
        stream, names = site.stream, site.names
        for _ in range(1 if share else times):
            names = site.names.again()
            built.append(site.stack(("stack",), stack, names=names, stream=stream))
            stream = built[-1].out
        site.names.join([names])
        if share:
            keeps_stream(site, built[0], "a shared repeat enters it again")
        self.stacks = nn.ModuleList(built)
        self.out = stream

    def start(self, x: Tensor, context: Context) -> State:
        return tuple(
            stack.start(x, context._replace(iterations=(*context.iterations, iteration)))
            for iteration, stack in enumerate(self._iterations())
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        after = []
        for iteration, (stack, before) in enumerate(zip(self._iterations(), state, strict=True)):
            x, last = stack(x, before, context._replace(iterations=(*context.iterations, iteration)))
            context = context._replace(mask=stack.mask(context.mask))
            after.append(last)
        return x, tuple(after)

    def mask(self, mask: Tensor) -> Tensor:
        for stack in self._iterations():
            mask = stack.mask(mask)
        return mask

    def _iterations(self) -> list[Stack]:
        stacks = cast("list[Stack]", list(self.stacks))
        return stacks * self.times if len(stacks) == 1 else stacks
