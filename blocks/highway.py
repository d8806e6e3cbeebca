"""`highway`: a gate between what a stack makes and what entered it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blocks.core.contract import Blocks, Context, NamedOutputs, Site, State
from blocks.core.stack import Wrapper, check_same_stream


class Highway(Wrapper):
    """A highway connection (Srivastava et al. 2015, section 2) around a stack.

    y = g f(x) + (1 - g) x, with g = sigmoid(W x + b); b starts at -1, so that most passes by before
    training.

    Settings:
        stack: The blocks f; they keep the width and the length.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid. State: the stack's.
    Raises BlockError where the stack changes the width, the length or the kind of the stream.
    """

    family = "structure"

    def __init__(self, site: Site, *, stack: Blocks) -> None:
        super().__init__()
        self.stack = site.stack(("stack",), stack)
        check_same_stream(site, self.stack, "a highway passes on what entered")
        self.gate = nn.Linear(site.stream.width, site.stream.width)
        self.out = site.stream
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        made, state, outputs = self.stack(x, state, context)
        gate = torch.sigmoid(self.gate(x))
        context.record("gate", gate)
        y = x + gate * (made - x)
        if self.out.grid:
            context.record("image", y)
        return y, state, outputs
