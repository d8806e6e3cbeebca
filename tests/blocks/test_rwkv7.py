"""`rwkv7` against a loop over the paper's equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError
from blocks.repeat import Repeat
from blocks.rwkv7 import Rwkv7
from tests.blocks.outer_product_loops import loop, outputs_and_gradients, relative_error
from tests.blocks.single_block import context_of, mask_of, run, site_of
from tests.blocks.test_outer_product_state import EXACT

VARIANTS = {
    "rwkv7": (
        {"heads": 2},
        {"heads": 3, "head_width": 5, "rank": 3, "initial_state": "learned"},
        {"heads": 2, "initial_state": "encoder"},
        {"heads": 2, "initial_state": {"copy": "encoder.same"}},
        {"heads": 2, "rank": 3, "value_residual": True},
    )
}
"""Settings with which the laws are checked, by block."""


def time_mixing_step(
    state: Tensor, r: Tensor, w: Tensor, kappa: Tensor, a: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """S' = S (diag(w) - kappa^T (a kappa)) + v^T k, y = r S'^T, with rows of values as in the
    paper: S is (V, K).
    """
    transition = torch.diag_embed(w) - torch.einsum("bhk,bhl->bhkl", kappa, a * kappa)
    state = state @ transition + torch.einsum("bhv,bhk->bhvk", v, k)
    return torch.einsum("bhk,bhvk->bhv", r, state), state


def equations(block: Rwkv7, x: Tensor, state: Tensor, value: Tensor | None = None) -> Tensor:
    """What the block computes of x from S, with its own values or others: (B, T, D) -> (B, T, D)"""
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    x_r, x_w, x_k, x_v, x_a, x_g = (x + mix * (before - x) for mix in block.shift)
    (rates,) = block.rates
    heads = (block.heads, -1)
    r, k, v = block.receive(x_r), block.key(x_k), block.value(x_v) if value is None else value
    w = torch.exp(-torch.tensor(-0.5, dtype=x.dtype).exp() * torch.sigmoid(rates.decay(x_w)))
    a, g = torch.sigmoid(rates.correction(x_a)), rates.gate(x_g)
    kappa = (k * block.key_scale).unflatten(-1, heads)
    kappa = kappa / (kappa.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    k = k * (1 + rates.replacement * (a - 1))
    r, w, a, k, v = (part.unflatten(-1, heads) for part in (r, w, a, k, v))  # (B, T, H, V)
    y, _ = loop(time_mixing_step, state.mT, r, w, kappa, a, k, v)
    y = F.group_norm(
        y.flatten(0, 1).flatten(1),
        block.heads,
        block.norm.weight,
        block.norm.bias,
        1e-5 * block.head_width,
    )
    y = y.view(*x.shape[:2], -1) + ((r * k * block.bonus).sum(-1, keepdim=True) * v).flatten(2)
    return block.merge(g * y)


def repeated(times: int, causal: str) -> Repeat:
    stack = [{"block": Rwkv7, "heads": 2, "rank": 3, "value_residual": True}]
    repeat = Repeat(site_of(12, causal=causal), times=times, stack=stack).double()
    for parameter in repeat.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return repeat


def test_the_values_of_the_first_layer_are_mixed_into_those_of_the_others() -> None:
    torch.manual_seed(1)
    repeat, x = repeated(3, "a decoder"), torch.randn(2, 7, 12).double()
    y, first = x, None
    for stack in repeat.stacks:
        (block,) = stack.blocks
        before = F.pad(y, (0, 0, 1, 0))[:, :-1]
        x_v = y + block.shift[3] * (before - y)
        value = block.value(x_v)
        if first is None:
            first = value
        else:
            down, up, _ = block.value_mix
            nu = torch.sigmoid(F.linear(F.linear(x_v, down.weight), up.weight, up.bias))
            value = value + nu * (first - value)
        y = equations(block, y, torch.zeros(2, *block.memory_shape).double(), value)
    assert relative_error(run(repeat, x)[0], y) < 1e-12


def test_the_first_layer_alone_has_no_mixture() -> None:
    one, two, three = repeated(3, "").stacks
    counts = [len(list(stack.parameters())) for stack in (one, two, three)]
    assert counts[0] + 3 == counts[1] == counts[2]


def test_values_of_another_width_are_refused() -> None:
    site = site_of(12)
    Rwkv7(site, heads=2, value_residual=True)
    with pytest.raises(BlockError) as refused:
        Rwkv7(site, heads=2, head_width=5, value_residual=True)
    assert (refused.value.setting, "12 wide" in str(refused.value)) == ("value_residual", True)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_a_decoder_computes_the_equations(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    site = site_of(12, causal="a decoder")
    block, exact = (
        Rwkv7(site, heads=2, rank=3, chunk=8, initial_state="learned") for _ in range(2)
    )
    exact.load_state_dict(block.state_dict())
    block, exact = block.to(dtype), exact.double()
    x = torch.randn(3, 37, 12).to(dtype)
    memory = exact.start(x.double(), context_of(mask_of(37)))[0]
    expected = outputs_and_gradients(
        [equations(exact, x.double(), memory)], list(exact.parameters())
    )
    made = outputs_and_gradients([run(block, x)[0]], list(block.parameters()))
    assert all(
        relative_error(one, other) < EXACT[dtype] for one, other in zip(made, expected, strict=True)
    )
