"""`nram`: a neural random-access machine."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor, nn

from blocks.core.contract import Block, BlockError, Bounds, Context, Count, Few, NonNegative, Site, State
from blocks.core.register_machine import (
    LOG_EPSILON,
    Choices,
    certain,
    choice_entropy,
    choice_sizes,
    initial_machine,
    read_choices,
    run_step,
    tape_from_stream,
)

MaxSteps = Annotated[int, Bounds(minimum=2, maximum=10_000)]
"""Two or more: what the last step writes into registers is read by nobody."""


class Nram(Block):
    """A machine that runs on a tape, each step wired by a controller (Kurach et al. 2016, sections 3 and 4).

    The stream is the tape: position i is cell i, and its M features are the probabilities of the integers 0 to M - 1,
    scaled to sum to 1; cells beyond the row hold 0, and positions beyond M are no cells and leave as they came. All
    registers begin at 0. In step t a controller sees P(r_i = 0) of each register r_i, and says for each of 14 modules
    from where its arguments come, and for each register what it becomes:
        o_m = module_m((r_1 .. r_R, o_1 .. o_(m-1)) softmax(a_m), the same softmax(b_m))           equation 1
        r_i = (r_1 .. r_R, o_1 .. o_14) softmax(c_i)                                               equation 2
    The modules in order, modulo M: READ, 0, 1, 2, a + 1, a + b, a - b, a - 1, a < b, a <= b, a = b, min, max, WRITE.
    It says too whether to stop, f_t in 0..1; it stops after step t with p_t = f_t prod_(s<t) (1 - f_s), p_T being the
    rest. What leaves are logits, y_i = sum_t p_t log(M_t[i] + 1e-6), so that the cross-entropy of the answer is the
    paper's cost, sum_t p_t -log M_t[i, y_i], less what the mixture lacks to sum to 1: nothing, once it is sure when to
    stop. No parameter depends on M.

    Settings:
        steps: Steps at most, 2 to 10000.
        registers: Registers, each an integer.
        hidden: Units of the controller's hidden layers, tanh.
        layers: Hidden layers of the controller.
        entropy: Times the mean entropy of the choices in nats, which is taken off the training loss; it falls to 0 in
            the course of the training (section 4).

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
        site.require_full_context("", "`nram`", "move it to the encoder, and read what it made with `- source_state`")
        if self.out.width < 3:
            message = f"the machine counts from 0 to {self.out.width - 1}, and needs 3 integers or more"
            raise BlockError("", message, code="width", fix="write `integers: {below: 3}` or more")
        self.steps, self.registers, self.entropy = steps, registers, entropy
        widths = [registers, *[hidden] * layers]
        inner = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.Tanh())]
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
        real = context.mask.any(1).to(choices.registers.dtype)  # (B,)
        mean = (choice_entropy(choices) * real).sum() / real.sum().clamp(min=1.0)
        context.penalty("entropy", -self.entropy * left * mean)
