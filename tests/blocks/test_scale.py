"""`scale` multiplies the stream, and with `gradient` its gradient by another number."""

from __future__ import annotations

import pytest
import torch

from blocks.scale import Scale
from tests.blocks.single_block import run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "scale": ({"factor": 0.3}, {"factor": 0.3, "gradient": 2.0}, {"factor": 0.3, "readers": 4}),
}
"""Settings with which the laws are checked, by block."""


@pytest.mark.parametrize(
    ("factor", "gradient", "readers", "expected"),
    [
        (0.5, None, 1, 0.5),
        (1.0, 0.25, 1, 0.25),
        (0.5, 3.0, 1, 3.0),
        (0.5, None, 4, 0.125),
        (0.5, 3.0, 4, 0.75),
    ],
)
def test_the_stream_and_the_gradient_are_multiplied(
    factor: float, gradient: float | None, readers: int, expected: float
) -> None:
    x, above = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 3, 4)
    y, _ = run(Scale(site_of(4), factor=factor, gradient=gradient, readers=readers), x)
    assert torch.equal(y, factor * x)
    (result,) = torch.autograd.grad(y, x, above)
    assert torch.equal(result, expected * above)


def test_gradients_of_later_blocks_are_unchanged() -> None:
    x, weight = torch.randn(1, 3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    y, _ = run(Scale(site_of(4), gradient=0.5), x)
    scaled = torch.autograd.grad((y @ weight).tanh().sum(), (x, weight))
    plain = torch.autograd.grad((x @ weight).tanh().sum(), (x, weight))
    assert torch.equal(scaled[0], 0.5 * plain[0])
    assert torch.equal(scaled[1], plain[1])
