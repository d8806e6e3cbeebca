"""`feed_forward`: two linear maps with an activation between them, at each position alone."""

from __future__ import annotations

from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, Rate, Site, State
from blocks.core.functional import Activation, activate, apply_dropout, gate_factor


class FeedForward(Block):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3; gated forms: Shazeer
    2020).

    y = W_2 dropout(f(W_1 x + b_1)) + b_2; with glu, swiglu and geglu W_1 is twice as wide and one
    half gates the other.

    Settings:
        hidden: Inner width, after a gate; 4 times the width that arrives unless given.
        activation: What stands between the two maps.
        dropout: Probability of dropping an inner unit, 0 <= dropout < 1.
        bias: Whether there are b_1 and b_2.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    """

    family = "position-wise"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        hidden: Count | None = None,
        activation: Activation = "relu",
        dropout: Rate = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        width = site.stream.width
        hidden = 4 * width if hidden is None else hidden
        self.activation, self.dropout = activation, dropout
        self.expand = nn.Linear(width, hidden * gate_factor(activation), bias=bias)
        self.contract = nn.Linear(hidden, width, bias=bias)
        self.out = site.stream
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        hidden = apply_dropout(
            activate(self.activation, self.expand(x)), self.dropout, self.training
        )
        return self.contract(hidden), state
