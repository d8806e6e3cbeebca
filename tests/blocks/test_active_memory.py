"""`active_memory` against its equations step by step, its writes and its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.active_memory import ActiveMemory
from blocks.cgru import Cgru
from blocks.core.contract import BlockError, Context, Named, Output, Stream
from blocks.grid import Grid
from blocks.linear import Linear
from tests.blocks.inner_stacks import CGRU
from tests.blocks.single_block import close, context_of, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "active_memory": (
        {
            "from": "encoder.grid",
            "stack": [{"cgru": {"with": "tape", "gates": "hard", "saturation": 0.5}}],
        },
        {
            "from": "encoder.earlier_grid",
            "stack": [{"repeat": {"times": 2, "stack": CGRU}}, {"cgru": {"with": "tape"}}],
            "write": "all",
            "recompute": True,
        },
    ),
}
"""Settings with which the laws are checked, by block."""

WIDTH, MAPS, COLUMNS, LENGTH = 3, 4, 2, 5
SIZES = (5, 3, 4)


def block(**settings: Any) -> ActiveMemory:
    torch.manual_seed(1)
    memory = Named(Stream(MAPS, True, columns=COLUMNS))
    stack = settings.pop("stack", [{"block": Cgru, "with_": "tape"}])
    module = ActiveMemory(
        site_of(WIDTH, causal="a decoder", memories={"encoder": memory}), stack=stack, **settings
    )
    return module.double().eval()


def random_inputs(*lengths: int) -> tuple[Tensor, Context]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(len(SIZES), max(lengths), WIDTH, generator=generator, dtype=torch.float64)
    states = torch.randn(
        len(SIZES), LENGTH, COLUMNS, MAPS, generator=generator, dtype=torch.float64
    )
    memory = Output(states, mask_of(*SIZES)[..., None].expand(-1, -1, COLUMNS))
    return x, context_of(mask_of(*lengths), {"encoder": memory})


def by_the_equations(cgru: Cgru, x: Tensor, d: Tensor, write_to: slice) -> Tensor:
    """One row: U * s + W * p as two convolutions each. x: (T, D), d: (S, W, M) -> (T, W, M)"""
    p, rows = d.new_zeros(*d.shape[:2], WIDTH), []

    def convolved(which: Any, features: slice, s: Tensor) -> Tensor:
        u, w = which.weight[features, :MAPS], which.weight[features, MAPS:]
        both = [
            F.conv2d(grid.permute(2, 0, 1)[None], kernel, padding=1)
            for grid, kernel in ((s, u), (p, w))
        ]
        return (both[0] + both[1] + which.bias[features, None, None])[0].permute(1, 2, 0)

    for k in range(len(x)):
        if k:
            p = p.clone()
            p[k - 1, write_to] = x[k]
        r, u = (
            (1.2 * torch.sigmoid(convolved(cgru.both, half, d)) - 0.1).clamp(0, 1)
            for half in (slice(0, MAPS), slice(MAPS, None))
        )
        d = u * d + (1 - u) * torch.tanh(convolved(cgru.new, slice(None), r * d))
        rows.append(d[k])
    return torch.stack(rows)


@pytest.mark.parametrize(("write", "columns"), [("first", slice(0, 1)), ("all", slice(None))])
def test_the_output_equals_the_papers_equations(write: str, columns: slice) -> None:
    module = block(write=write)
    x, context = random_inputs(5, 3, 4)
    y, _ = module(x, module.start(x[:, :1], context), context)
    for row, size in enumerate(SIZES):
        cgru = module.stack.inner()[0]
        assert isinstance(cgru, Cgru)
        expected = by_the_equations(
            cgru, x[row, :size], context.memories["encoder"].states[row, :size], columns
        )
        close(y[row, :size], expected)


def test_a_stack_that_ignores_the_tape_equals_a_repeat() -> None:
    module = block(stack=[{"block": Cgru}])
    x, context = random_inputs(5, 5, 5)
    y, _ = module(x, module.start(x[:, :1], context), context)
    memory = context.memories["encoder"]
    grid, inner = memory.states, context._replace(mask=memory.mask)
    for k in range(3):
        grid, *_ = module.stack(grid, ((),), inner)
        close(y[:, k], grid[:, k])


def test_a_symbol_is_written_at_the_previous_position() -> None:
    module = block(stack=[{"block": Linear, "width": MAPS}])
    x, context = random_inputs(3, 2, 3)
    _, (_, tape, count) = module(x, module.start(x[:, :1], context), context)
    close(tape[0, :2, 0], x[0, 1:])
    close(tape[1, :1, 0], x[1, 1:2])
    assert not tape[:, 2:].any()
    assert not tape[1, 1:].any()
    assert not tape[:, :, 1:].any()
    assert count.tolist() == [3, 2, 3]


def test_rows_beyond_the_end_are_zero() -> None:
    module = block()
    x, context = random_inputs(5, 5, 5)
    y, _ = module(x, module.start(x[:, :1], context), context)
    assert not y[1, 3:].any()
    assert not y[2, 4:].any()
    assert y[1, :3].any()


def test_recomputing_gives_equal_gradients() -> None:
    x, context = random_inputs(5, 3, 4)
    gradients = []
    for recompute in (False, True):
        module = block(recompute=recompute).train()
        y, _ = module(x, module.start(x[:, :1], context), context)
        gradients.append(torch.autograd.grad(y.square().sum(), list(module.parameters())))
    for one, other in zip(*gradients, strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("memory", "stack", "setting"),
    [
        (Stream(MAPS), [{"block": Cgru}], "from"),
        (Stream(MAPS, True, columns=COLUMNS), [{"block": Linear, "width": MAPS + 1}], "stack"),
    ],
)
def test_an_invalid_memory_is_refused(memory: Stream, stack: list[Any], setting: str) -> None:
    with pytest.raises(BlockError) as refused:
        ActiveMemory(
            site_of(WIDTH, causal="a decoder", memories={"encoder": Named(memory)}), stack=stack
        )
    assert refused.value.setting == setting
    assert refused.value.fix.text


def test_a_grid_in_a_decoder_is_refused() -> None:
    with pytest.raises(BlockError) as refused:
        Grid(site_of(WIDTH, causal="a decoder"))
    assert refused.value.code == "causality"
