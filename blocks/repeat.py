"""`repeat`: a stack several times over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blocks.core.contract import Block, BlockError, Blocks, Bounds, Context, Count, Output, Positive, Site, State
from blocks.core.stack import Stack, StackStep, check_same_stream, checkpointed

Fraction = Annotated[float, Bounds(above=0.0, maximum=1.0)]
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
        join: Fraction = 0.5,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.times = None if times == "length" else times
        _check_settings(site, self.times, share, sets)
        self.shared, self.pull, self.join, self.recompute = share, pull, join, recompute
        built: list[Stack] = []
        stream, names, taken = site.stream, site.names, set(site.names.taken)
        for _ in range(sets if share or self.times is None else self.times):
            names = site.names.copy()
            built.append(site.stack(("stack",), stack, names=names, stream=stream))
            stream = built[-1].out
        site.names.merge([names])
        if share:
            check_same_stream(site, built[0], "a shared repeat enters it again")
        if sets > 1 and not any(True for _ in built[0].parameters()):
            raise BlockError(
                "sets", "nothing in the stack has parameters, so there are no sets of them", fix="remove `sets`"
            )
        self.stacks = nn.ModuleList(built)
        self.given = tuple(sorted(site.names.taken - taken))
        self.joined: Tensor
        if sets > 1:
            self.register_buffer("joined", torch.zeros((), dtype=torch.bool))
        self.out = stream

    def set_progress(self, progress: float) -> None:
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

    def _until_the_end(self, steps: list[StackStep], x: Tensor, start: State, context: Context) -> tuple[Tensor, State]:
        """As many steps as there are positions; each row keeps what it had after as many as it has itself."""
        count = (context.mask.any(-1) if context.mask.ndim == 3 else context.mask).sum(1)  # (B,)
        state = start
        for iteration in range(x.shape[1]):
            before = [context.named_outputs.get(name) for name in self.given]
            inner = context._replace(iterations=(*context.iterations, iteration))
            y, last = steps[iteration % len(steps)](x, start, inner)
            goes_on = count > iteration  # (B,)
            x = select_rows(goes_on, y, x)
            state = last if iteration == 0 else select_rows(goes_on, last, state)
            for name, old in zip(self.given, before, strict=True):
                if iteration and old is not None:
                    context.named_outputs[name] = _select_output(goes_on, context.named_outputs[name], old)
        return x, (state,)

    def _steps(self, context: Context) -> list[StackStep]:
        """One iteration of each stack, with the parameters that it computes with now."""
        stacks = self._stacks()
        steps: list[StackStep] = [*stacks]
        if self.shared and len(stacks) > 1:
            steps = [
                _with_parameters(stack, each)
                for stack, each in zip(stacks, effective_parameters(stacks, self.joined), strict=True)
            ]
            if context.penalties is not None and context.progress is not None:
                weight = penalty_weight(self.pull, context.progress, self.join)
                context.penalty(f"pull {self.path}", weight * spread_penalty(stacks))
        return [partial(checkpointed, step) for step in steps] if self.recompute else steps

    def mask(self, mask: Tensor) -> Tensor:
        stacks = self._stacks()
        for iteration in range(1 if self.times is None else self.times):
            mask = stacks[iteration % len(stacks)].mask(mask)
        return mask

    def _stacks(self) -> list[Stack]:
        return cast("list[Stack]", list(self.stacks))


def _check_settings(site: Site, times: int | None, share: bool, sets: int) -> None:
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


def _with_parameters(stack: Stack, parameters: Parameters) -> StackStep:
    """The stack with other parameters than its own."""
    return lambda x, state, context: functional_call(stack, parameters, (x, state, context))


def select_rows(which: Tensor, new: State, old: State) -> State:
    """Rows of `new` where `which` (B,) says so, else of `old`; leaf by leaf."""
    if isinstance(new, tuple):
        return tuple(select_rows(which, one, other) for one, other in zip(new, old, strict=True))
    if new is old:
        return old
    return torch.where(which.view(-1, *[1] * (new.ndim - 1)), new, old)


def _select_output(which: Tensor, new: Output, old: Output) -> Output:
    return Output(*(select_rows(which, one, other) for one, other in zip(new, old, strict=True)))


GROWTH = 200.0
"""How much stronger the pull is when the sets become one: from 5e-4 to 0.1, as the authors have it."""

Parameters = dict[str, Tensor]


def mean_parameters(sets: Sequence[nn.Module]) -> Parameters:
    """The mean of each parameter over modules that are built alike."""
    every = [dict(each.named_parameters()) for each in sets]
    return {name: torch.stack([each[name] for each in every]).mean(0) for name in every[0]}


def effective_parameters(sets: Sequence[nn.Module], joined: Tensor) -> list[Parameters]:
    """What each set computes with: its own parameters, or the mean of all sets where `joined` (a truth) says so."""
    mean = mean_parameters(sets)
    return [
        {name: torch.lerp(own, mean[name], joined.to(own.dtype)) for name, own in each.named_parameters()}
        for each in sets
    ]


def spread_penalty(sets: Sequence[nn.Module]) -> Tensor:
    """The sum over parameters and sets of |W_r - mean|^2."""
    mean = mean_parameters(sets)
    gaps = [own - mean[name] for each in sets for name, own in each.named_parameters()]
    return torch.stack([gap.square().sum() for gap in gaps]).sum()


def penalty_weight(pull: float, progress: Tensor, join: float) -> Tensor:
    """The weight of `apart` at this fraction of the training: grows geometrically until the sets become one."""
    return pull * GROWTH ** (progress / join).clamp(max=1.0)
