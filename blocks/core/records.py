"""What blocks hand out beside their outputs: records for pictures, and penalties that are added to
the loss.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Path = tuple[str | int, ...]
"""Where a block stands in a recipe: ("model", "decoder", 1, "rnn")."""


class Record(NamedTuple):
    """Of whom something was recorded: the block's path, the iteration of each `repeat` around it,
    and what it is.
    """

    path: Path
    iterations: tuple[int, ...]
    name: str


Records = dict[Record, list[Tensor]]
"""What was recorded. Each value is (B, T, ...); the values of one key are consecutive positions."""


Reduction = Literal["mean", "sum", "tokens"]
"""What is taken of several penalties with one name; `tokens`: their sum, a cost of tokens as the
cross-entropy is.
"""
Penalties = dict[tuple[str, Reduction], list[Tensor]]
"""Costs to be added to the training loss, by name: of each row (B,), or scalars."""


def reduce_penalties(penalties: Penalties) -> dict[tuple[str, Reduction], Tensor]:
    """Return the penalties that are added to the loss, by name: scalars, means over rows."""
    totals = {}
    for key, values in penalties.items():
        stacked = torch.stack(values)  # (N, B) or (N,)
        totals[key] = stacked.mean() if key[1] == "mean" else stacked.sum(0).mean()
    return totals
