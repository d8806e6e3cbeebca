"""`use`: a stack that has a name under `stacks:`."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Context, Name, NamedOutputs, NoEffect, Site, State
from blocks.core.stack import Wrapper


class Use(Wrapper):
    """A stack written once under `model.stacks`; all its uses share their parameters unless they
    are copies.

    Settings:
        stack: The stack's name under `model.stacks`.
        copy: Whether this use has parameters of its own.

    Shapes: the stack's. State: the stack's, one for each use.
    Raises BlockError where no stack is called so, or where another stream arrives than at the use
    it shares with.
    """

    family = "structure"

    def __init__(self, site: Site, *, stack: Name, copy: bool = False) -> None:
        super().__init__()
        self.stack = site.named_stack(stack, copy)
        self.stack.is_shared = not copy
        if copy and not any(True for _ in self.stack.parameters()):
            raise NoEffect("copy", "nothing in the stack has parameters")
        self.out = self.stack.out

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        y, state, outputs = self.stack(x, state, context)
        return y, state, outputs

    def mask(self, mask: Tensor) -> Tensor:
        return self.stack.mask(mask)
