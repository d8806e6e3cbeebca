"""How a head of a memory with slots finds where to read and write: by content, by a shift,
sharpened.

The equations are those of Graves, Wayne & Danihelka 2014, section 3.3. N is the slots of a memory,
M the width of one, H heads at once, O = 2 s + 1 offsets from -s to s. A memory is (B, M, N) here:
the kernels run along the slots, of which there are more. Gradients are written out, since autograd
would write the memory and the weightings several times more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-12
"""Added to a squared length: what is shorter than 1e-6 resembles nothing."""
MIN_WEIGHT = 1e-30
"""Added to a weight, which then has a logarithm; every precision but float16 has it."""


class AddressParams(NamedTuple):
    """What heads ask for, at any number of positions (here `...`)."""

    key: Tensor  # (..., H, M), of length beta
    gate: Tensor  # (..., H, 1)
    shift: Tensor  # (..., H, 1, O), from the offset +s to -s
    sharpness: Tensor  # (..., H, 1)


class AddressTape(NamedTuple):
    """How heads came to where they are in a step: what its gradient needs."""

    memory: Tensor  # (B, M, N)
    before: Tensor  # (B, H, N)
    scale: Tensor  # (B, 1, N), of each slot
    alike: Tensor  # (B, H, N)
    content: Tensor  # (B, H, N)
    circle: Tensor  # (B, H, N + 2s)
    moved: Tensor  # (B, H, N), above 0
    logarithm: Tensor  # (B, H, N), of `moved`
    places: Tensor  # (B, H, N)


def param_sizes(width: int, shift: int) -> list[int]:
    """Return the sizes of a head's address parameters: k, beta, g, s, gamma."""
    return [width, 1, 1, 2 * shift + 1, 1]


def split_params(numbers: Tensor, width: int, shift: int) -> AddressParams:
    """Split a controller's numbers into what its heads ask for: (..., H, sum of `param_sizes`)."""
    key, strength, gate, moved, sharpness = numbers.split(param_sizes(width, shift), -1)
    key = normalize(torch.tanh(key)) * F.softplus(strength)
    return AddressParams(
        key,
        torch.sigmoid(gate),
        moved.softmax(-1).flip(-1)[..., None, :],
        1.0 + F.softplus(sharpness),
    )


def normalize(x: Tensor) -> Tensor:
    """x with the length 1 along its last axis."""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def address(memory: Tensor, before: Tensor, params: AddressParams) -> AddressTape:
    """Compute the weightings of a step, equations 5 to 9. memory: (B, M, N), before: (B, H, N)"""
    scale = (memory.square().sum(1, keepdim=True) + EPSILON).rsqrt()
    alike = torch.bmm(params.key, memory).mul_(scale)
    content = alike.softmax(-1)
    circle = pad_circular(torch.lerp(before, content, params.gate), params.shift)
    moved = circular_conv(circle, params.shift).add_(MIN_WEIGHT)
    logarithm = moved.log()  # equation 9 by logarithms: neither 0 nor a large gamma leaves nothing
    places = (params.sharpness * logarithm).softmax(-1)
    return AddressTape(memory, before, scale, alike, content, circle, moved, logarithm, places)


def address_backward(
    total: Tensor, grad: Tensor, params: AddressParams, tape: AddressTape
) -> tuple[Tensor, AddressParams]:
    """Return the gradients of the weightings before and of the parameters; the memory's is added to
    `total`.
    """
    power = softmax_backward(grad, tape.places)  # (B, H, N)
    sharpness = (power * tape.logarithm).sum(-1, keepdim=True)
    moved = power.mul_(params.sharpness).div_(tape.moved)
    shift = torch.cat(
        [
            (moved * window).sum(-1, keepdim=True)
            for window in circular_windows(tape.circle, params.shift)
        ],
        -1,
    )
    gated = shift_weights(moved, params.shift.flip(-1))
    gate = (gated * (tape.content - tape.before)).sum(-1, keepdim=True)
    content = gated * params.gate
    alike = softmax_backward(content, tape.content)
    length = (alike * tape.alike).sum(
        1, keepdim=True
    ) * tape.scale.square()  # (B, 1, N), per unit of M(i)
    product = alike.mul_(tape.scale)  # (B, H, N)
    total.addcmul_(tape.memory, length, value=-1.0).baddbmm_(params.key.mT, product)  # (B, M, N)
    key = torch.bmm(product, tape.memory.mT)  # (B, H, M)
    return gated.sub_(content), AddressParams(key, gate, shift[..., None, :], sharpness)


def shift_weights(weights: Tensor, shift: Tensor) -> Tensor:
    """Equation 8: w'(i) = sum_j w(j) s(i - j), the slots in a circle. (B, H, N), (B, H, 1, O) ->
    (B, H, N)
    """
    return circular_conv(pad_circular(weights, shift), shift)


def pad_circular(weights: Tensor, shift: Tensor) -> Tensor:
    """Pad the slots with those of the other end: (B, H, N) -> (B, H, N + 2s)"""
    most, slots = shift.shape[-1] // 2, weights.shape[-1]
    return torch.cat((weights[..., slots - most :], weights, weights[..., :most]), -1)


def circular_conv(circle: Tensor, shift: Tensor) -> Tensor:
    """Convolve over the slots: each one's neighbours, weighted. (B, H, N + 2s), (B, H, 1, O) -> (B,
    H, N)
    """
    first, *others = zip(circular_windows(circle, shift), shift.unbind(-1), strict=True)
    total_weights = torch.mul(*first)
    for window, share in others:
        total_weights = torch.addcmul(total_weights, window, share)
    return total_weights


def circular_windows(circle: Tensor, shift: Tensor) -> Iterator[Tensor]:
    """Each slot's neighbour at every offset, as many as `shift` has: (B, H, N) each."""
    slots = circle.shape[-1] - shift.shape[-1] + 1
    return (circle[..., first : first + slots] for first in range(shift.shape[-1]))


def softmax_backward(grad: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of z, where y is its softmax along the last axis."""
    return torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype)
