"""`activation`: a nonlinearity at each value."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from blocks.core.contract import Block, BlockError, Context, Site, State
from blocks.core.functional import activate, gate_factor

Kind = Literal[
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "glu",
    "swiglu",
    "geglu",
    "geglu_tanh",
]
"""relu | gelu | gelu_tanh | silu | tanh | sigmoid | glu (a * sigmoid(b)) | swiglu (silu(a) * b) |
geglu (gelu(a) * b) | geglu_tanh (gelu_tanh(a) * b)."""


class Activation(Block):
    """A nonlinearity by itself: y = f(x), for where a norm stands between a map and it.

    So in the convolution module of Conformer (Gulati et al. 2020, section 2.2), here with layer
    normalisation in place of batch normalisation: norm, `linear: {activation: glu}`, `conv:
    {kernel: 31, depthwise: true}`, norm, `activation: silu`, linear.

    Settings:
        kind: relu | gelu | gelu_tanh | silu | tanh | sigmoid | glu | swiglu | geglu | geglu_tanh.
            gelu_tanh is gelu by its approximation with tanh. In the last four one half of the
            features gates the other, and half the width comes out.

    Shapes: (B, T, D) -> (B, T, D), or (B, T, D / 2); or so for each cell of a grid.
    Raises BlockError for gates of an odd width.
    """

    family = "position-wise"
    packs = True

    def __init__(self, site: Site, *, kind: Kind = "silu") -> None:
        super().__init__()
        self.kind, width, parts = kind, site.stream.width, gate_factor(kind)
        if width % parts:
            message = f"`{kind}` needs two halves, and {width} features arrive"
            raise BlockError(
                "kind", message, code="width", fix="put a `linear` of an even width before it"
            )
        self.out = site.stream._replace(width=width // parts)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return activate(self.kind, x), state
