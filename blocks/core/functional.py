"""Functions shared by blocks: activations, normalisation, sinusoids, last positions, masked grids,
padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import BlockError, Fix, remove

Activation = Literal[
    "none",
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "glu",
    "swiglu",
    "geglu",
    "geglu_tanh",
]
"""none | relu | gelu | gelu_tanh (gelu by its approximation with tanh) | silu | tanh | sigmoid |
glu (a * sigmoid(b)) |
swiglu (silu(a) * b) | geglu (gelu(a) * b) | geglu_tanh (gelu_tanh(a) * b)."""
PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
}
"""What the first half passes to gate the second one."""

DROPOUT_LEVELS = 1 << 16
DT_RANGE = 1e-3, 1e-1


def check_norm_width(width: int, setting: str = "") -> None:
    """Raise BlockError where there is one feature to normalise."""
    if width == 1:
        message = "of one feature, layer normalisation leaves its bias and nothing of what arrives"
        fix = remove(setting, ", or normalise two features or more")
        raise BlockError(setting, message, code="width", fix=fix)


def check_rms_width(width: int, setting: str, fix: str | Fix) -> None:
    """Raise BlockError where there is one feature to divide by its root mean square."""
    if width == 1:
        message = "of one feature, division by the root mean square leaves the sign alone"
        raise BlockError(setting, message, code="width", fix=fix)


class RmsNorm(nn.Module):
    """Root-mean-square normalisation inside a block, g x / sqrt(mean(x^2) + 1e-5), in the type that
    arrives.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        # the gain is cast: under autocast torch has no kernel for two types
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), eps=1e-5)


def gate_factor(name: Activation) -> int:
    """Return the input width of an activation per output width: 2 for gates, else 1."""
    return 1 if name in PLAIN else 2


def activate(name: Activation, x: Tensor) -> Tensor:
    """Apply an activation. x: (..., gate_factor(name) * D) -> (..., D)"""
    if name in PLAIN:
        return PLAIN[name](x)
    if name == "glu":
        return F.glu(x, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return GATES[name](a) * b


def state_dtype(x: Tensor) -> torch.dtype:
    """Return the precision of a state: that of x, and float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype while entered."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def inverse_softplus(y: Tensor) -> Tensor:
    """Return the x whose softplus is y, above 0."""
    return y + torch.log(-torch.expm1(-y))


def random_dt(*shape: int) -> Tensor:
    """Draw steps of time between 0.001 and 0.1, evenly in their logarithms (Gu & Dao 2023, section
    3.6).
    """
    least, most = (math.log(dt) for dt in DT_RANGE)
    return torch.empty(*shape).uniform_(least, most).exp()


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast, whose rounding a state of many steps must not have; there
    is none on meta.
    """
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def weight_norm_gain(direction: Tensor) -> nn.Parameter:
    """Return the gains that keep the weights at `direction`: |v|. (outputs, ...) -> (outputs,)"""
    return nn.Parameter(weight_norms(direction).detach().clone())


def weight_normed(direction: Tensor, gain: Tensor | None) -> Tensor:
    """Return w = g v / |v| for each output; `direction` itself without a gain. (outputs, ...),
    (outputs,)
    """
    if gain is None:
        return direction
    scale = gain / weight_norms(direction)
    return direction * scale.view(-1, *(1,) * (direction.ndim - 1))


def weight_norms(direction: Tensor) -> Tensor:
    """Return |v| of each output: (outputs, ...) -> (outputs,)"""
    return torch.linalg.vector_norm(direction.flatten(1), dim=1)


def apply_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """In training, set each value to zero with probability `rate`, and divide the others by 1 -
    rate.

    On a CPU the rate is the nearest of 65,535 between 0 and 1, for 16 random bits cost a tenth of
    torch's mask.
    """
    if not training or not rate:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    dropped = min(max(1, round(rate * DROPOUT_LEVELS)), DROPOUT_LEVELS - 1)
    random = (
        torch.empty(x.numel() // 4 + 1, dtype=torch.int64)
        .random_(-(1 << 63), None)
        .view(torch.int16)
    )
    mask = random[: x.numel()].ge_(dropped - DROPOUT_LEVELS // 2).view(x.shape).to(x.dtype)
    # the factor is not in the mask, where bfloat16 would round it for all values alike
    return (x * mask).mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))


def apply_locked_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Apply dropout with one mask for all positions of a row, and for all columns of a grid. x: (B,
    T, D), (B, T, W, D)

    Called with some of the positions, as in a loop over them or in windows of a text, it draws one
    for each call.
    """
    if not training or not rate:
        return x
    ones = x.new_ones(x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])
    return x * apply_dropout(ones, rate, training)


def sinusoidal(where: Tensor, width: int) -> Tensor:
    """Return the sinusoidal embedding of positions: (...) -> (..., width), float32."""
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half, device=where.device) * (-math.log(10_000.0) / half))
    angles = where[..., None] * rates  # (B, T, width/2)
    return torch.cat((angles.sin(), angles.cos()), -1)[..., :width]


def no_positions(mask: Tensor) -> Tensor:
    """Return the number of positions before the first one: (B, T) -> (B,) zeros"""
    return mask.new_zeros(mask.shape[0], dtype=torch.long)


def count_positions(before: Tensor, mask: Tensor) -> Tensor:
    """Add the real positions of `mask` to those before: (B,), (B, T) or (B, T, W) -> (B,)"""
    return before + mask.flatten(2).any(-1).sum(1) if mask.ndim > 2 else before + mask.sum(1)


def last_positions(x: Tensor, count: Tensor, length: int) -> Tensor:
    """Return each row's last `length` positions before its padding.

    x: (B, length + T, ...), of which the first `length` came before and `count` (B,) of the others
    are real.
    -> (B, length, ...)
    """
    where = count[:, None] + torch.arange(length, device=x.device)  # (B, length)
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[rows, where]


def mask_cells(x: Tensor, mask: Tensor) -> Tensor:
    """Return the grid with zeros where no cell is real. x: (B, T, W, D), mask: (B, T, W)"""
    return x * mask[..., None].to(x.dtype)


def pad_same(x: Tensor, kernel: tuple[int, ...]) -> tuple[Tensor, tuple[int, int]]:
    """Pad with zeros for a convolution that keeps the size; an even kernel has one more of them at
    the end.

    x: (B, D, T, W) -> x, and the zeros on both sides that are left for the convolution to add,
    which is quicker.
    """
    down, across = ((size - 1) for size in kernel)
    if down % 2 or across % 2:
        x = F.pad(x, (0, across % 2, 0, down % 2))
    return x, (down // 2, across // 2)
