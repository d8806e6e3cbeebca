"""Tensors of layers that several families share, from their names to ours."""

from __future__ import annotations

import torch
from torch import Tensor

from composer.importers.family import Theirs

ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
"""Their maps of queries, keys, values and the result."""


def norm(theirs: Theirs, name: str, path: str, width: int) -> dict[str, Tensor]:
    """Return gain and bias of a layer norm. path: With the name of the module in our block."""
    return {
        f"{path}.weight": theirs.take(f"{name}.weight", width),
        f"{path}.bias": theirs.take(f"{name}.bias", width),
    }


def linear(theirs: Theirs, name: str, path: str, leaving: int, arriving: int) -> dict[str, Tensor]:
    """Return matrix and bias of a linear map."""
    return {
        f"{path}.weight": theirs.take(f"{name}.weight", leaving, arriving),
        f"{path}.bias": theirs.take(f"{name}.bias", leaving),
    }


def stacked(theirs: Theirs, names: list[str], path: str, width: int) -> dict[str, Tensor]:
    """Return linear maps that are one of ours; where they have no bias it is 0."""
    biases = [
        theirs.take(f"{name}.bias", width) if f"{name}.bias" in theirs else torch.zeros(width)
        for name in names
    ]
    return {
        f"{path}.weight": torch.cat(
            [theirs.take(f"{name}.weight", width, width) for name in names]
        ),
        f"{path}.bias": torch.cat(biases),
    }


def self_attention(
    theirs: Theirs, name: str, path: str, width: int, parts: tuple[str, ...] = ATTENTION
) -> dict[str, Tensor]:
    """Return the tensors of a self-attention. parts: See ATTENTION."""
    *mapped, result = (f"{name}.{part}" for part in parts)
    return {
        **stacked(theirs, mapped, f"{path}.project", width),
        **linear(theirs, result, f"{path}.merge", width, width),
    }


def cross_attention(theirs: Theirs, name: str, path: str, width: int) -> dict[str, Tensor]:
    """Return the tensors of a cross-attention."""
    query, *memory, result = (f"{name}.{part}" for part in ATTENTION)
    return {
        **linear(theirs, query, f"{path}.query", width, width),
        **stacked(theirs, memory, f"{path}.project", width),
        **linear(theirs, result, f"{path}.merge", width, width),
    }


def feed_forward(
    theirs: Theirs, names: tuple[str, str], path: str, width: int, hidden: int
) -> dict[str, Tensor]:
    """Return the tensors of a feed-forward network."""
    return {
        **linear(theirs, names[0], f"{path}.expand", hidden, width),
        **linear(theirs, names[1], f"{path}.contract", width, hidden),
    }
