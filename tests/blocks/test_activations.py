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
