"""`cgru` by hand, as a gru in each cell, its gates, its shifts, its dropout and its cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.cgru import Cgru
from blocks.core.contract import BlockError, Penalties, Stream, reduce_penalties
from blocks.repeat import Repeat
from blocks.rnn import Rnn
from tests.blocks.single_block import cells_of, close, context_of, grid_site, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "cgru": (
        {},
        {"kernel": [1, 1], "gates": "plain", "diagonal": True, "with": "narrow"},
        {"kernel": [2, 3], "gates": "hard", "candidate": "hard", "bias": 0.0, "saturation": 0.5},
        {"dropout": 0.3, "saturation": 0.1, "with": "earlier"},
        {"dropout": 0.1, "dropout_by": "length"},
        {"dropout": 0.2, "dropout_of": "candidate", "reset_bias": 0.5},
    ),
}
"""Settings with which the laws are checked, by block."""


def still(
    width: int = 1, columns: int = 1, *, gate: float = 0.0, new: float = 0.0, **settings: Any
) -> Cgru:
    """A unit whose kernels are zero: its gates and its candidate are what their biases say."""
    block = Cgru(grid_site(width, columns), **settings).eval()
    for parameter in block.parameters():
        parameter.data.zero_()
    block.both.bias.data.fill_(gate)
    block.new.bias.data.fill_(new)
    return block


def step(block: Cgru, s: Tensor, mask: Tensor | None = None, **beside: Tensor) -> Tensor:
    mask = cells_of(s.shape[2], *[s.shape[1]] * len(s)) if mask is None else mask
    return block(s, (), context_of(mask, **beside))[0]


# ------------------------------------------------------------------------------------------- the
# equation


def along(positions: tuple[float, ...], columns: bool) -> Tensor:
    """One row of a grid one cell wide or one cell long."""
    return torch.tensor(positions).view(1, *((1, -1) if columns else (-1, 1)), 1)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        # u = r = 1/2, so that r s = (0.1, 0.2, -0.2), which the kernel (1, 2, 3) turns into (0.8,
        # -0.1, -0.2)
        ((1.0, 2.0, 3.0), (0.5, 0.15, -0.3)),
        # an even kernel reaches one further at the end: (1, 2) makes (0.5, -0.2, -0.2)
        ((1.0, 2.0), (0.35, 0.1, -0.3)),
    ],
)
def test_three_cells_equal_a_computation_by_hand(
    kernel: tuple[float, ...], expected: tuple[float, ...], columns: bool
) -> None:
    size = (1, len(kernel)) if columns else (len(kernel), 1)
    block = still(1, 3 if columns else 1, kernel=size, candidate="hard")
    block.new.weight.data.copy_(torch.tensor(kernel).view_as(block.new.weight))
    close(step(block, along((0.2, 0.4, -0.4), columns)), along(expected, columns))


def test_a_padded_cell_acts_like_the_edge() -> None:
    block = still(1, 1, kernel=(3, 1), candidate="hard")
    block.new.weight.data.fill_(1.0)
    s = along((0.2, 0.4, -0.4), columns=False)
    close(step(block, s, cells_of(1, 2, 3)[:1])[:, :2], step(block, s[:, :2]))


def test_with_a_kernel_of_one_cell_it_equals_a_gru_per_cell() -> None:
    """The steps of a gru that reads p, the same at each, from the state s."""
    torch.manual_seed(1)
    block = Cgru(
        grid_site(4, 2, p=Stream(3, True, columns=2)), kernel=(1, 1), gates="plain", with_="p"
    )
    rnn = Rnn(site_of(3, model=4), cell="gru", reset="before")
    gru: Any = rnn.layers[0]
    both, new = block.both.weight[..., 0, 0], block.new.weight[..., 0, 0]
    for theirs, mine in (
        (gru.arriving.weight, torch.cat((both[:, 4:], new[:, 4:]))),
        (gru.arriving.bias, torch.cat((block.both.bias, block.new.bias))),
        (gru.gates.weight, both[:, :4]),
        (gru.candidate.weight, new[:, :4]),
    ):
        theirs.data.copy_(mine)
    s, p = torch.randn(2, 5, 2, 4), torch.randn(2, 5, 2, 3)
    cells, steps = s.flatten(0, 2), 3
    context = context_of(torch.ones(len(cells), steps, dtype=torch.bool))
    y, _ = rnn(p.flatten(0, 2)[:, None].expand(-1, steps, -1), ((cells,),), context)
    for k in range(steps):
        s = step(block, s, p=p)
        close(s.flatten(0, 2), y[:, k])


def test_the_reset_gate_does_not_affect_the_second_input() -> None:
    block = Cgru(
        grid_site(1, 1, p=Stream(1, True, columns=1)), kernel=(1, 1), candidate="hard", with_="p"
    )
    for parameter in block.parameters():
        parameter.data.zero_()
    block.both.bias.data.copy_(torch.tensor([-20.0, -20.0]))  # r = u = 0
    block.new.weight.data.fill_(0.5)
    y = step(block, along((0.7,), columns=False), p=along((0.6,), columns=False))
    close(y, along((0.3,), columns=False))


# ------------------------------------------------------------------------------------------- gates
# and shifts


@pytest.mark.parametrize(
    ("gates", "z", "value"),
    [
        ("cutoff", 0.0, 0.5),
        ("cutoff", math.log(3.0), 0.8),
        ("cutoff", math.log(11.0), 1.0),
        ("cutoff", 5.0, 1.0),
        ("cutoff", -math.log(11.0), 0.0),
        ("cutoff", -5.0, 0.0),
        ("plain", math.log(3.0), 0.75),
        ("hard", 0.5, 0.75),
        ("hard", 1.5, 1.0),
        ("hard", -1.0, 0.0),
    ],
)
def test_each_kind_of_gate_has_its_values(gates: str, z: float, value: float) -> None:
    """With a candidate of 0 what is left of a 1 is u."""
    close(step(still(gates=gates, gate=z), torch.ones(1, 1, 1, 1)), torch.full((1, 1, 1, 1), value))


def test_initial_gates_mostly_copy_the_state() -> None:
    block = Cgru(grid_site(3, 2), bias=1.0)
    assert block.both.bias.tolist() == [1.0] * 6
    assert not block.new.bias.any()


def test_diagonal_gates_copy_from_the_neighbouring_positions() -> None:
    # four features: two stay, one comes from before, one from after
    s = torch.arange(1.0, 13.0).view(1, 3, 1, 4)
    y = step(still(4, 1, gate=5.0, diagonal=True), s)
    assert y[0, :, 0].tolist() == [
        [1.0, 2.0, 0.0, 8.0],
        [5.0, 6.0, 3.0, 12.0],
        [9.0, 10.0, 7.0, 0.0],
    ]


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Repeated as often as a row is long, with dropout off: neither the others nor the padding are
    seen.
    """
    stack = [{"block": Cgru, "diagonal": True}, {"block": Cgru, "kernel": (2, 3)}]
    block = Repeat(grid_site(6, 3), times="length", stack=stack, share=True).eval()
    row, others = torch.randn(1, 4, 3, 6), torch.randn(2, 7, 3, 6)
    context = context_of(cells_of(3, 4))
    alone, *_ = block(row, block.start(row[:, :1, 0], context), context)
    for lengths in ((2, 3), (7, 1)):
        total = max(4, *lengths)
        padded = torch.cat((row, torch.full((1, total - 4, 3, 6), 9.0)), 1)
        batch, context = (
            torch.cat((padded, others[:, :total])),
            context_of(cells_of(3, 4, *lengths)),
        )
        y, *_ = block(batch, block.start(batch[:, :1, 0], context), context)
        close(y[:1, :4], alone)


# -------------------------------------------------------------------------------------------
# dropout, and the cost


@pytest.mark.parametrize(
    ("by", "rates"),
    [
        ("rate", (0.1, 0.1, 0.1)),
        ("length", (0.2, 0.05, 0.0125)),  # 0.1 times 8 / n
        ("sqrt_length", (0.15, 0.075, 0.0375)),  # 0.1 times 3 / sqrt(n)
    ],
)
def test_the_rate_of_dropout_follows_the_row_length(by: str, rates: tuple[float, ...]) -> None:
    block = still(50, 20, gate=5.0, dropout=0.1, dropout_by=by).train()
    y = step(block, torch.ones(3, 64, 20, 50), cells_of(20, 4, 16, 64))
    for row, length, rate in zip(y, (4, 16, 64), rates, strict=True):
        cells = row[:length]
        torch.testing.assert_close(
            cells[cells != 0].unique(), torch.tensor([1.0 / (1.0 - rate)]), atol=0, rtol=1e-5
        )
        share, spread = (
            (cells == 0).double().mean().item(),
            math.sqrt(rate * (1 - rate) / cells.numel()),
        )
        assert abs(share - rate) < 5 * spread


def test_a_short_row_keeps_at_least_a_tenth() -> None:
    y = step(
        still(50, 20, gate=5.0, dropout=0.3, dropout_by="length").train(), torch.ones(1, 1, 20, 50)
    )
    close(y[y != 0].unique(), torch.tensor([10.0]))


def test_nothing_is_dropped_in_evaluation() -> None:
    s = torch.randn(2, 3, 2, 3)
    close(step(still(3, 2, gate=5.0, dropout=0.5), s), s)


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({"gates": "cutoff", "candidate": "tanh"}, 3.0 - 0.9 * math.log(11.0)),
        ({"gates": "hard", "candidate": "tanh"}, 3.0 - 0.9),
        ({"gates": "hard", "candidate": "hard"}, 3.0 - 0.9 + 2.0 - 0.9),
    ],
)
def test_saturation_costs_what_exceeds_the_threshold(settings: dict[str, Any], cost: float) -> None:
    """z is -3 and the candidate's argument 2 in every real cell; in the padding they are more,
    which costs nothing.
    """
    block = still(2, 2, gate=-3.0, new=2.0, saturation=0.5, kernel=(1, 1), **settings)
    penalties: Penalties = {}
    block(torch.zeros(2, 4, 2, 2), (), context_of(cells_of(2, 4, 1))._replace(penalties=penalties))
    close(tuple(reduce_penalties(penalties).values()), (torch.tensor(0.5 * cost),))


def test_the_cost_is_the_mean_over_real_cells() -> None:
    block = still(1, 1, saturation=1.0, gates="hard", kernel=(1, 1))
    block.both.weight.data.fill_(1.0)
    penalties: Penalties = {}
    s = along((1.9, 0.5, 7.0), columns=False)
    block(s, (), context_of(cells_of(1, 2, 3)[:1])._replace(penalties=penalties))
    close(tuple(reduce_penalties(penalties).values()), (torch.tensor((1.9 - 0.9) / 2),))


# -------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("settings", "setting", "code"),
    [
        ({"gates": "plain", "saturation": 0.1}, "saturation", "unused"),
        ({"with_": "row"}, "with", "kind"),
        ({"with_": "wide"}, "with", "kind"),
    ],
)
def test_conflicting_settings_are_refused(
    settings: dict[str, Any], setting: str, code: str
) -> None:
    site = grid_site(4, 2, row=Stream(4), wide=Stream(4, True, columns=3))
    with pytest.raises(BlockError) as refused:
        Cgru(site, **settings)
    assert (refused.value.setting, refused.value.code) == (setting, code)
    assert refused.value.fix.text


def test_a_sequence_and_a_decoder_are_refused() -> None:
    for site, code in ((site_of(4), "kind"), (grid_site(4, 2, causal="a decoder"), "causality")):
        with pytest.raises(BlockError) as refused:
            Cgru(site)
        assert refused.value.code == code
        assert refused.value.fix.text
