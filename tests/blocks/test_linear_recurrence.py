"""Linear recurrences against a loop: chunks, gradients, decays of 0 and 1 and near to them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.core.linear_recurrence import linear_recurrence, log_linear_recurrence

DECAYS = {
    "any": lambda shape: torch.rand(shape),
    "near 0": lambda shape: 1e-30 * torch.rand(shape),
    "near 1": lambda shape: 1.0 - 1e-7 * torch.rand(shape),
    "0 and 1": lambda shape: torch.randint(2, shape).double(),
    "far apart": lambda shape: torch.rand(shape) ** 60,
}


def loop(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    y = []
    for gain, entering in zip(a.unbind(1), b.unbind(1), strict=True):
        before = gain * before + entering
        y.append(before)
    return torch.stack(y, 1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("length", [1, 2, 32, 33, 49, 100, 2000])
@pytest.mark.parametrize("decay", DECAYS)
def test_equals_a_loop_and_has_its_gradients(length: int, decay: str) -> None:
    a, b, before = DECAYS[decay]((2, length, 3)), torch.randn(2, length, 3), torch.randn(2, 3)
    inputs, weight = [x.requires_grad_() for x in (a, b, before)], torch.randn(2, length, 3)
    expected = loop(*inputs)
    exact = [expected, *torch.autograd.grad((expected * weight).sum(), inputs)]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        cast = [x.detach().to(dtype).requires_grad_() for x in inputs]
        # the rounding of 1 - 1e-7 is not the recurrence's
        rounded = loop(*(x.double() for x in cast))
        theirs = (
            [rounded, *torch.autograd.grad((rounded * weight).sum(), cast)]
            if dtype == torch.float32
            else exact
        )
        y = linear_recurrence(*cast)
        mine = [y, *torch.autograd.grad((y * weight.to(dtype)).sum(), cast)]
        for one, other in zip(mine, theirs, strict=True):
            assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("size", [1, 7, 64, 999, 1999])
def test_any_chunks_give_the_same(size: int) -> None:
    a, b, before = torch.rand(2, 2000, 3) ** 0.1, torch.randn(2, 2000, 3), torch.randn(2, 3)
    parts, at = [], before
    for gain, entering in zip(a.split(size, 1), b.split(size, 1), strict=True):
        parts.append(linear_recurrence(gain, entering, at))
        at = parts[-1][:, -1]
    torch.testing.assert_close(
        torch.cat(parts, 1), linear_recurrence(a, b, before), rtol=1e-12, atol=1e-12
    )


def test_what_a_decay_of_0_forgets_is_not_seen_at_all() -> None:
    """Not even where it is infinite."""
    a, b = torch.rand(1, 100, 4), torch.randn(1, 100, 4)
    a[:, 57] = 0.0
    y, other = (linear_recurrence(a, b, torch.full((1, 4), before)) for before in (0.0, 1e38))
    assert torch.equal(y[:, 57:], other[:, 57:])
    assert not torch.equal(y[:, :2], other[:, :2])


def test_states_are_in_single_precision_at_least() -> None:
    a, b = (
        torch.full((1, 400, 1), 0.99609375, dtype=torch.bfloat16),
        torch.ones(1, 400, 1, dtype=torch.bfloat16),
    )
    y = linear_recurrence(a, b, torch.zeros(1, 1, dtype=torch.bfloat16))
    assert y.dtype is torch.float32
    assert y[0, -1, 0].item() == pytest.approx((1 - 0.99609375**400) / (1 - 0.99609375), rel=1e-5)


@pytest.mark.usefixtures("float64")
def test_logarithms_give_the_same_and_more() -> None:
    a, b = torch.rand(2, 60), torch.rand(2, 60)
    y = linear_recurrence(a, b, torch.zeros(2))
    torch.testing.assert_close(log_linear_recurrence(a.log(), b.log()).exp(), y)
    tiny = log_linear_recurrence(torch.full((1, 3), -5000.0), torch.tensor([[-4000.0, -9e9, -9e9]]))
    torch.testing.assert_close(tiny, torch.tensor([[-4000.0, -9000.0, -14000.0]]))
