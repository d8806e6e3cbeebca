"""Gradient noise (Neelakantan et al. 2015, section 3): a pure function of seed and step, so that a run that was stopped
goes on with the noise it would have had, and all devices add the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Generator
from torch.nn import Parameter

from composer.training.sharding import part


def add_noise(parameters: Iterable[Parameter], seed: int, step: int, *, scale: float, decay: float) -> None:
    """Adds N(0, scale / (1 + step)^decay), a variance, to every number of every gradient; `step` counts from 0.

    Where gradients are sharded, each device draws the whole and adds its part: the noise is that of one device.
    """
    deviation = (scale / (1.0 + step) ** decay) ** 0.5
    generators: dict[torch.device, Generator] = {}
    for gradient in (each.grad for each in parameters if each.grad is not None):
        draw = generators.setdefault(gradient.device, Generator(gradient.device).manual_seed(number(seed, step)))
        noise = torch.randn(gradient.shape, generator=draw, device=gradient.device, dtype=gradient.dtype)
        gradient.add_(part(noise, gradient), alpha=deviation)


def number(seed: int, step: int) -> int:
    """A number of 63 bits of its own for each seed and step; neighbours have nothing to do with each other."""
    return int.from_bytes(hashlib.sha256(f"gradient noise {seed} {step}".encode()).digest()[:8]) >> 1
