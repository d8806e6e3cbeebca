"""`scale`: multiplies the stream, or its gradient alone, by a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block, Context, Positive, Site, State


class Scale(Block):
    """The stream times a number: y = factor x. With `gradient`, dL/dx = gradient dL/dy, whatever the factor.

    Embeddings here have entries of variance 1; 0.1 makes them those of Gehring et al. 2017 (section 3.6), who also let
    the encoder learn with a gradient of 1 / (2 L) for L attentions in the decoder (section 3.5).

    Settings:
        factor: What the stream is multiplied by, above 0.
        gradient: What the gradient is multiplied by, above 0; by default the factor.

    Shapes: (B, T, .) -> (B, T, .), or so for each cell of a grid.
    """

    family = "normalization"
    packs = True

    def __init__(self, site: Site, *, factor: Positive = 1.0, gradient: Positive | None = None) -> None:
        super().__init__()
        self.factor, self.gradient = factor, gradient
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if self.gradient is None:
            return x * self.factor, state
        y: Tensor = ScaleGradient.apply(x, self.factor, self.gradient)
        return y, state


class ScaleGradient(torch.autograd.Function):
    """Multiplies by one number, and the gradient by another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, gradient: float) -> Tensor:
        ctx.gradient = gradient
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient * gradients[0], None, None
