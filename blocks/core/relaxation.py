"""Parameter-sharing relaxation (Kaiser & Sutskever 2016, section 4): sets of parameters that become one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

GROWTH = 200.0
"""How much stronger the pull is when the sets become one: from 5e-4 to 0.1, as the authors have it."""

Parameters = dict[str, Tensor]


def means(sets: Sequence[nn.Module]) -> Parameters:
    """The mean of each parameter over modules that are built alike."""
    every = [dict(each.named_parameters()) for each in sets]
    return {name: torch.stack([each[name] for each in every]).mean(0) for name in every[0]}


def effective(sets: Sequence[nn.Module], joined: Tensor) -> list[Parameters]:
    """What each set computes with: its own parameters, or the mean of all sets where `joined` (a truth) says so."""
    mean = means(sets)
    return [
        {name: torch.lerp(own, mean[name], joined.to(own.dtype)) for name, own in each.named_parameters()}
        for each in sets
    ]


def apart(sets: Sequence[nn.Module]) -> Tensor:
    """The sum over parameters and sets of |W_r - mean|^2."""
    mean = means(sets)
    gaps = [own - mean[name] for each in sets for name, own in each.named_parameters()]
    return torch.stack([gap.square().sum() for gap in gaps]).sum()


def pull_at(pull: float, progress: Tensor, join: float) -> Tensor:
    """The weight of `apart` at this fraction of the training: grows geometrically until the sets become one."""
    return pull * GROWTH ** (progress / join).clamp(max=1.0)
