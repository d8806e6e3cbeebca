"""The kinds of setting: what a number, a name or a stack in a recipe may be. Importing this imports
no torch.

The constructors of blocks, and the sections of a recipe, are annotated with them; the schema says
them in the words of JSON Schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Bounds:
    """The range of a number in a recipe; the schema says it in JSON Schema's words."""

    minimum: float | None = None
    below: float | None = None
    above: float | None = None
    maximum: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.maximum is None or number <= self.maximum)
            and (self.below is None or number < self.below)
        )


@dataclass(frozen=True)
class Kind:
    """A setting that is more than a scalar: `stack`, `branches`, `name`, `memory`, `memories` or
    `initial_state`.
    """

    name: str


@dataclass(frozen=True)
class Distinct:
    """A list in which no item is repeated."""


Count = Annotated[int, Bounds(minimum=1, maximum=1_000_000)]
"""A whole number, 1 or more."""
LargeCount = Annotated[int, Bounds(minimum=1, maximum=1_000_000_000)]
"""A whole number, 1 or more, of steps or tokens."""
NonNegativeInt = Annotated[int, Bounds(minimum=0, maximum=1_000_000)]
"""A whole number, 0 or more."""
Few = Annotated[int, Bounds(minimum=1, maximum=1_000)]
"""How many layers, heads or hops of one block, 1 or more."""
ShortKernel = Annotated[int, Bounds(minimum=0, maximum=1_000)]
"""How many positions a short convolution reads; 0 for none."""
Chunk = Annotated[int, Bounds(minimum=1, maximum=1_024)]
"""How many positions are computed at once, with memory that grows with its square."""
Rate = Annotated[float, Bounds(minimum=0.0, below=1.0)]
"""A probability of dropping, 0 <= rate < 1."""
Positive = Annotated[float, Bounds(above=0.0)]
"""A number above 0."""
NonNegative = Annotated[float, Bounds(minimum=0.0)]
"""A number, 0 or more."""
Proportion = Annotated[float, Bounds(minimum=0.0, maximum=1.0)]
"""A number from 0 to 1."""
PositiveProportion = Annotated[float, Bounds(above=0.0, maximum=1.0)]
"""A number above 0 and at most 1."""
Seed = Annotated[int, Bounds(minimum=0, maximum=4_294_967_295)]
"""What random numbers start from."""
Name = Annotated[str, Kind("name")]
"""The name of an earlier output of the same encoder or decoder (given with `as`), `input`, or a
memory's output.
"""
NameList = Annotated[list[str], Kind("names")]
"""One name, or a list of names."""
Memory = Annotated[str, Kind("memory")]
"""What an encoder left to read: the encoder's name, or `encoder.x` for its output named x."""
Memories = Annotated[str | list[str], Kind("memories")]
"""One memory, or a list of them."""
InitialState = Annotated[str | dict[str, str], Kind("initial_state")]
"""zeros | learned | MEMORY | {copy: MEMORY.x}."""
Blocks = Annotated[list[Any], Kind("stack")]
"""A stack as it stands in the recipe: a list of single-key mappings. `Site.stack` builds it."""
Branches = Annotated[dict[str, Any] | list[Any], Kind("branches")]
"""Named stacks (a mapping) or unnamed ones (a list of lists), as they stand in the recipe."""
