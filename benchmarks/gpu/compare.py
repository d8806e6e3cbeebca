"""How far numbers of a device are from float64, beside how far those of the CPU in the same type
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tests.laws.on_two_devices import CHANCE

FLOORS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative errors of a type that are as they should be."""
FACTOR = 5.0
"""How many times the CPU's error in the same type the device's may be, where that is larger."""
Numbers = Mapping[str, Sequence[Tensor]]
"""Tensors by what they are: outputs, states, gradients."""


def without_chance(module: nn.Module) -> nn.Module:
    """Set every random rate of a module to 0, in training too, and return the module."""
    for inner in module.modules():
        for setting in CHANCE:
            if isinstance(vars(inner).get(setting), float):
                setattr(inner, setting, 0.0)
    return module


def relative_error(mine: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the norm of the difference as a part of the norm; infinite where shapes differ or a
    number is none.
    """
    if [tensor.shape for tensor in mine] != [tensor.shape for tensor in exact]:
        return float("inf")
    one, other = (
        torch.cat([torch.zeros(1), *(tensor.detach().cpu().double().flatten() for tensor in side)])
        for side in (mine, exact)
    )
    gap, size = float((one - other).norm()), float(other.norm())
    return gap / max(size, 1e-12) if gap == gap else float("inf")


def describe_faults(dtype: torch.dtype, device: Numbers, cpu: Numbers, exact: Numbers) -> list[str]:
    """Return what is further from `exact` on the device than it may be, with the errors."""
    faults = []
    for name, expected in exact.items():
        there, here = relative_error(device[name], expected), relative_error(cpu[name], expected)
        if not there <= max(FLOORS[dtype], FACTOR * here):
            faults.append(
                f"{name} in {str(dtype).removeprefix('torch.')}: {there:.2g}, on the CPU {here:.2g}"
            )
    return faults
