"""`deque_memory`: a double-ended queue that learns by gradients what to push and pop."""

from __future__ import annotations

from blocks.core.contract import Count, InitialState, Site
from blocks.core.neural_stack import (
    Ends,
    NeuralStack,
    pop_bottom,
    pop_top,
    read_bottom,
    read_top,
)

DEQUE = Ends((pop_top, pop_bottom), (read_top, read_bottom))


class DequeMemory(NeuralStack):
    """A continuous double-ended queue (Grefenstette et al. 2015, section 3.3, equations 6 to 11).

    v = tanh(W x + b), d and u = sigmoid(W x + b), of the top and of the bottom: values, and how
    much of each is pushed and popped. In this order: pop at the top, pop at the bottom, push at
    both, read at both. At the top, and at the bottom with the sums over j < i:

    s_i' = max(0, s_i - max(0, u - sum_(j>i) s_j))

    y = sum_i min(s_i', max(0, 1 - sum_(j>i) s_j')) v_i

    The biases of both u are -1 before training, so that little is popped at first.

    Settings:
        width: The width of a value; `model.width` unless given. What is read, top then bottom, is
            twice as wide.
        initial_state: zeros (an empty deque) | {copy: MEMORY.x} (the cells of another
            deque_memory).

    Shapes: (B, T, D) -> (B, T, 2 width). State: the values of n cells from the bottom to the top,
    (B, n, width), and the heights of their edges, sums of the strengths from the bottom, (B, 1 +
    n). Each position adds two cells.
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
        super().__init__(site, "deque_memory", DEQUE, width, initial_state)
