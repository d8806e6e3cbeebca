"""`cgru`: a convolutional gated recurrent unit, one step of an active memory."""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import (
    Block,
    Context,
    Count,
    Name,
    NoEffect,
    NonNegative,
    Rate,
    Site,
    State,
)
from blocks.core.functional import apply_dropout, mask_cells, pad_same
from blocks.core.named_inputs import read_named, resolve_streams

Gates = Literal["cutoff", "plain", "hard"]
LIMITS = {"cutoff": 0.9 * math.log(11.0), "hard": 0.9}
"""From where on a gate costs, by its kind: nine tenths of the way to where it is 0 or 1 and has no
gradient.
"""
LENGTH, ROOT = 8.0, 3.0
"""Of `dropout_by`: at these lengths, 8 and 3 squared, the rate is the one that is written."""


class Cgru(Block):
    """Convolutional gated recurrent unit (Kaiser & Sutskever 2016, section 2), one step on a grid.

    s' = u * s + (1 - u) * tanh(U * (r * s) + B)

    u = g(U' * s + B'); r = g(U'' * s + B'')

    U * s is a convolution over positions and columns, with zeros beyond the edges. With another
    grid p, each convolution has a second kernel, W * p, and r does not touch p (Kaiser & Bengio
    2016, section 3).

    Settings:
        kernel: Positions, then columns, that each convolution sees; one of 1 x 1 makes each cell a
            gru.
        gates: g: cutoff, 1.2 sigmoid(z) - 0.1 cut to 0 and 1; plain, sigmoid(z); hard, (1 + z) / 2
            cut to 0 and 1.
        candidate: What makes the new values: tanh, or hard, which is z cut to -1 and 1.
        bias: What B' is at first; at 1 the unit begins by keeping most of s.
        reset_bias: What B'' is at first; as `bias` unless given.
        diagonal: Whether the gates are diagonal: a third of the features is taken from the position
            before, a third from the one after, in place of s in u * s (Freivalds & Liepins 2018,
            section 3).
        dropout: Probability of dropping a value, 0 <= dropout < 1.
        dropout_of: Which values are dropped: state, s as it enters; or candidate, the tanh
            (tensor2tensor).
        dropout_by: What that is for a row of n positions: rate, as it is; length, times 8 / n (as
            Kaiser & Sutskever's code has it); sqrt_length, times 3 / sqrt(n) (Kaiser & Bengio's).
        saturation: Weight of the cost of gates that are nearly 0 or 1, and of a hard candidate
            nearly -1 or 1: the mean of what their arguments exceed nine tenths of the limit by
            (Freivalds & Liepins 2018, section 3).
        with: The name of another grid p to read; inside `active_memory`, `tape` is the output tape.

    Shapes: (B, T, W, D) -> (B, T, W, D).
    Raises BlockError where a sequence arrives or no grid is called so, in a decoder, since a
    convolution looks ahead, where plain gates have a saturation cost, for settings of a dropout of
    0, and for diagonal gates of 1 or 2 features.
    """

    family = "convolution"

    def __init__(
        self,
        site: Site,
        *,
        kernel: tuple[Count, Count] = (3, 3),
        gates: Gates = "cutoff",
        candidate: Literal["tanh", "hard"] = "tanh",
        bias: float = 1.0,
        reset_bias: float | None = None,
        diagonal: bool = False,
        dropout: Rate = 0.0,
        dropout_of: Literal["state", "candidate"] = "state",
        dropout_by: Literal["rate", "length", "sqrt_length"] = "rate",
        saturation: NonNegative = 0.0,
        with_: Name | None = None,
    ) -> None:
        super().__init__()
        stream = site.grid("cgru")
        site.require_full_context(
            "",
            "a convolution over the whole grid",
            fix="move it to the encoder, or into `active_memory`",
        )
        if saturation and gates == "plain":
            message = "plain gates never reach 0 or 1, so they do not saturate"
            fix = "remove `saturation`, or write `gates: cutoff` or `gates: hard`"
            raise NoEffect("saturation", message, fix=fix)
        for setting, value, default in (
            ("dropout_of", dropout_of, "state"),
            ("dropout_by", dropout_by, "rate"),
        ):
            if not dropout and value != default:
                message = "nothing is dropped here, for `dropout` is 0"
                raise NoEffect(
                    setting, message, fix=f"remove `{setting}`, or write `dropout: 0.1` beside it"
                )
        if diagonal and stream.width < 3:
            message = f"a third of {stream.width} features is none, so no gate is diagonal"
            raise NoEffect(
                "diagonal", message, fix="remove `diagonal`, or make the grid 3 wide or wider"
            )
        (down, across), width = kernel, stream.width
        self.kernel, self.gates, self.hard, self.diagonal = (
            (down, across),
            gates,
            candidate == "hard",
            diagonal,
        )
        self.dropout, self.dropout_of, self.dropout_by = dropout, dropout_of, dropout_by
        self.saturation, self.beside = saturation, with_
        arriving = width + (0 if with_ is None else resolve_streams(site, [with_], "with")[0].width)
        self.both = nn.Conv2d(arriving, 2 * width, self.kernel)
        self.new = nn.Conv2d(arriving, width, self.kernel)
        for convolution in (self.both, self.new):
            nn.init.xavier_uniform_(convolution.weight)
            nn.init.zeros_(cast(Tensor, convolution.bias))
        reset, update = cast(Tensor, self.both.bias).detach().chunk(2)
        reset.fill_(bias if reset_bias is None else reset_bias)
        update.fill_(bias)
        self.out = stream

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        s = mask_cells(x, context.mask)  # (B, T, W, D)
        s = self._dropped(s, context.mask) if self.dropout_of == "state" else s
        p = (
            ()
            if self.beside is None
            else (mask_cells(read_named(x, [self.beside], context)[0], context.mask),)
        )
        z = self._convolved(self.both, s, p)  # (B, T, W, 2 D)
        r, u = self._gate(z).chunk(2, -1)
        new = self._convolved(self.new, r * s, p)
        candidate = F.hardtanh(new) if self.hard else torch.tanh(new)
        candidate = (
            self._dropped(candidate, context.mask) if self.dropout_of == "candidate" else candidate
        )
        self._cost(z, new, context)
        previous = self._shifted(s) if self.diagonal else s
        y = torch.lerp(
            candidate.to(s.dtype), previous, u.to(s.dtype)
        )  # under autocast the state stays as precise as it is
        context.record("image", y)
        return y, state

    def _convolved(self, convolution: nn.Conv2d, s: Tensor, p: tuple[Tensor, ...]) -> Tensor:
        """Convolve s: (B, T, W, D), which is how a convolution likes its channels to lie: last in
        memory.
        """
        z = torch.cat((s, *p), -1).movedim(-1, 1) if p else s.movedim(-1, 1)  # (B, D, T, W)
        padded, padding = pad_same(z, self.kernel)
        return F.conv2d(padded, convolution.weight, convolution.bias, padding=padding).movedim(
            1, -1
        )

    def _gate(self, z: Tensor) -> Tensor:
        match self.gates:
            case "cutoff":
                # as `clamp`, but one pass backwards
                return F.hardtanh(1.2 * torch.sigmoid(z) - 0.1, 0.0, 1.0)
            case "plain":
                return torch.sigmoid(z)
            case "hard":
                return F.hardtanh(0.5 * z + 0.5, 0.0, 1.0)

    def _dropped(self, s: Tensor, mask: Tensor) -> Tensor:
        if self.dropout_by == "rate" or not self.training or not self.dropout:
            return apply_dropout(s, self.dropout, self.training)
        count = mask.any(-1).sum(1).clamp(min=1).to(s.dtype)  # (B,)
        factor = LENGTH / count if self.dropout_by == "length" else ROOT / count.sqrt()
        keep = 1.0 - (self.dropout * factor).clamp(max=0.9)[:, None, None, None]
        return s * (torch.rand_like(s) < keep) / keep

    def _shifted(self, s: Tensor) -> Tensor:
        """Shift the second third of the features right by one position, the last third left."""
        third = s.shape[-1] // 3
        here, left, right = s.split((s.shape[-1] - 2 * third, third, third), -1)
        return torch.cat(
            (
                here,
                F.pad(left[:, :-1], (0, 0, 0, 0, 1, 0)),
                F.pad(right[:, 1:], (0, 0, 0, 0, 0, 1)),
            ),
            -1,
        )

    def _cost(self, z: Tensor, new: Tensor, context: Context) -> None:
        if not self.saturation or context.penalties is None:
            return
        over = F.relu(z.abs() - LIMITS[self.gates]).mean(-1)  # (B, T, W)
        if self.hard:
            over = over + F.relu(new.abs() - LIMITS["hard"]).mean(-1)
        real = context.mask.to(over.dtype)  # (B, T, W)
        of_row = (over * real).sum((1, 2)) / real.sum((1, 2)).clamp(min=1.0)  # (B,)
        context.penalty("saturation", self.saturation * of_row)
