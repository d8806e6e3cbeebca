"""`norm`: normalises each position by its own statistics."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from blocks.core.contract import Block, Context, Positive, Site, State
from blocks.core.functional import check_norm_width

KINDS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class Norm(Block):
    """Layer normalisation (Ba et al. 2016) or root-mean-square normalisation (Zhang & Sennrich
    2019).

    layer: y = g (x - mean) / sqrt(var + eps) + b;   rms: y = g x / sqrt(mean(x^2) + eps).

    Settings:
        kind: layer | rms.
        eps: What is added under the root, above 0; 1e-6 in Llama 2 and Qwen.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid.
    Raises BlockError where one feature arrives and `kind` is layer.
    """

    family = "normalization"
    packs = True

    def __init__(
        self, site: Site, *, kind: Literal["layer", "rms"] = "layer", eps: Positive = 1e-5
    ) -> None:
        super().__init__()
        if kind == "layer":
            check_norm_width(site.stream.width)
        self.normalise = KINDS[kind](site.stream.width, eps=eps)
        self.out = site.stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.normalise(x), state
