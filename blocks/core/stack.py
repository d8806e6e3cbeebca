"""A stack of blocks in list order, which encoders, decoders and combinators are made of; activation
checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Fix,
    NamedOutputs,
    Output,
    Penalties,
    Reduction,
    Site,
    State,
    Stream,
)


class Stack(Block):
    """Runs its blocks one after another: block, then mask, then name. Its state is the tuple of
    theirs.

    `reads` and `gives` have, for each block, the names that it and all inside it read and give.
    `is_shared`: wherever its name is used, it has the same parameters.
    """

    is_shared = False
    packs = True

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
        # a block that does not read it ends the stream, but for the names that were given before
        until = next((index for index, block in enumerate(blocks) if not block.reads_stream), None)
        self.reads_stream = until is None or any(self.gives[:until])

    def start(self, x: Tensor, context: Context) -> State:
        if context.starts is None:
            return tuple(block.start(x, context) for block in self.inner())
        states: list[State] = []
        for block in self.inner():
            # a block that does not run on packed rows starts from each document's own state
            states.append(block.start(x, context) if block.packs else ())
        return tuple(states)

    def make_room(self, state: State, length: int) -> State:
        pairs = zip(self.inner(), state, strict=True)
        return tuple(block.make_room(own, length) for block, own in pairs)

    def initial_outputs(self, x: Tensor, state: State) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        for block, name, own in zip(self.inner(), self.labels, state, strict=True):
            outputs |= block.initial_outputs(x, own)
            if name is not None:
                outputs[name] = block.initial_output(x, own)
        return outputs

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        return self.run_slice(slice(None), x, state, context)

    def run_slice(
        self, which: slice, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, dict[str, Output]]:
        """Run some of the blocks from their states -> output, states after it, named outputs."""
        states: list[State] = []
        outputs: dict[str, Output] = {}
        for block, name, before in zip(self.inner()[which], self.labels[which], state, strict=True):
            if context.records is not None:
                context = context._replace(path=block.path)
            x, after, *nested = block(x, before, context)
            mask = block.mask(context.mask)
            if mask is not context.mask:
                context = context._replace(mask=mask)
            named = dict(nested[0]) if nested else {}
            if name is not None:
                named[name] = Output(x, context.mask, after)
            if named:
                context = context.with_outputs(named)
                outputs |= named
            states.append(after)
        return x, tuple(states), outputs

    def mask(self, mask: Tensor) -> Tensor:
        for block in self.inner():
            mask = block.mask(mask)
        return mask

    def inner(self) -> list[Block]:
        """Return the blocks, in order."""
        return cast("list[Block]", list(self.blocks))


class Wrapper(Block):
    """A block around one stack: the state is the stack's, and so are the outputs named inside."""

    stack: Stack
    packs = True

    def start(self, x: Tensor, context: Context) -> State:
        return self.stack.start(x, context)

    def make_room(self, state: State, length: int) -> State:
        return self.stack.make_room(state, length)

    def initial_outputs(self, x: Tensor, state: State) -> dict[str, Tensor]:
        return self.stack.initial_outputs(x, state)


def check_same_stream(site: Site, stack: Block, why: str, any_width: bool = False) -> None:
    """Raise BlockError where `stack` does not hand on positions, kind and width of the stream that
    arrives at `site`.

    any_width: Allow another width.
    """
    before, after = site.stream, stack.out
    messages = {
        "kind": (
            f"turns {before.described} into {after.described}",
            "keep the kind and the columns inside",
        ),
        "length": (
            "changes the number of positions",
            "move the block that changes the length out of the stack",
        ),
        "width": (
            f"turns the width {before.width} into {after.width}",
            (
                f"end the stack with `- linear: {before.width}`, or give its last block `width:"
                f" {before.width}`"
            ),
        ),
    }
    compare_streams(before, after, "stack", f"the stack {{}}; {why}", messages, any_width)


def compare_streams(
    one: Stream,
    other: Stream,
    setting: str,
    sentence: str,
    messages: Mapping[str, tuple[str, str | Fix]],
    any_width: bool,
) -> None:
    """Raise BlockError where two streams differ, with the message and the fix for `kind`, `length`
    or `width`.

    sentence: What is around the message, `{}`.
    """
    code = one.first_difference(other)
    if code and not (code == "width" and any_width):
        message, fix = messages[code]
        raise BlockError(setting, sentence.format(message), code=code, fix=fix)


StackStep = Callable[[Tensor, State, Context], tuple[Tensor, State, NamedOutputs]]


def checkpointed(
    step: StackStep, x: Tensor, state: State, context: Context
) -> tuple[Tensor, State, NamedOutputs]:
    """Run `step` and keep only its inputs and outputs for the backward pass, which runs it again
    (Chen et al. 2016).

    Gradients are equal. Penalties leave the step as outputs: they are a list that is written into,
    and the second run must leave no trace.
    """
    if not torch.is_grad_enabled() or context.records is not None or x.is_meta:
        return step(x, state, context)
    # what is made when it is first read would be made in the first run alone
    context = context._replace(
        named_outputs=dict(context.named_outputs), memories=dict(context.memories)
    )

    def run(x: Tensor, state: State) -> tuple[Tensor, State, NamedOutputs, Penalties | None]:
        inner = collect_penalties(context)
        return *step(x, state, inner), inner.penalties

    y, last, outputs, penalties = checkpoint(run, x, state, use_reentrant=False)
    for (name, reduction), value in flatten_penalties(penalties):
        context.penalty(name, value, reduction)
    return y, last, outputs


def flatten_penalties(
    penalties: Penalties | None,
) -> Iterator[tuple[tuple[str, Reduction], Tensor]]:
    """Yield each penalty with its name and reduction."""
    for key, values in (penalties or {}).items():
        for value in values:
            yield key, value


def collect_penalties(context: Context) -> Context:
    """Return a context whose penalties are its own, for who adds them to those of `context` in
    another form.
    """
    return context._replace(penalties=None if context.penalties is None else {})


def add_step_penalties(context: Context, steps: Sequence[Penalties], real: Tensor) -> None:
    """Add what the steps of a loop cost: of each row the mean, or the sum, over the steps that are
    its own.

    real: (steps, B), True for a step of the row's own.
    """
    if context.penalties is None:  # outside training
        return
    count = real.sum(0).clamp(min=1)  # (B,)
    for penalties, own in zip(steps, real, strict=True):
        for (name, reduction), value in flatten_penalties(penalties):
            of_own = value * own if value.ndim else value
            of_own = of_own * len(real) / count if value.ndim and reduction == "mean" else of_own
            context.penalty(name, of_own, reduction)
