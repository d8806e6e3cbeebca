"""`stack_memory`: a stack that learns by gradients what to push and to pop."""

from __future__ import annotations

from blocks.core.contract import Count, InitialState, Site
from blocks.core.neural_stack import Ends, NeuralStack, pop_top, read_top

STACK = Ends((pop_top,), (read_top,))


class StackMemory(NeuralStack):
    """A continuous stack (Grefenstette et al. 2015, section 3.1, equations 1 to 3).

    v = tanh(W x + b), d and u = sigmoid(W x + b): a value, how much of it is pushed, how much is
    popped before. s_i' = max(0, s_i - max(0, u - sum_(j>i) s_j)) for the cells that are there; the
    new one has the strength d

    y = sum_i min(s_i', max(0, 1 - sum_(j>i) s_j')) v_i: what lies in the uppermost 1
    The bias of u is -1 before training, so that little is popped at first.

    Settings:
        width: The width of a value, and of what is read; `model.width` unless given.
        initial_state: zeros (an empty stack) | {copy: MEMORY.x} (the cells of another
            stack_memory).

    Shapes: (B, T, D) -> (B, T, width). State: the values of n cells, the last pushed last, (B, n,
    width), and the heights of their edges, sums of the strengths from the bottom, (B, 1 + n). Each
    position adds a cell.
    Raises BlockError where a grid arrives, for another initial state, and where what is copied is
    of another kind.
    """

    family = "memory"
    not_packed = (
        "what it has put away belongs to a row, and would be read by the documents after it"
    )

    def __init__(
        self, site: Site, *, width: Count | None = None, initial_state: InitialState = "zeros"
    ) -> None:
        super().__init__(site, "stack_memory", STACK, width, initial_state)
