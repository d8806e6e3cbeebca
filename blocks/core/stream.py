"""A stream: what is known, before there is data, of what flows through a stack."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple


class Stream(NamedTuple):
    """What is known of a stream before there is data: a sequence (B, T, D), or a grid (B, T, W, D).

    `length_ratio` is the number of positions per token; 0 means one position for all. `rounded` has
    the ratios at which the length was rounded up to a whole number on the way here. Where both are
    equal, the length is.
    `columns` is W; 0 of a sequence.
    """

    width: int
    grid: bool = False
    length_ratio: Fraction = Fraction(1)
    columns: int = 0
    rounded: tuple[Fraction, ...] = ()

    def length(self, tokens: int) -> int:
        """Return the number of positions of a row of so many tokens."""
        length, before = tokens, Fraction(1)
        for ratio in (*self.rounded, self.length_ratio):
            length, before = math.ceil(length * ratio / before), ratio
        return length if self.length_ratio else 1

    def shortened(self, factor: int) -> Stream:
        """Return the stream with `factor` times fewer positions, rounded up."""
        ratio, before = self.length_ratio / factor, self.rounded
        # the positions per one of those last rounded
        multiple = self.length_ratio / (before or (Fraction(1),))[-1]
        if multiple % factor == 0:
            return self._replace(length_ratio=ratio)
        # one rounding in place of two: ceil(ceil(n) / 2) = ceil(n / 2)
        return self._replace(
            length_ratio=ratio, rounded=(*(before if factor % multiple else before[:-1]), ratio)
        )

    def same_length(self, other: Stream) -> bool:
        """True if two streams have equally many positions for any number of tokens."""
        return (self.length_ratio, self.rounded) == (other.length_ratio, other.rounded)

    @property
    def described(self) -> str:
        """The kind of the stream, with an article and the columns of a grid."""
        return f"a grid of {self.columns} columns" if self.grid else "a sequence"

    @property
    def described_length(self) -> str:
        """The positions per token, and the ratio at which they were rounded up if it is another
        one.
        """
        last = self.rounded[-1] if self.rounded else self.length_ratio
        return (
            f"{self.length_ratio}"
            if last == self.length_ratio
            else f"{self.length_ratio} (rounded up at {last})"
        )

    def first_difference(self, other: Stream) -> str:
        """Return the code of the first property in which two streams differ: kind, length or width;
        "" if none.
        """
        if (self.grid, self.columns) != (other.grid, other.columns):
            return "kind"
        if not self.same_length(other):
            return "length"
        return "width" if self.width != other.width else ""
