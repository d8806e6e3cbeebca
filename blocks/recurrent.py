"""`recurrent`: a stack that runs position by position and reads its outputs of the step before."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from blocks.core.contract import (
    Block,
    BlockError,
    Blocks,
    Context,
    Named,
    NamedOutputs,
    Output,
    Site,
    State,
)
from blocks.core.loops import is_free, is_one, over_positions
from blocks.core.neural_stack import Room
from blocks.core.scope import PREV
from blocks.core.stack import Stack, check_same_stream

MAX_ROUNDS = 8


class Recurrent(Block):
    """Feedback through any stack: in it, `prev.x` is the output named x one step before.

    y_t, s_t = f(x_t, s_(t-1)), where f may read the outputs named in s_(t-1)

    Input feeding (Luong et al. 2015, section 3.3) is written with it, and attention queried by the
    last state (Bahdanau et al. 2015, section 3.1).

    Only the blocks from the first that reads a `prev` to the last that is read as one run position
    by position. Those before and after them run once, over all positions; without a `prev`, all do.
    Every block in it is causal. In a loop inside a loop, the inner reads as `prev` what is made in
    itself alone, and the outer what is made in either.

    Settings:
        stack: The blocks. `input` is what entered; x is this position's and `prev.x` the one
            before, at the first position what its block starts from (an rnn's initial state), else
            zeros.

    Shapes: (B, T, D) -> (B, T, .). State: the stack's, and each `prev` that is read, (B, 1, .).
    Raises BlockError where a grid arrives or is read as `prev`, where a `prev` is not made in the
    stack, where its width never settles, and where the stack changes the number of positions.
    """

    family = "recurrence"

    def __init__(self, site: Site, *, stack: Blocks) -> None:
        super().__init__()
        site.sequence("recurrent")
        causal = site.causal or "`recurrent`"
        previous = infer_prev_shapes(site, stack, causal)
        names = site.names.enter_loop(site.stream, previous)
        self.stack = site.stack(("stack",), stack, names=names, causal=causal)
        check_same_stream(
            site, self.stack, "a recurrent makes one position of each", any_width=True
        )
        site.names.exit_loop(names)
        read = prev_names(names.reads)
        self.previous = tuple(name for name in names.defined_in_loop() if name in read)
        self.first, self.stop = loop_range(self.stack, self.previous)
        self.out = self.stack.out
        for name in self.previous:
            if names.defined_in_loop()[name].stream.grid:
                message = f"`{PREV}{name}` is one step of a grid, and a recurrent carries sequences"
                fix = "name what `select_column`, `sum_columns` or `flatten` makes of it"
                raise BlockError("stack", message, code="kind", fix=fix)
        explain_loop(self.stack, self.previous, range(self.first, self.stop))

    def start(self, x: Tensor, context: Context) -> State:
        state = self.stack.start(x, context)
        first = self.stack.initial_outputs(x, state)
        return state, tuple(first[name] for name in self.previous)

    def initial_outputs(self, x: Tensor, state: State) -> dict[str, Tensor]:
        return self.stack.initial_outputs(x, state[0])

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        states, previous = state
        context = context.with_outputs({"input": Output(x, context.mask)})
        before, loop, after = (
            slice(0, self.first),
            slice(self.first, self.stop),
            slice(self.stop, None),
        )
        x, head, lifted = self.stack.run_slice(before, x, states[before], context)
        context = context.with_outputs(lifted)
        x, body, previous, looped = self._loop(loop, x, states[loop], previous, context)
        context = context.with_outputs(looped)
        x, tail, last = self.stack.run_slice(after, x, states[after], context)
        return x, ((*head, *body, *tail), previous), {**lifted, **looped, **last}

    def _loop(
        self, which: slice, x: Tensor, state: State, previous: tuple[Tensor, ...], context: Context
    ) -> tuple[Tensor, State, tuple[Tensor, ...], NamedOutputs]:
        """Run some of the blocks position by position. -> their output, states, last `prev`s, and
        what they name.
        """
        if which.start == which.stop:
            return x, state, previous, {}
        own = frozenset().union(*self.stack.gives[which])
        read = (
            frozenset(self.previous).union(*self.stack.reads[which]).difference(own)
            & context.named_outputs.keys()
        )
        named, length = sorted(own), x.shape[1]
        reads = {name: at_all_positions(context.named_outputs[name], length) for name in read}

        def step(
            before: State, one: Tensor, mask: Tensor, *outside: Tensor
        ) -> tuple[State, tuple[Tensor, ...]]:
            """Run the blocks at one position: (B, D), (B,)."""
            state, previous, _ = before
            mask = mask[:, None]  # (B, 1)
            readable = {
                name: Output(read[:, None], mask) for name, read in zip(reads, outside, strict=True)
            }
            prev = {
                f"{PREV}{name}": Output(y, mask)
                for name, y in zip(self.previous, previous, strict=True)
            }
            inner = context._replace(mask=mask, named_outputs={**readable, **prev})
            y, state, made = self.stack.run_slice(which, one[:, None], state, inner)
            # what is read as `prev` and lies outside the loop's blocks was made for all positions
            # before
            outputs, real = {**readable, **made}, mask[..., None]
            previous = tuple(
                torch.where(real, outputs[name].states.to(old.dtype), old)
                for name, old in zip(self.previous, previous, strict=True)
            )
            parts = [part[:, 0] for name in named for part in made[name][:2]]
            return (state, previous, tuple(made[name].last for name in named)), (y[:, 0], *parts)

        if is_free(length):
            blocks = zip(self.stack.inner()[which], state, strict=True)
            state = tuple(block.make_room(own, length) for block, own in blocks)
        inputs = (x, context.mask, *reads.values())
        (state, previous, lasts), (y, *parts) = over_positions(step, (state, previous, ()), inputs)
        state, lasts = without_room(state), without_room(lasts)
        pairs = zip(named, parts[::2], parts[1::2], lasts, strict=True)
        return y, state, previous, {name: Output(*output) for name, *output in pairs}


def without_room(state: State) -> State:
    """Return the state after a loop, where nothing needs the place of what is added next."""
    if isinstance(state, tuple):
        parts = state[:2] if isinstance(state, Room) else state
        return tuple(without_room(part) for part in parts)
    return state


def at_all_positions(output: Output, length: int) -> Tensor:
    """Return a named output at each of so many positions; one position is that of all: (B, T, D)"""
    states = output.states
    return states.expand(-1, length, *states.shape[2:]) if is_one(states.shape[1]) else states


# ------------------------------------------------------------------------------------------- what
# is known before data


def infer_prev_shapes(site: Site, stack: Blocks, causal: str) -> dict[str, Named]:
    """Return the shape of each `prev.x`, by x: a fixed point of dry builds, since x may be made of
    `prev.x`.

    Raises BlockError where there is none. A `prev` of what nothing makes is a fault that the stack
    itself will tell.
    """
    guess = Named(site.stream._replace(width=site.width))
    known: dict[str, Named] = {}
    for _ in range(MAX_ROUNDS):
        names = site.names.enter_loop(site.stream, known, guess)
        site.dry_build(("stack",), stack, names=names, causal=causal)
        made, read = names.defined_in_loop(), prev_names(names.reads)
        moved = []
        for name in made:
            if name in read and known.get(name, guess).stream != made[name].stream:
                moved.append(name)
        if not moved:
            return made
        known = made
    message = f"`{moved[0]}` is made of `prev.{moved[0]}`, and is wider at each step"
    fix = f"end what makes `{moved[0]}` with `- linear`, which gives it a width of its own"
    raise BlockError("stack", message, code="width", fix=fix)


def prev_names(reads: Iterable[str]) -> set[str]:
    """Return the names that are read as `prev`."""
    return {name.removeprefix(PREV) for name in reads if name.startswith(PREV)}


def loop_range(stack: Stack, previous: Iterable[str]) -> tuple[int, int]:
    """Return the range from the first reader of a `prev` to the last block read; (0, 0) if none."""
    reads = [index for index, names in enumerate(stack.reads) if prev_names(names)]
    makes = [index for index, names in enumerate(stack.gives) if names & set(previous)]
    return (min(reads), max(*reads, *makes) + 1) if reads and makes else (0, 0)


def explain_loop(stack: Stack, previous: Iterable[str], inside: range) -> None:
    """Note at each block that runs position by position why it does."""
    for index in inside:
        reads = sorted(name for name in stack.reads[index] if name.startswith(PREV))
        makes = [f"{PREV}{name}" for name in previous if name in stack.gives[index]]
        reasons = [f"reads {', '.join(reads)}"] * bool(reads) + [
            f"makes {', '.join(makes)}"
        ] * bool(makes)
        stack.inner()[index].loops = "; ".join(reasons) or "lies between two such blocks"
