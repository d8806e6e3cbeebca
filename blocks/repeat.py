"""`repeat`: a stack several times over, with or without shared parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blocks.core.contract import (
    Block,
    BlockError,
    Blocks,
    Bounds,
    Context,
    Count,
    NamedOutputs,
    NoEffect,
    Output,
    Penalties,
    Positive,
    PositiveProportion,
    Site,
    State,
    remove,
    write,
)
from blocks.core.loops import Number, is_free, over_positions, turns
from blocks.core.stack import (
    Stack,
    StackStep,
    add_step_penalties,
    check_same_stream,
    checkpointed,
    collect_penalties,
)

Sets = Annotated[int, Bounds(minimum=2, maximum=1_000_000)]
"""Two or more."""
Parameters = dict[str, Tensor]

GROWTH = 200.0
"""How many times stronger the penalty is when the sets become one: from 5e-4 to 0.1, as the authors
have it.
"""


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """Sets of shared parameters that training draws together into one (Kaiser & Sutskever 2016,
    section 4).

    Settings:
        sets: Sets of parameters, 2 or more, at most as many as there are iterations; iteration i
            uses set i mod sets.
        weight: Weight of the sum of |W - mean|^2 over all sets in the loss, at first; at `until` it
            is 200 times that.
        until: The share of the training after which all sets are their mean, above 0 to 1.
    """

    sets: Sets
    weight: Positive = 5e-4
    until: PositiveProportion = 0.5

    @classmethod
    def parse(cls, setting: Relaxation | Mapping[str, Any] | None) -> Relaxation | None:
        """Return the setting as it stands in a recipe, a mapping, as an object."""
        return cls(**setting) if isinstance(setting, Mapping) else setting


class Repeat(Block):
    """The same stack `times` times, each with parameters of its own, or all with the same (Dehghani
    et al. 2019).

    With `times: length`, as often as a row has positions: a row of n is left as it is after n
    steps, whatever the others of its batch still do (Kaiser & Sutskever 2016, section 2).

    With `relaxation`, iterations share several sets of parameters, which a growing penalty draws
    together and which become one, their mean, in the course of the training: that is easier to
    train than one set from the start (parameter-sharing relaxation: Kaiser & Sutskever 2016,
    section 4).

    Settings:
        times: How often, 1 or more, or `length`.
        stack: The blocks. A name given inside is this iteration's, and afterwards the last one's.
        share: Whether all iterations use the same parameters; the stack then keeps the width and
            the length.
        relaxation: Shares several sets of parameters that become one: {sets, weight, until}. Needs
            no `share`.
        recompute: Whether a step's inner values are computed again for the gradients, which takes
            more time and less memory.

    Shapes: (B, T, D) -> (B, T, .). State: one of the stack's for each iteration; with `length`, the
    last one's.
    Raises BlockError where a shared stack changes the stream, where `length` has parameters of its
    own for each iteration or stands in a decoder, and where there are more sets than iterations,
    nothing to have sets of, or sets of other parameters.
    """

    family = "structure"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        times: Count | Literal["length"],
        stack: Blocks,
        share: bool = False,
        relaxation: Relaxation | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.relaxation = Relaxation.parse(relaxation)
        sets, shared = (
            self.relaxation.sets if self.relaxation else 1,
            share or self.relaxation is not None,
        )
        self.times, self.recompute = None if times == "length" else times, recompute
        self.not_packed = (
            "it runs as often as a row is long, and documents of a row differ"
            if times == "length"
            else ""
        )
        _check_settings(site, self.times, shared, sets)
        if share and (self.relaxation is not None or self.times == 1):
            message = (
                "`relaxation` shares the parameters"
                if self.relaxation
                else "one iteration has nothing to share"
            )
            raise NoEffect("share", message)
        if share and self.times is not None and _shares_anyway(site, stack):
            raise NoEffect(
                "share",
                "all parameters in the stack are those of a `use`, which shares them anyway",
            )
        built: list[Stack] = []
        stream, names = site.stream, site.names
        for _ in range(sets if shared or self.times is None else self.times):
            names = site.names.iteration(names)
            built.append(site.stack(("stack",), stack, names=names, stream=stream))
            stream = built[-1].out
        has_parameters = any(True for _ in built[0].parameters())
        if share and self.times is not None and not has_parameters:
            raise NoEffect("share", "nothing in the stack has parameters")
        if sets > 1 and not has_parameters:
            message = "nothing in the stack has parameters, so there are no sets of them"
            raise NoEffect("relaxation", message)
        if any(_shapes(other) != _shapes(built[0]) for other in built if shared):
            message = (
                "the sets of parameters have no mean: a block has others after the first iteration"
            )
            raise BlockError("relaxation", message, fix=remove("relaxation"))
        site.names.merge([names])
        if shared:
            check_same_stream(site, built[0], "a shared repeat enters it again")
        self.stacks = nn.ModuleList(built)
        # a list, so that no parameter has a second name
        self.callers = [MethodCaller(stack) for stack in built]
        self.joined: Tensor
        if self.relaxation is not None:
            # a buffer: it is saved with the weights, so that a finished model decodes with the mean
            self.register_buffer("joined", torch.zeros((), dtype=torch.bool))
        self.out = stream

    def set_progress(self, progress: float) -> None:
        if self.relaxation is not None:
            self.joined.fill_(progress >= self.relaxation.until)

    def start(self, x: Tensor, context: Context) -> State:
        return tuple(
            start(x, context._replace(iterations=(*context.iterations, iteration)))
            for iteration, start in enumerate(self._methods("start"))
        )

    def initial_outputs(self, x: Tensor, state: State) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        for initial_outputs, own in zip(self._methods("initial_outputs"), state, strict=True):
            outputs |= initial_outputs(x, own)
        return outputs

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        steps = self._steps(context)
        if self.times is None:
            return self._run_length(steps, x, state, context)
        after: list[State] = []
        outputs: NamedOutputs = {}
        for iteration, (step, stack, before) in enumerate(
            zip(steps, self._iterations(), state, strict=True)
        ):
            inner = context._replace(iterations=(*context.iterations, iteration))
            x, last, made = step(x, before, inner)
            outputs = {**outputs, **made}
            context = context._replace(mask=stack.mask(context.mask)).with_outputs(made)
            after.append(last)
        return x, tuple(after), outputs

    def _run_length(
        self, steps: list[StackStep], x: Tensor, starts: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        """Run as many steps as there are positions; each row keeps what it had after as many as it
        has itself.

        starts: The state before a step, of each stack.
        """
        count = (context.mask.any(-1) if context.mask.ndim == 3 else context.mask).sum(1)  # (B,)
        number = torch.arange(x.shape[1], device=x.device)[:, None]  # (steps, 1)
        is_running = count > number  # (steps, B)
        step, start = self._turns(steps, x.shape[1]), turns(starts, x.shape[1])
        costs: list[Penalties] = []

        def run(
            before: State, iteration: Number, running: Tensor, made: Tensor
        ) -> tuple[State, tuple[()]]:
            """made: (B,), True where the outputs of this step are the row's."""
            x, state, outputs = before
            inner = collect_penalties(context)
            inner = inner._replace(iterations=(*context.iterations, iteration))
            y, last, named = step(iteration)(x, start(iteration), inner)
            if inner.penalties is not None:
                costs.append(inner.penalties)
            of_rows = {
                name: Output(*select_rows(made, new, outputs[name] if outputs else ()))
                for name, new in named.items()
            }
            return (select_rows(running, y, x), select_rows(made, last, state), of_rows), ()

        made = is_running | (number == 0)
        (x, state, outputs), _ = over_positions(
            run, (x, (), ()), (is_running, made), dim=0, numbered=True
        )
        add_step_penalties(context, costs, is_running)
        return x, (state,), outputs

    def _turns(self, steps: list[StackStep], length: int) -> Callable[[Number], StackStep]:
        """Return the function from an iteration to its step."""
        if len(steps) == 1 or not is_free(length):
            return turns(steps, length)
        sets = effective_parameters(self._stacks(), self.joined)
        pairs = zip(self._stacks(), sets, strict=True)
        values = turns([dict(stack.named_buffers()) | own for stack, own in pairs], length)
        return lambda iteration: partial(self.callers[0].call, values(iteration), "__call__")

    def _steps(self, context: Context) -> list[StackStep]:
        """Return the steps of `_iterations`, and add the penalty of their parameters."""
        if (
            self.relaxation is not None
            and context.penalties is not None
            and context.progress is not None
        ):
            weight = penalty_weight(self.relaxation, context.progress)
            context.penalty(f"relaxation {self.path}", weight * spread_penalty(self._stacks()))
        steps: list[StackStep] = self._methods("__call__")
        return [partial(checkpointed, step) for step in steps] if self.recompute else steps

    def _methods(self, method: str) -> list[Callable[..., Any]]:
        """Return a method of each stack of `_iterations`, with the parameters that it computes with
        now.
        """
        if self.relaxation is None:
            return [getattr(stack, method) for stack in self._iterations()]
        parameters = effective_parameters(self._stacks(), self.joined)
        calls = [
            partial(caller.call, own, method)
            for caller, own in zip(self.callers, parameters, strict=True)
        ]
        return [calls[iteration % len(calls)] for iteration in range(self.times or len(calls))]

    def mask(self, mask: Tensor) -> Tensor:
        for stack in self._iterations():
            mask = stack.mask(mask)
        return mask

    def _stacks(self) -> list[Stack]:
        return cast("list[Stack]", list(self.stacks))

    def _iterations(self) -> list[Stack]:
        """Return the stack of each iteration; with `times: length` those of the first, of which
        each has a state.
        """
        stacks = self._stacks()
        return [stacks[iteration % len(stacks)] for iteration in range(self.times or len(stacks))]


def _shapes(stack: Stack) -> dict[str, torch.Size]:
    """Return the shapes of a stack's parameters by their names."""
    return {name: parameter.shape for name, parameter in stack.named_parameters()}


def _shares_anyway(site: Site, stack: list[object]) -> bool:
    """True if all parameters of a stack are those of named stacks, which all uses share."""
    if "'use'" not in str(stack):  # building it once more costs as much as the first time
        return False
    dry = site.dry_build(("stack",), stack, names=site.names.copy())
    shared: set[int] = set()
    for part in dry.modules():
        if isinstance(part, Stack) and part.is_shared:
            shared.update(map(id, part.parameters()))
    return bool(shared) and all(id(parameter) in shared for parameter in dry.parameters())


def _check_settings(site: Site, times: int | None, shared: bool, sets: int) -> None:
    """Raise BlockError where a stack cannot be repeated so."""
    if times is None and not shared:
        message = "as many steps as a row has positions cannot have parameters of their own"
        raise BlockError("times", message, fix=write("share", True))
    if times is None and site.causal:
        message = f"{site.causal} does not know how long its answer will be"
        hint = "write a number, or move the repeat to the encoder"
        raise BlockError("times", message, code="causality", fix=hint)
    if times is not None and sets > times:
        message = f"{times} iterations cannot take {sets} sets of parameters"
        fix = (
            write(("relaxation", "sets"), times, " or less") if times > 1 else remove("relaxation")
        )
        raise BlockError("relaxation", message, fix=fix)


class MethodCaller(nn.Module):
    """Any method of a stack as the `forward` of a module, which is what `functional_call` calls."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, name: str, *arguments: Any) -> object:
        return getattr(self.stack, name)(*arguments)

    def call(self, parameters: Parameters, name: str, *arguments: Any) -> Any:
        """Call a method of the stack, which computes with these parameters in place of its own."""
        own = {f"stack.{parameter}": value for parameter, value in parameters.items()}
        return functional_call(self, own, (name, *arguments))


def select_rows(which: Tensor, new: State, old: State) -> State:
    """Return the rows of `new` where `which` (B,) is true, else of `old`; leaf by leaf."""
    if isinstance(old, tuple) and not old:  # there is nothing yet
        return new
    if isinstance(new, tuple):
        return tuple(select_rows(which, one, other) for one, other in zip(new, old, strict=True))
    if new is old:
        return old
    return torch.where(which.view(-1, *[1] * (new.ndim - 1)), new, old)


# -------------------------------------------------------------------------------------------
# relaxation


def mean_parameters(sets: Sequence[nn.Module]) -> Parameters:
    """Return the mean of each parameter over modules that are built alike."""
    parameters = [dict(module.named_parameters()) for module in sets]
    mean = {}
    for name in parameters[0]:
        mean[name] = torch.stack([own[name] for own in parameters]).mean(0)
    return mean


def effective_parameters(sets: Sequence[nn.Module], joined: Tensor) -> list[Parameters]:
    """Return the parameters of each set, or the mean of all sets where `joined` (a bool)."""
    mean, effective = mean_parameters(sets), []
    for module in sets:
        merged = {}
        for name, own in module.named_parameters():
            merged[name] = torch.lerp(own, mean[name], joined.to(own.dtype))
        effective.append(merged)
    return effective


def spread_penalty(sets: Sequence[nn.Module]) -> Tensor:
    """Return the sum over parameters and sets of |W_r - mean|^2."""
    mean, gaps = mean_parameters(sets), []
    for module in sets:
        for name, own in module.named_parameters():
            gaps.append((own - mean[name]).square().sum())
    return torch.stack(gaps).sum()


def penalty_weight(relaxation: Relaxation, progress: Tensor) -> Tensor:
    """Return the weight of `spread_penalty` at a share of the training: it grows geometrically up
    to `until`.
    """
    return relaxation.weight * GROWTH ** (progress / relaxation.until).clamp(max=1.0)
