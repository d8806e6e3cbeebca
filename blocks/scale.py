"""`scale`: multiplies the stream, or its gradient alone, by a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block, Context, Count, Positive, Site, State


class Scale(Block):
    """The stream times a number: y = factor x, and dL/dx = (gradient / readers) dL/dy, whatever the
    factor.

    Embeddings here have entries of variance 1; 0.1 makes them those of Gehring et al. 2017 (section
    3.6), who also let the encoder learn with a gradient of 1 / (2 L) for L attentions in the
    decoder (section 3.5): `gradient: 0.5` with `readers` the decoder's layers.

    Settings:
        factor: What the stream is multiplied by, above 0.
        gradient: What the gradient is multiplied by, above 0; by default the factor.
        readers: What the gradient is divided by: how many blocks read the result.

    Shapes: (B, T, .) -> (B, T, .), or so for each cell of a grid.
    """

    family = "normalization"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        factor: Positive = 1.0,
        gradient: Positive | None = None,
        readers: Count = 1,
    ) -> None:
        super().__init__()
        self.factor = factor
        self.gradient = (factor if gradient is None else gradient) / readers
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if self.gradient == self.factor:
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
