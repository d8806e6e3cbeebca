"""`linear`: one linear map at each position, with an activation if wanted."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Count, Positive, Site, State
from blocks.core.functional import (
    Activation,
    activate,
    gate_factor,
    weight_norm_gain,
    weight_normed,
)


class Linear(Block):
    """A linear map: y = f(W x + b). With glu, swiglu and geglu W is twice as wide and one half
    gates the other.

    Settings:
        width: The width that comes out; `model.width` unless given.
        activation: What is applied to the result.
        bias: Whether there is a bias b.
        weight_norm: Whether each row of W is a gain times a direction, g v / |v| (Salimans & Kingma
            2016, equation 2), and normal at first, of variance 1 / D for the D features that arrive
            (Gehring et al. 2017, section 3.5).
        init_scale: What the initial weights are multiplied by, above 0: sqrt(1 - p) after a dropout
            of p (there too).

    Shapes: (B, T, .) -> (B, T, width), or so for each cell of a grid.
    """

    family = "position-wise"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        width: Count | None = None,
        activation: Activation = "none",
        bias: bool = True,
        weight_norm: bool = False,
        init_scale: Positive = 1.0,
    ) -> None:
        super().__init__()
        width = site.width if width is None else width
        self.activation = activation
        self.map = nn.Linear(site.stream.width, width * gate_factor(activation), bias=bias)
        self.out = site.stream._replace(width=width)
        if weight_norm:
            nn.init.normal_(self.map.weight, std=init_scale * site.stream.width**-0.5)
        else:
            nn.init.xavier_uniform_(self.map.weight, gain=init_scale)
        if bias:
            nn.init.zeros_(self.map.bias)
        self.gain = weight_norm_gain(self.map.weight) if weight_norm else None

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y = F.linear(x, weight_normed(self.map.weight, self.gain), self.map.bias)
        return activate(self.activation, y), state
