"""The activations that blocks offer, by the word in the recipe. A gated one takes twice the width that it gives."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Literal["none", "relu", "gelu", "silu", "tanh", "sigmoid", "glu", "swiglu"]
"""none | relu | gelu | silu | tanh | sigmoid | glu (a * sigmoid(b)) | swiglu (silu(a) * b)."""


def gate_factor(name: Activation) -> int:
    """How many times the width that comes out must go in: 2 for glu and swiglu (halves a, b), else 1."""
    return 2 if name in ("glu", "swiglu") else 1


def activate(name: Activation, x: Tensor) -> Tensor:
    """x: (..., gate_factor(name) * D) -> (..., D)"""
    match name:
        case "none":
            return x
        case "relu":
            return F.relu(x)
        case "gelu":
            return F.gelu(x)
        case "silu":
            return F.silu(x)
        case "tanh":
            return torch.tanh(x)
        case "sigmoid":
            return torch.sigmoid(x)
        case "glu":
            return F.glu(x, dim=-1)
        case "swiglu":
            a, b = x.chunk(2, dim=-1)
            return F.silu(a) * b
