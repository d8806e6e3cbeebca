"""A machine on distributions over the integers 0 to M - 1: registers, a tape of M cells, and fourteen modules.

Kurach et al. 2016, section 3. An integer is a vector of M probabilities, arithmetic is modulo M, and on vectors that
are certain of one integer everything here is the integer machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LOG_EPSILON = 1e-6
"""What is added inside every logarithm."""


class Machine(NamedTuple):
    """What the modules read: the tape, and which integers are sums, differences and less than others."""

    tape: Tensor  # (B, M, M): cell, integer
    sums: Tensor  # (M, M) long: the b of a + b = k, at [a, k]
    differences: Tensor  # (M, M) long: the b of a - b = k, at [a, k]
    less: Tensor  # (M, M): 1 where row > column, so that q @ less is P(b > k) at k


class Choices(NamedTuple):
    """What a controller decides in one step: whence each module and each register takes its value, all weights."""

    arguments: Sequence[Tensor]  # of each module (B, its arguments, R + modules before it)
    registers: Tensor  # (B, R, R + modules)


Module = Callable[..., Tensor]
"""From the machine and the arguments, each (B, M), to the result (B, M)."""


def certain(machine: Machine, value: int) -> Tensor:
    """Return a distribution that is certain of one integer modulo M: (B, M)"""
    return _one_hot(machine.tape, value).expand(len(machine.tape), -1)


def truth_value(probability: Tensor) -> Tensor:
    """Return the integer 1 or 0 for a truth; rounding may leave a probability above 1. (B, M), summed -> (B, M)"""
    true = probability.sum(-1)
    return F.pad(torch.stack(((1.0 - true).clamp(min=0.0), true), -1), (0, probability.shape[-1] - 2))


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
"""The modules in the paper's order: how many arguments each has, and what it gives. `write` changes the tape too."""


def initial_machine(tape: Tensor) -> Machine:
    """Return the machine with this tape, (B, M, M)."""
    count = torch.arange(tape.shape[-1], device=tape.device)
    sums = (count - count[:, None]) % len(count)  # (M, M)
    less = (count[:, None] > count).to(tape.dtype)  # (M, M)
    return Machine(tape, sums, -sums % len(count), less)


def run_step(machine: Machine, registers: Tensor, choices: Choices) -> tuple[Machine, Tensor]:
    """Run one step: every module once and in order, then the tape, then the registers. registers: (B, R, M)"""
    values = registers  # (B, R + modules so far, M)
    arguments: Sequence[Tensor] = ()
    for (_, module), chosen in zip(MODULES.values(), choices.arguments, strict=True):
        arguments = (chosen @ values).unbind(1)
        values = torch.cat((values, module(machine, *arguments)[:, None]), 1)
    registers = choices.registers @ values  # (B, R, M)
    registers = registers / registers.sum(-1, keepdim=True)  # in low precision they would drift from a sum of 1
    return machine._replace(tape=write_tape(machine.tape, *arguments)), registers


def write_tape(tape: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Write the value q in the cell p: (1 - p) 1^T * M + p q^T"""
    return (1.0 - p).clamp(min=0.0)[..., None] * tape + p[..., None] * q[:, None]  # (B, M, M)


# ------------------------------------------------------------------------------------------- what a controller says


def choice_sizes(registers: int) -> list[int]:
    """Return how many numbers a controller gives for each module, and then for the registers."""
    modules = [arguments * (registers + at) for at, (arguments, _) in enumerate(MODULES.values())]
    return [*modules, registers * (registers + len(MODULES))]


def read_choices(logits: Tensor, registers: int) -> Choices:
    """Return a controller's choices: a softmax over the numbers of each argument and register. (B, sum)"""
    parts = logits.split(choice_sizes(registers), -1)
    arguments = [arguments for arguments, _ in MODULES.values()]
    modules = [
        part.unflatten(-1, (count, registers + at)).softmax(-1)
        for at, (part, count) in enumerate(zip(parts, arguments, strict=False))
    ]
    return Choices(modules, parts[-1].unflatten(-1, (registers, -1)).softmax(-1))


def choice_entropy(choices: Choices) -> Tensor:
    """Return the mean entropy of a step's choices in nats, row by row. -> (B,)"""
    of_each = [-(part * (part + LOG_EPSILON).log()).sum(-1) for part in (*choices.arguments, choices.registers)]
    return torch.cat(of_each, -1).mean(-1)


def _one_hot(like: Tensor, value: int) -> Tensor:
    """Return (M,), certain of one integer modulo M."""
    count = like.shape[-1]
    return F.one_hot(torch.tensor(value % count, device=like.device), count).to(like.dtype)


def tape_from_stream(x: Tensor, mask: Tensor) -> Tensor:
    """Return the tape that a stream M wide is: a cell for each position, the integer 0 beyond. -> (B, M, M)"""
    count = x.shape[-1]
    x = F.pad(x * mask[..., None], (0, 0, 0, count))[:, :count].clamp(min=0.0)  # (B, M, M)
    total = x.sum(-1, keepdim=True)
    return torch.where(total > 0.0, x / total.masked_fill(total == 0.0, 1.0), _one_hot(x, 0))
