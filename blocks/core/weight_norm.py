"""Weight normalisation: each output's weights as a length times a direction (Salimans & Kingma 2016, equation 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gain_of(direction: Tensor) -> nn.Parameter:
    """The gains with which the weights at first are `direction`: g = |v|. (outputs, ...) -> (outputs,)"""
    return nn.Parameter(length(direction).detach().clone())


def weight_of(direction: Tensor, gain: Tensor | None) -> Tensor:
    """w = g v / |v| for each output; `direction` itself where there is no gain. (outputs, ...), (outputs,)"""
    if gain is None:
        return direction
    scale = gain / length(direction)
    return direction * scale.view(-1, *(1,) * (direction.ndim - 1))


def length(direction: Tensor) -> Tensor:
    """|v| of each output: (outputs, ...) -> (outputs,)"""
    return torch.linalg.vector_norm(direction.flatten(1), dim=1)
