"""`norm`: normalises each position by its own statistics."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from blocks.core.contract import Block, Context, Site, State
from blocks.core.functional import check_norm_width

KINDS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class Norm(Block):
    """Layer normalisation (Ba et al. 2016) or root-mean-square normalisation (Zhang & Sennrich 2019).

    layer: y = g (x - mean) / sqrt(var + 1e-5) + b;   rms: y = g x / sqrt(mean(x^2) + 1e-5).

    Settings:
        kind: layer | rms.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    Raises BlockError where one feature arrives and `kind` is layer.
    """

    family = "normalization"
    packs = True

    def __init__(self, site: Site, *, kind: Literal["layer", "rms"] = "layer") -> None:
        super().__init__()
        if kind == "layer":
            check_norm_width(site.stream.width)
        self.normalise = KINDS[kind](site.stream.width, eps=1e-5)
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.normalise(x), state
