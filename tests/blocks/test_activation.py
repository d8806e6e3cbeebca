"""`activation`, and the convolution module of Conformer that it completes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.activation import Activation
from blocks.conv import Conv
from blocks.core.contract import BlockError, Stream
from blocks.linear import Linear
from blocks.norm import Norm
from tests.blocks.single_block import close, context_of, mask_of, run, site_of, stack_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {"activation": ({}, {"kind": "tanh"}, {"kind": "glu"})}
"""Settings with which the laws are checked, by block."""

CONVOLUTION_MODULE = [
    {"block": Norm},
    {"block": Linear, "activation": "glu"},
    {"block": Conv, "kernel": 31, "depthwise": True},
    {"block": Norm},
    {"block": Activation, "kind": "silu"},
    {"block": Linear},
]


class ConformerConvolution(nn.Module):
    """Gulati et al. 2020, figure 2, as it is usually written: pointwise convolutions have a kernel
    of 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_inside = nn.LayerNorm(width), nn.LayerNorm(width)
        self.expand = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.project = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.expand(self.norm(x).mT), dim=1)  # (B, D, T)
        y = F.silu(self.norm_inside(self.depthwise(y).mT))  # (B, T, D)
        return self.project(y.mT).mT


def test_the_convolution_module_of_conformer_is_a_stack() -> None:
    stack, module, x = (
        stack_of(site_of(6), CONVOLUTION_MODULE),
        ConformerConvolution(6),
        torch.randn(2, 40, 6),
    )
    parts = [module.norm, module.expand, module.depthwise, module.norm_inside, module.project]
    mine, theirs = (
        [*stack.parameters()],
        [parameter for part in parts for parameter in part.parameters()],
    )
    with torch.no_grad():
        for one, other in zip(mine, theirs, strict=True):
            other.normal_(std=other[0].numel() ** -0.5)
            one.copy_(other.view_as(one))
    y, expected = run(stack, x)[0], module(x)
    close(y, expected)
    weight = torch.randn_like(y)
    gradients = (
        torch.autograd.grad((y * weight).sum(), mine),
        torch.autograd.grad((expected * weight).sum(), theirs),
    )
    for one, other in zip(*gradients, strict=True):
        close(one, other.view_as(one))


def test_gates_halve_the_width() -> None:
    block, x = Activation(site_of(4), kind="swiglu"), torch.randn(2, 3, 4)
    close(block(x, (), context_of(mask_of(3, 2)))[0], F.silu(x[..., :2]) * x[..., 2:])
    assert block.out == Stream(2)
    with pytest.raises(BlockError, match="3 features arrive") as refused:
        Activation(site_of(3), kind="glu")
    assert (refused.value.setting, refused.value.code, bool(refused.value.fix.text)) == (
        "kind",
        "width",
        True,
    )
