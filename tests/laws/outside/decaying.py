"""A package as somebody else may write it: a sound block, four that each break a law, and one that
knows no grid.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, Rate, Site, State


class Decaying(Block):
    """A moving average with a learned decay for each channel: m' = a m + (1 - a) x, y = x + scale
    m'.

    Settings:
        scale: What the average is multiplied by.
        dropout: Probability of dropping a value of the average, 0 <= dropout < 1.

    Shapes: (B, T, D) -> (B, T, D). State: the average (B, D).
    """

    def __init__(self, site: Site, *, scale: Count = 1, dropout: Rate = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.decay = nn.Parameter(torch.zeros(site.stream.width))
        self.drop = nn.Dropout(dropout)
        self.out = site.sequence("decaying")

    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(x.shape[0], self.out.width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        decay, averages = torch.sigmoid(self.decay), []
        for now, real in zip(x.unbind(1), context.mask.unbind(1), strict=True):
            state = torch.where(real[:, None], decay * state + (1 - decay) * now, state)
            averages.append(state)
        return x + self.scale * self.drop(torch.stack(averages, 1)), state


class LooksAhead(Decaying):
    """Its average begins with the last position."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return y + 0.1 * x[:, -1:], state


class KeepsOnSelf(Decaying):
    """Its average is an attribute."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, self.average = super().forward(x, state, context)
        return y, self.average


class SeesPadding(Decaying):
    """It takes no notice of the mask."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context._replace(mask=torch.ones_like(context.mask)))


class DeadKnob(Decaying):
    """It has a setting that does nothing."""

    def __init__(
        self, site: Site, *, scale: Count = 1, dropout: Rate = 0.0, window: Count = 4
    ) -> None:
        super().__init__(site, scale=scale, dropout=dropout)


class Trusting(Decaying):
    """It takes whatever arrives for a sequence."""

    def __init__(self, site: Site, *, scale: Count = 1, dropout: Rate = 0.0) -> None:
        super().__init__(
            replace(site, stream=site.stream._replace(grid=False)), scale=scale, dropout=dropout
        )
        self.out = site.stream
