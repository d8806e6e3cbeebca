"""The activations by their words."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from blocks.core.functional import Activation, activate, gate_factor

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", get_args(Activation))
def test_the_output_has_the_declared_width(name: Activation) -> None:
    assert activate(name, torch.randn(2, 3, 5 * gate_factor(name))).shape == (2, 3, 5)


def test_gated_activations_are_gated_by_the_right_half() -> None:
    a, b = torch.tensor([2.0]), torch.tensor([-1.0])
    both = torch.cat((a, b))
    torch.testing.assert_close(activate("glu", both), a * torch.sigmoid(b))
    torch.testing.assert_close(activate("swiglu", both), a * torch.sigmoid(a) * b)
    torch.testing.assert_close(activate("geglu", both), a * (1 + torch.erf(a / 2**0.5)) / 2 * b)


def test_gelu_by_tanh_is_the_approximation() -> None:
    x = torch.linspace(-4.0, 4.0, 33)
    cubic = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    torch.testing.assert_close(activate("gelu_tanh", x), x / 2 * (1 + torch.tanh(cubic)))
