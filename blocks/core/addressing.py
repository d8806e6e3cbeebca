"""How a head of a memory with slots finds where to read and write: by content, by a shift, sharpened.

The equations are those of Graves, Wayne & Danihelka 2014, section 3.3. N is the slots of a memory, M the width of one,
H heads at once, O = 2 s + 1 offsets from -s to s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

TINY = 1e-12
"""Added to a squared length: what is shorter than 1e-6 resembles nothing."""
NOWHERE = 1e-30
"""Added to a weight, which then has a logarithm; every precision but float16 has it."""


class Where(NamedTuple):
    """What heads ask for, at any number of positions (here `...`)."""

    key: Tensor  # (..., H, M), of length beta
    gate: Tensor  # (..., H, 1)
    shift: Tensor  # (..., H, 1, O), from the offset +s to -s
    sharpness: Tensor  # (..., H, 1)


def sizes(width: int, shift: int) -> list[int]:
    """How many numbers a head needs to say where: k, beta, g, s, gamma."""
    return [width, 1, 1, 2 * shift + 1, 1]


def where(numbers: Tensor, width: int, shift: int) -> Where:
    """What heads ask for, of what their controller says: (..., H, sum of `sizes`)."""
    key, strength, gate, moved, sharpness = numbers.split(sizes(width, shift), -1)
    key = unit(torch.tanh(key)) * F.softplus(strength)
    return Where(key, torch.sigmoid(gate), moved.softmax(-1).flip(-1)[..., None, :], 1.0 + F.softplus(sharpness))


def unit(x: Tensor) -> Tensor:
    """x with the length 1 along its last axis."""
    return x * (x.square().sum(-1, keepdim=True) + TINY).rsqrt()


class Alike(torch.autograd.Function):
    """k . M(i) / |M(i)| of keys (B, H, M) and slots (B, N, M): (B, H, N).

    Its own gradient, since the memory is far larger than all else: it is written once, where autograd writes it four
    times.
    """

    @staticmethod
    def forward(ctx: Any, key: Tensor, memory: Tensor) -> Tensor:
        scale = (memory.square().sum(-1) + TINY).rsqrt()[:, None]  # (B, 1, N)
        alike = key @ memory.mT * scale
        ctx.save_for_backward(key, memory, scale, alike)
        return alike

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        key, memory, scale, alike = ctx.saved_tensors
        onto = grad * scale  # (B, H, N)
        length = -((grad * alike).sum(1) * scale[:, 0].square())  # (B, N), per unit of M(i)
        return onto @ memory, torch.baddbmm(memory * length[..., None], onto.mT, key)


def address(memory: Tensor, before: Tensor, asked: Where) -> Tensor:
    """The weightings of a step, equations 5 to 9. memory: (B, N, M), before: (B, H, N) -> (B, H, N)"""
    alike: Tensor = Alike.apply(asked.key, memory)
    content = alike.softmax(-1)  # (B, H, N)
    return sharpened(shifted(torch.lerp(before, content, asked.gate), asked.shift), asked.sharpness)


def shifted(weights: Tensor, shift: Tensor) -> Tensor:
    """Equation 8: w'(i) = sum_j w(j) s(i - j), the slots in a circle. (B, H, N), (B, H, 1, O) -> (B, H, N)"""
    most, slots = shift.shape[-1] // 2, weights.shape[-1]
    circle = torch.cat((weights[..., slots - most :], weights, weights[..., :most]), -1)  # (B, H, N + 2s)
    return (shift @ circle.unfold(-1, slots, 1)).squeeze(-2)


def sharpened(weights: Tensor, sharpness: Tensor) -> Tensor:
    """Equation 9: w^gamma over its sum. Of the logarithms, so that neither 0 nor a large gamma leaves nothing."""
    return (sharpness * (weights + NOWHERE).log()).softmax(-1)
