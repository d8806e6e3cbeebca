"""Low-rank adapters in a model's state: their names, their sum with a matrix, merged weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ADAPTED = ".parametrizations."
"""What torch has in the names of a parametrized tensor, between its module and its own name."""
ORIGINAL, ADAPTER = "original", "0"
"""Names of the matrix and of its adapter below that."""


def add_low_rank(weight: Tensor, up: Tensor, down: Tensor, factor: Tensor) -> Tensor:
    """Return W + (alpha / rank) B A. up: B (M, R), down: A (R, N), factor: () -> (M, N)"""
    return weight + factor * (up @ down)


def merge_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the model without adapters: each matrix has its adapter's product."""
    merged = {}
    for name, value in weights.items():
        module, _, rest = name.partition(ADAPTED)
        tensor, _, part = rest.partition(".")
        adapter = f"{module}{ADAPTED}{tensor}.{ADAPTER}"
        if f"{adapter}.up" not in weights:
            merged[name] = value
        elif part == ORIGINAL:
            parts = [weights[f"{adapter}.{key}"] for key in ("up", "down", "factor")]
            merged[f"{module}.{tensor}"] = add_low_rank(value, *parts)
    return merged
