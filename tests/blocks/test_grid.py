"""`grid`, `split_columns`, and what makes a sequence of one again: a column, their sum, their join,
all cells.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from blocks.concat_columns import ConcatColumns
from blocks.core.contract import Block, BlockError, Output, Stream
from blocks.core.initial_state import memory_mean
from blocks.flatten import Flatten
from blocks.grid import Grid
from blocks.select_column import SelectColumn
from blocks.split_columns import SplitColumns
from blocks.sum_columns import SumColumns
from tests.blocks.single_block import cells_of, close, context_of, grid_site, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "select_column": ({}, {"index": 2}),
    "flatten": ({},),
    "grid": ({}, {"columns": 2, "max_length_ratio": 1.0}),
    "sum_columns": ({},),
    "concat_columns": ({},),
    "split_columns": ({"columns": 3}, {"columns": 1}),
}
"""Settings with which the laws are checked, by block."""

CELLS = torch.arange(1.0, 19.0).view(3, 3, 2, 1).double()
THERE = cells_of(2, 3, 2, 1) & torch.tensor([[True, True], [False, True], [True, True]])
"""In each row the first cell of the second position is not real; rows of 3, 2 and 1 positions."""
CONTEXT = context_of(THERE)


def test_the_stream_is_the_first_column_and_the_others_are_zero() -> None:
    block, x, mask = Grid(site_of(2), columns=3), torch.randn(2, 4, 2), mask_of(4, 1)
    y, _ = block(x, (), context_of(mask))
    close(y[:, :, 0], x)
    assert block.out == Stream(2, True, columns=3)
    assert y.shape == (2, 4, 3, 2)
    assert not y[:, :, 1:].any()
    assert torch.equal(block.mask(mask), cells_of(3, 4, 1))


def test_max_length_ratio_sets_the_target_ratio() -> None:
    assert Grid(site_of(2), max_length_ratio=1.5).max_target_ratio == 1.5


def test_a_selected_column_is_zero_at_padded_cells() -> None:
    for index, expected in (
        (0, [[1, 0, 5], [7, 0, 0], [13, 0, 0]]),
        (1, [[2, 4, 6], [8, 10, 0], [14, 0, 0]]),
    ):
        block = SelectColumn(grid_site(1, 2), index=index)
        assert block(CELLS, (), CONTEXT)[0][..., 0].tolist() == expected
        assert torch.equal(block.mask(THERE), mask_of(3, 2, 1))
        assert block.out == Stream(1)


def test_a_sum_is_over_real_cells() -> None:
    block = SumColumns(grid_site(1, 2))
    assert block(CELLS, (), CONTEXT)[0][..., 0].tolist() == [[3, 4, 11], [15, 10, 0], [27, 0, 0]]
    assert torch.equal(block.mask(THERE), mask_of(3, 2, 1))
    assert block.out == Stream(1)


def test_columns_are_joined_side_by_side_with_zeros_for_padded_cells() -> None:
    block = ConcatColumns(grid_site(1, 2))
    y, mask = block(CELLS, (), CONTEXT)[0], block.mask(THERE)
    assert y[0].tolist() == [[1, 2], [0, 4], [5, 6]]
    assert torch.equal(mask, mask_of(3, 2, 1))
    assert block.out == Stream(2)


def test_split_columns_undoes_their_join() -> None:
    split, x, mask = SplitColumns(site_of(6), columns=3), torch.randn(2, 4, 6), mask_of(4, 1)
    y, cells = split(x, (), context_of(mask))[0], split.mask(mask)
    assert y[1, 2].tolist() == [x[1, 2, :2].tolist(), x[1, 2, 2:4].tolist(), x[1, 2, 4:].tolist()]
    assert torch.equal(cells, cells_of(3, 4, 1))
    assert split.out == Stream(2, True, columns=3)
    joined = ConcatColumns(grid_site(2, 3))(y, (), context_of(cells))[0]
    close(joined, x * mask[..., None])


def test_flatten_packs_real_cells_in_order() -> None:
    block = Flatten(grid_site(1, 2))
    y, mask = block(CELLS, (), CONTEXT)[0], block.mask(THERE)
    assert torch.equal(mask, mask_of(5, 3, 2, 6)[:3])
    rows = [row[there, 0].tolist() for row, there in zip(y, mask, strict=True)]
    assert rows == [[1, 2, 4, 5, 6], [7, 8, 10], [13, 14]]
    assert block.out == Stream(1, length_ratio=Fraction(2))


def test_a_grid_without_padding_is_flattened_row_by_row() -> None:
    x = torch.randn(2, 3, 4, 5)
    close(Flatten(grid_site(5, 4))(x, (), context_of(cells_of(4, 3, 3)))[0], x.flatten(1, 2))


def test_the_mean_of_a_grid_is_over_real_cells() -> None:
    """What a recurrent state that starts from a grid is made of."""
    close(memory_mean(Output(CELLS, THERE))[:, 0], torch.tensor([18 / 5, 25 / 3, 27 / 2]))


@pytest.mark.parametrize(
    ("block", "settings", "place", "setting", "code"),
    [
        (SelectColumn, {"index": 2}, "grid", "index", "setting"),
        (SelectColumn, {}, "sequence", "", "kind"),
        (SumColumns, {}, "sequence", "", "kind"),
        (ConcatColumns, {}, "sequence", "", "kind"),
        (SplitColumns, {"columns": 3}, "grid", "", "kind"),
        (SplitColumns, {"columns": 2}, "sequence", "columns", "setting"),
        (Flatten, {}, "sequence", "", "kind"),
        (Flatten, {}, "decoder", "", "length"),
        (Flatten, {}, "pooled", "", "length"),
        (Grid, {}, "grid", "", "kind"),
    ],
)
def test_invalid_settings_are_refused(
    block: type[Block], settings: dict[str, Any], place: str, setting: str, code: str
) -> None:
    here = grid_site(3, 2)
    sites = {
        "grid": here,
        "decoder": grid_site(3, 2, causal="a decoder"),
        "sequence": site_of(3),
        "pooled": replace(here, stream=here.stream._replace(length_ratio=Fraction(0))),
    }
    with pytest.raises(BlockError) as refused:
        block(sites[place], **settings)
    assert (refused.value.setting, refused.value.code) == (setting, code)
    assert refused.value.fix.text
