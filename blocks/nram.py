"""`nram`: a neural random-access machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import (
    Block,
    BlockError,
    Bounds,
    Context,
    Count,
    Few,
    NonNegative,
    Site,
    State,
)

MaxSteps = Annotated[int, Bounds(minimum=2, maximum=10_000)]
"""Two or more: what the last step writes into registers is read by nobody."""


class Nram(Block):
    """A neural random-access machine on a tape (Kurach et al. 2016, sections 3 and 4).

    The stream is the tape: position i is cell i, and its M features are the probabilities of the
    integers 0 to M - 1, scaled to sum to 1; cells beyond the row hold 0, and positions beyond M are
    no cells and leave as they came. All registers begin at 0. In step t a controller sees P(r_i =
    0) of each register r_i, and says for each of 14 modules from where its arguments come, and for
    each register what it becomes:
        o_m = module_m((r_1 .. r_R, o_1 .. o_(m-1)) softmax(a_m), the same softmax(b_m))
        r_i = (r_1 .. r_R, o_1 .. o_14) softmax(c_i)
    These are equations 1 and 2. The modules in order, modulo M: READ, 0, 1, 2, a + 1, a + b, a - b,
    a - 1, a < b, a <= b, a = b, min, max, WRITE. It says too whether to stop, f_t in 0..1; it stops
    after step t with p_t = f_t prod_(s<t) (1 - f_s), p_T being the rest. What leaves are logits,
    y_i = sum_t p_t log(M_t[i] + 1e-6), so that the cross-entropy of the answer is the paper's cost,
    sum_t p_t -log M_t[i, y_i], less what the mixture lacks to sum to 1: nothing, once it is sure
    when to stop. No parameter depends on M.

    Settings:
        steps: Steps at most, 2 to 10000.
        registers: Registers, each an integer.
        hidden: Units of the controller's hidden layers, tanh.
        layers: Hidden layers of the controller.
        entropy: Times the mean entropy of the choices in nats, which is taken off the training
            loss; it falls to 0 in the course of the training (section 4).

    Shapes: (B, T, M) -> (B, T, M). State: none.
    Raises BlockError on a causal site, where a grid arrives, and where M is less than 3.
    """

    family = "memory"

    def __init__(
        self,
        site: Site,
        *,
        steps: MaxSteps = 10,
        registers: Count = 4,
        hidden: Count = 64,
        layers: Few = 1,
        entropy: NonNegative = 0.0,
    ) -> None:
        super().__init__()
        self.out = site.sequence("nram")
        site.require_full_context(
            "", "`nram`", "move it to the encoder, and read what it made with `- source_state`"
        )
        if self.out.width < 3:
            message = (
                f"the machine counts from 0 to {self.out.width - 1}, and needs 3 integers or more"
            )
            raise BlockError("", message, code="width", fix="write `integers: {below: 3}` or more")
        self.steps, self.registers, self.entropy = steps, registers, entropy
        inner: list[nn.Module] = []
        for arriving, width in pairwise([registers, *[hidden] * layers]):
            inner += [nn.Linear(arriving, width), nn.Tanh()]
        self.controller = nn.Sequential(*inner, nn.Linear(hidden, sum(choice_sizes(registers)) + 1))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        machine = initial_machine(tape_from_stream(x, context.mask))
        registers = certain(machine, 0)[:, None].expand(-1, self.registers, -1)  # (B, R, M)
        going = x.new_ones(x.shape[0])  # (B,)
        made, seen, halts = torch.zeros_like(machine.tape), [], []
        for step in range(self.steps):
            numbers = self.controller(registers[..., 0])  # (B, numbers)
            choices = read_choices(numbers[:, 1:], self.registers)
            machine, registers = run_step(machine, registers, choices)
            halt = going if step == self.steps - 1 else going * torch.sigmoid(numbers[:, 0])  # (B,)
            going = going - halt
            made = made + halt[:, None, None] * (machine.tape + LOG_EPSILON).log()  # (B, M, M)
            self._reward(choices, context)
            seen.append(registers)
            halts.append(halt)
        context.record("registers", torch.stack(seen, 1))
        context.record("halting", torch.stack(halts, 1))
        return torch.cat((made[:, : x.shape[1]], x[:, x.shape[-1] :]), 1), state

    def _reward(self, choices: Choices, context: Context) -> None:
        if not self.entropy or context.penalties is None:
            return
        left = 1.0 if context.progress is None else 1.0 - context.progress
        context.penalty(
            "entropy", -self.entropy * left * choice_entropy(choices) * context.mask.any(1)
        )


# The machine (section 3). An integer is a vector of M probabilities, arithmetic is modulo M, and on
# vectors that are certain of one integer everything is the integer machine.

LOG_EPSILON = 1e-6
"""What is added inside every logarithm."""


class Machine(NamedTuple):
    """What the modules read: the tape, and which integers are sums, differences and less than
    others.
    """

    tape: Tensor  # (B, M, M): cell, integer
    sums: Tensor  # (M, M) long: the b of a + b = k, at [a, k]
    differences: Tensor  # (M, M) long: the b of a - b = k, at [a, k]
    less: Tensor  # (M, M): 1 where row > column, so that q @ less is P(b > k) at k


class Choices(NamedTuple):
    """What a controller decides in one step: whence each module and each register takes its value,
    all weights.
    """

    arguments: Sequence[Tensor]  # of each module (B, its arguments, R + modules before it)
    registers: Tensor  # (B, R, R + modules)


Module = Callable[..., Tensor]
"""From the machine and the arguments, each (B, M), to the result (B, M)."""


def certain(machine: Machine, value: int) -> Tensor:
    """Return a distribution that is certain of one integer modulo M: (B, M)"""
    return _one_hot(machine.tape, value).expand(machine.tape.shape[0], -1)


def truth_value(probability: Tensor) -> Tensor:
    """Return the integer 1 or 0 for a truth; rounding may leave a probability above 1. (B, M),
    summed -> (B, M)
    """
    true = probability.sum(-1)
    return F.pad(
        torch.stack(((1.0 - true).clamp(min=0.0), true), -1), (0, probability.shape[-1] - 2)
    )


MODULES: dict[str, tuple[int, Module]] = {
    "read": (1, lambda machine, p: (p[:, None] @ machine.tape)[:, 0]),
    "zero": (0, lambda machine: certain(machine, 0)),
    "one": (0, lambda machine: certain(machine, 1)),
    "two": (0, lambda machine: certain(machine, 2)),
    "inc": (1, lambda machine, p: p.roll(1, -1)),
    "add": (2, lambda machine, p, q: (p[:, None] @ q[:, machine.sums])[:, 0]),
    "sub": (2, lambda machine, p, q: (p[:, None] @ q[:, machine.differences])[:, 0]),
    "dec": (1, lambda machine, p: p.roll(-1, -1)),
    "less_than": (2, lambda machine, p, q: truth_value(p * (q @ machine.less))),
    "less_or_equal": (2, lambda machine, p, q: truth_value(p * (q @ machine.less + q))),
    "equal": (2, lambda machine, p, q: truth_value(p * q)),
    "min": (2, lambda machine, p, q: p * (q @ machine.less + q) + q * (p @ machine.less)),
    "max": (2, lambda machine, p, q: p * (q @ machine.less.T + q) + q * (p @ machine.less.T)),
    "write": (2, lambda machine, p, q: certain(machine, 0)),
}
"""The modules in the paper's order: how many arguments each has, and what it gives. `write` changes
the tape too.
"""


def initial_machine(tape: Tensor) -> Machine:
    """Return the machine with this tape, (B, M, M)."""
    size = tape.shape[-1]
    count = torch.arange(size, device=tape.device)
    sums = (count - count[:, None]) % size  # (M, M)
    less = (count[:, None] > count).to(tape.dtype)  # (M, M)
    return Machine(tape, sums, -sums % size, less)


def run_step(machine: Machine, registers: Tensor, choices: Choices) -> tuple[Machine, Tensor]:
    """Run one step: every module once and in order, then the tape, then the registers. registers:
    (B, R, M)
    """
    values = registers  # (B, R + modules so far, M)
    arguments: Sequence[Tensor] = ()
    for (_, module), chosen in zip(MODULES.values(), choices.arguments, strict=True):
        arguments = (chosen @ values).unbind(1)
        values = torch.cat((values, module(machine, *arguments)[:, None]), 1)
    registers = choices.registers @ values  # (B, R, M)
    # in low precision they would drift from a sum of 1
    registers = registers / registers.sum(-1, keepdim=True)
    return machine._replace(tape=write_tape(machine.tape, *arguments)), registers


def write_tape(tape: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Write the value q in the cell p: (1 - p) 1^T * M + p q^T"""
    return (1.0 - p).clamp(min=0.0)[..., None] * tape + p[..., None] * q[:, None]  # (B, M, M)


# ------------------------------------------------------------------------------------------- what a
# controller says


def choice_sizes(registers: int) -> list[int]:
    """Return the sizes of a controller's choices: for each module, then for each register."""
    modules = [arguments * (registers + at) for at, (arguments, _) in enumerate(MODULES.values())]
    return [*modules, registers * (registers + len(MODULES))]


def read_choices(logits: Tensor, registers: int) -> Choices:
    """Return a controller's choices: a softmax over the numbers of each argument and register. (B,
    sum)
    """
    parts = logits.split(choice_sizes(registers), -1)
    arguments = [arguments for arguments, _ in MODULES.values()]
    modules = [
        part.unflatten(-1, (count, registers + at)).softmax(-1)
        for at, (part, count) in enumerate(zip(parts, arguments, strict=False))
    ]
    return Choices(modules, parts[-1].unflatten(-1, (registers, -1)).softmax(-1))


def choice_entropy(choices: Choices) -> Tensor:
    """Return the mean entropy of a step's choices in nats, row by row. -> (B,)"""
    of_each = [
        -(part * (part + LOG_EPSILON).log()).sum(-1)
        for part in (*choices.arguments, choices.registers)
    ]
    return torch.cat(of_each, -1).mean(-1)


def _one_hot(like: Tensor, value: int) -> Tensor:
    """Return (M,), certain of one integer modulo M."""
    count = like.shape[-1]
    return (torch.arange(count, device=like.device) == value % count).to(like.dtype)


def tape_from_stream(x: Tensor, mask: Tensor) -> Tensor:
    """Return the tape that a stream M wide is: a cell for each position, the integer 0 beyond. ->
    (B, M, M)
    """
    count = x.shape[-1]
    x = F.pad(x * mask[..., None], (0, 0, 0, count))[:, :count].clamp(min=0.0)  # (B, M, M)
    total = x.sum(-1, keepdim=True)
    return torch.where(total > 0.0, x / total.masked_fill(total == 0.0, 1.0), _one_hot(x, 0))
