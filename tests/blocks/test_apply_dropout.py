"""Dropout on a CPU: its rate, its mean, one mask for both passes, repeated from a seed."""

from __future__ import annotations

import pytest
import torch

from blocks.core.attention import attention
from blocks.core.contract import Context
from blocks.core.functional import apply_dropout, apply_locked_dropout

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])


@TYPES
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_and_the_mean_are_right(rate: float, dtype: torch.dtype) -> None:
    """Within five standard deviations; 1 / 0.9 in bfloat16 alone would be eight off."""
    torch.manual_seed(1)
    n = 4_000_001
    x = 1 + torch.rand(n, dtype=torch.float64).to(dtype)
    y = apply_dropout(x, rate, training=True)
    assert y.dtype is dtype
    deviation = (rate * (1 - rate) / n) ** 0.5
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - rate) < 5 * deviation + 2**-17
    weighted = (y.double().sum() / x.double().sum()).item()
    assert abs(weighted - 1) < 5 * 1.06 * deviation / (1 - rate)


@TYPES
def test_the_gradient_has_the_mask_of_the_values(dtype: torch.dtype) -> None:
    x = torch.ones(3, 5, 7, dtype=dtype, requires_grad=True)
    y = apply_dropout(x, 0.4, training=True)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_a_seed_repeats_it_and_positions_are_independent() -> None:
    x = torch.ones(1000, 999)
    torch.manual_seed(3)
    one = apply_dropout(x, 0.3, training=True)
    other = apply_dropout(x, 0.3, training=True)
    torch.manual_seed(3)
    assert torch.equal(one, apply_dropout(x, 0.3, training=True))
    for shift in (1, 2, 3, 4):  # four masks are from one random number
        both = ((one[:, shift:] == 0) & (one[:, :-shift] == 0)).float().mean().item()
        assert abs(both - 0.09) < 0.002
    assert abs(((one == 0) & (other == 0)).float().mean().item() - 0.09) < 0.002


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    x, before = torch.ones(4), torch.get_rng_state()
    assert apply_dropout(x, 0.5, training=False) is x
    assert apply_dropout(x, 0.0, training=True) is x
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("shape", [(50, 7, 40), (50, 7, 3, 40)])
def test_a_locked_mask_is_that_of_a_row(shape: tuple[int, ...]) -> None:
    """It is another one for each row and for each call, and it keeps the mean."""
    x = torch.rand(shape).add_(1).requires_grad_()
    y = apply_locked_dropout(x, 0.3, training=True)
    y.sum().backward()
    factor = (y / x).detach()
    torch.testing.assert_close(x.grad, factor)
    row = factor.flatten(1, -2)[:, :1].expand(-1, x.shape[1:-1].numel(), -1).view_as(factor)
    torch.testing.assert_close(factor, row)
    assert set(factor.unique().mul(0.7).round(decimals=3).tolist()) == {0.0, 1.0}
    assert abs((factor == 0).float().mean().item() - 0.3) < 0.05
    other = apply_locked_dropout(x, 0.3, training=True)
    assert abs(((other == 0) & (y == 0)).float().mean().item() - 0.09) < 0.03
    assert apply_locked_dropout(x, 0.3, training=False) is x


@TYPES
def test_attention_drops_weights_and_not_values(dtype: torch.dtype) -> None:
    """Queries of 0 weigh all positions alike, and values that are unit vectors show the weights."""
    torch.manual_seed(1)
    length = 64
    values = torch.eye(length, dtype=dtype).expand(8, 4, -1, -1)
    zeros = torch.zeros(8, 4, length, length, dtype=dtype, requires_grad=True)
    context = Context(torch.ones(8, length, dtype=torch.bool), {}, {})
    weights = attention(zeros, zeros, values, None, context, dropout=0.25).double() * length * 0.75
    assert torch.all((weights.abs() < 1e-6) | ((weights - 1).abs() < 0.01))
    assert abs((weights == 0).double().mean().item() - 0.25) < 0.006


def test_the_compiler_fuses_its_own() -> None:
    torch.manual_seed(1)
    y = torch.compile(apply_dropout, backend="aot_eager", fullgraph=True)(
        torch.ones(10_000), 0.2, True
    )
    assert abs((y == 0).float().mean().item() - 0.2) < 0.02
