"""`repeat`: a stack several times over."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blocks.core.contract import Block, BlockError, Blocks, Bounds, Context, Count, Output, Positive, Site, State
from blocks.core.recompute import Step, recomputed
from blocks.core.relaxation import Parameters, apart, effective, pull_at
from blocks.core.stack import Stack, keeps_stream

Share = Annotated[float, Bounds(above=0.0, maximum=1.0)]
"""A share, above 0 and at most 1."""


class Repeat(Block):
    """The same stack `times` times, each with parameters of its own, or all with the same (Dehghani et al. 2019).

    With `times: length`, as often as a row has positions: a row of n is left as it is after n steps, whatever the
    others of its batch still do (Kaiser & Sutskever 2016, section 2).

    With several `sets` of shared parameters, iteration i takes the set i mod sets; they are pulled together ever more
    strongly, and become one, their mean, at `join` (parameter-sharing relaxation: Kaiser & Sutskever 2016, section 4).

    Settings:
        times: How often, 1 or more, or `length`.
        stack: The blocks. A name given inside is this iteration's, and afterwards the last one's.
        share: Whether all iterations use the same parameters; the stack then keeps the width and the length.
        sets: Sets of shared parameters, 1 or more; more than one trains more easily.
        pull: Weight of the sum of |W - mean|^2 over all sets in the loss, at first; at `join` it is 200 times as much.
        join: The fraction of the training after which all sets are their mean, above 0 to 1.
        recompute: Whether a step's inner values are computed again for the gradients, which takes more time and less
            memory.

    Shapes: (B, T, D) -> (B, T, .). State: one of the stack's for each iteration; with `length`, the last one's.
    Raises BlockError where a shared stack changes the stream, where `length` or `sets` are not shared, where there are
    more sets than iterations, or nothing to have sets of, and where `length` stands in a decoder.
    """

    def __init__(
        self,
        site: Site,
        *,
        times: Count | Literal["length"],
        stack: Blocks,
        share: bool = False,
        sets: Count = 1,
        pull: Positive = 5e-4,
        join: Share = 0.5,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.times = None if times == "length" else times
        _refuse(site, self.times, share, sets)
        self.shared, self.pull, self.join, self.recompute = share, pull, join, recompute
        built: list[Stack] = []
        stream, names, taken = site.stream, site.names, set(site.names.given)
        for _ in range(sets if share or self.times is None else self.times):
            names = site.names.again()
            built.append(site.stack(("stack",), stack, names=names, stream=stream))
            stream = built[-1].out
        site.names.join([names])
        if share:
            keeps_stream(site, built[0], "a shared repeat enters it again")
        if sets > 1 and not any(True for _ in built[0].parameters()):
            raise BlockError(
                "sets", "nothing in the stack has parameters, so there are no sets of them", fix="remove `sets`"
            )
        self.stacks = nn.ModuleList(built)
        self.given = tuple(sorted(site.names.given - taken))
        self.joined: Tensor
        if sets > 1:
            self.register_buffer("joined", torch.zeros((), dtype=torch.bool))
        self.out = stream

    def advance(self, progress: float) -> None:
        if self.shared and len(self.stacks) > 1:
            self.joined.fill_(progress >= self.join)

    def start(self, x: Tensor, context: Context) -> State:
        stacks = self._stacks()
        return tuple(
            stacks[iteration % len(stacks)].start(x, context._replace(iterations=(*context.iterations, iteration)))
            for iteration in range(1 if self.times is None else self.times)
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        steps = self._steps(context)
        if self.times is None:
            return self._until_the_end(steps, x, state[0], context)
        after = []
        for iteration, before in enumerate(state):
            inner = context._replace(iterations=(*context.iterations, iteration))
            x, last = steps[iteration % len(steps)](x, before, inner)
            context = context._replace(mask=self._stacks()[iteration % len(steps)].mask(context.mask))
            after.append(last)
        return x, tuple(after)

    def _until_the_end(self, steps: list[Step], x: Tensor, start: State, context: Context) -> tuple[Tensor, State]:
        """As many steps as there are positions; each row keeps what it had after as many as it has itself."""
        count = (context.mask.any(-1) if context.mask.ndim == 3 else context.mask).sum(1)  # (B,)
        state = start
        for iteration in range(x.shape[1]):
            before = [context.board.get(name) for name in self.given]
            inner = context._replace(iterations=(*context.iterations, iteration))
            y, last = steps[iteration % len(steps)](x, start, inner)
            goes_on = count > iteration  # (B,)
            x = chosen(goes_on, y, x)
            state = last if iteration == 0 else chosen(goes_on, last, state)
            for name, old in zip(self.given, before, strict=True):
                if iteration and old is not None:
                    context.board[name] = _output(goes_on, context.board[name], old)
        return x, (state,)

    def _steps(self, context: Context) -> list[Step]:
        """One iteration of each stack, with the parameters that it computes with now."""
        stacks = self._stacks()
        steps: list[Step] = [*stacks]
        if self.shared and len(stacks) > 1:
            steps = [_with(stack, each) for stack, each in zip(stacks, effective(stacks, self.joined), strict=True)]
            if context.penalties is not None and context.progress is not None:
                weight = pull_at(self.pull, context.progress, self.join)
                context.penalty(f"pull {self.path}", weight * apart(stacks))
        return [partial(recomputed, step) for step in steps] if self.recompute else steps

    def mask(self, mask: Tensor) -> Tensor:
        stacks = self._stacks()
        for iteration in range(1 if self.times is None else self.times):
            mask = stacks[iteration % len(stacks)].mask(mask)
        return mask

    def _stacks(self) -> list[Stack]:
        return cast("list[Stack]", list(self.stacks))


def _refuse(site: Site, times: int | None, share: bool, sets: int) -> None:
    """Raises BlockError where a stack cannot be repeated so."""
    if times is None and not share:
        raise BlockError(
            "times",
            "as many steps as a row has positions cannot have parameters of their own",
            fix="write `share: true`",
        )
    if times is None and site.causal:
        raise BlockError(
            "times",
            f"{site.causal} does not know how long its answer will be",
            code="causality",
            fix="write a number, or move the repeat to the encoder",
        )
    if sets > 1 and not share:
        raise BlockError("sets", "only shared parameters have several sets", fix="write `share: true`")
    if times is not None and sets > times:
        raise BlockError(
            "sets", f"{times} iterations cannot take {sets} sets of parameters", fix=f"write `sets: {times}` or less"
        )


def _with(stack: Stack, parameters: Parameters) -> Step:
    """The stack with other parameters than its own."""
    return lambda x, state, context: functional_call(stack, parameters, (x, state, context))


def chosen(which: Tensor, new: State, old: State) -> State:
    """Rows of `new` where `which` (B,) says so, else of `old`; leaf by leaf."""
    if isinstance(new, tuple):
        return tuple(chosen(which, one, other) for one, other in zip(new, old, strict=True))
    if new is old:
        return old
    return torch.where(which.view(-1, *[1] * (new.ndim - 1)), new, old)


def _output(which: Tensor, new: Output, old: Output) -> Output:
    return Output(*(chosen(which, one, other) for one, other in zip(new, old, strict=True)))
