"""`residual`: adds what a stack makes to what entered it."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from blocks.core.contract import Blocks, Context, NamedOutputs, Positive, Rate, Site, State
from blocks.core.functional import apply_dropout, check_norm_width
from blocks.core.stack import Wrapper, check_same_stream


class Residual(Wrapper):
    """A residual connection (He et al. 2016) around a stack, with the norm before or after it.

    none: y = scale (x + dropout(f(x)));   pre: f reads norm(x);
    post: y = norm(scale (x + dropout(f(x))))

    Settings:
        stack: The blocks f; they keep the width and the length.
        norm: Where layer normalisation stands: none | pre | post.
        scale: What the sum is multiplied by, above 0; sqrt(0.5) = 0.7071 in Gehring et al. 2017.
        dropout: Probability of dropping a value that the stack adds, 0 <= dropout < 1.

    Shapes: (B, T, D) -> (B, T, D), or so for each cell of a grid. State: the stack's.
    Raises BlockError where the stack changes the width, the length or the kind of the stream, and
    for a norm of one feature.
    """

    family = "structure"

    def __init__(
        self,
        site: Site,
        *,
        stack: Blocks,
        norm: Literal["none", "pre", "post"] = "none",
        scale: Positive = 1.0,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        self.stack = site.stack(("stack",), stack)
        check_same_stream(site, self.stack, "a residual adds what entered")
        if norm != "none":
            check_norm_width(site.stream.width, "norm")
        self.placed, self.scale, self.dropout = norm, scale, dropout
        self.norm = nn.Identity() if norm == "none" else nn.LayerNorm(site.stream.width)
        self.out = site.stream

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        added, state, outputs = self.stack(
            self.norm(x) if self.placed == "pre" else x, state, context
        )
        y = x + apply_dropout(added, self.dropout, self.training)
        y = y if self.scale == 1.0 else y * self.scale
        y = self.norm(y) if self.placed == "post" else y
        if self.out.grid:
            context.record("image", y)
        return y, state, outputs
