"""`rows`: what the stack makes of each row alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from blocks.concat import Concat
from blocks.conv import Conv
from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.cross_attention import CrossAttention
from blocks.grid import Grid
from blocks.rnn import Rnn
from blocks.rows import Rows
from blocks.select_column import SelectColumn
from blocks.split_columns import SplitColumns
from tests.blocks.inner_stacks import ATTENTION
from tests.blocks.single_block import cells_of, close, context_of, grid_site, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "rows": (
        {"stack": [{"rnn": {"bidirectional": True}}]},
        {"stack": ATTENTION},
        {"stack": [{"conv": {"stride": 2, "width": 5}}]},
        {"stack": [{"cross_attention": {"doubly_stochastic": 0.5}}, {"pool": {"how": "mean"}}]},
    )
}
"""Settings with which the laws are checked, by block."""

BIDIRECTIONAL = {"block": Rnn, "width": 6, "bidirectional": True}


def sizes_of(*sizes: tuple[int, int]) -> torch.Tensor:
    """(B, T, W) for images of these sizes."""
    rows, columns = (mask_of(*lengths) for lengths in zip(*sizes, strict=True))
    return rows[..., None] & columns[:, None]


def test_each_row_of_each_image_is_encoded_as_it_is_alone() -> None:
    block, sizes = Rows(grid_site(3, 5), stack=[BIDIRECTIONAL]), ((4, 5), (2, 3))
    x, mask = torch.randn(2, 4, 5, 3, requires_grad=True), sizes_of(*sizes)
    y = block(x, (), context_of(mask))[0]
    assert torch.equal(block.mask(mask), mask)
    assert block.out == Stream(6, True, columns=5)
    for image, (height, width) in enumerate(sizes):
        alone = run(block.stack, x[image, :height, :width])[0]
        close(y[image, :height, :width], alone)
        weight = torch.randn_like(alone)
        mine, theirs = (
            torch.autograd.grad((states * weight).sum(), x, retain_graph=True)[0]
            for states in (y[image, :height, :width], alone)
        )
        close(mine, theirs)


def test_a_stack_that_shortens_leaves_as_many_columns() -> None:
    block, mask = (
        Rows(grid_site(3, 5), stack=[{"block": Conv, "stride": 2}]),
        sizes_of((4, 5), (2, 3)),
    )
    y = block(torch.randn(2, 4, 5, 3), (), context_of(mask))[0]
    assert (y.shape, block.out.columns) == ((2, 4, 3, 3), 3)
    assert torch.equal(block.mask(mask), sizes_of((4, 3), (2, 2)) & cells_of(3, 4, 2))


def test_every_row_reads_the_memories() -> None:
    states, x = torch.randn(2, 6, 4), torch.randn(2, 3, 5, 3)
    site = replace(grid_site(3, 5), memories={"text": Named(Stream(4))}, encoders=["text"])
    block = Rows(site, stack=[{"block": CrossAttention}])
    y = block(x, (), context_of(cells_of(5, 3, 3), {"text": Output(states, mask_of(6, 2))}))[0]
    for row in range(2):
        memory = Output(
            states[row : row + 1].expand(3, -1, -1), mask_of(6, 2)[row : row + 1].expand(3, -1)
        )
        close(y[row], run(block.stack, x[row], text=memory)[0])


@pytest.mark.parametrize(
    ("stack", "code", "message"),
    [
        ([{"block": Concat, "of": "outside"}], "name", "nothing here is called `outside`"),
        ([{"block": SplitColumns, "columns": 3}], "kind", "ends with a grid"),
        ([{"block": Grid}, {"block": SelectColumn}], "kind", "as long as the answer"),
    ],
)
def test_what_a_row_cannot_have_is_refused(
    stack: list[dict[str, Any]], code: str, message: str
) -> None:
    with pytest.raises(BlockError, match=message) as refused:
        Rows(grid_site(3, 2, outside=Stream(3, True, columns=2)), stack=stack)
    assert (refused.value.code, bool(refused.value.fix.text)) == (code, True)


def test_a_name_given_in_a_row_ends_there() -> None:
    site = grid_site(3, 2)
    inside = [{"block": Conv, "as": "inside"}, {"block": Concat, "of": ["inside", "input"]}]
    assert Rows(site, stack=inside).out.width == 9
    assert "inside" not in site.names.visible
    assert "inside" in site.names.taken


def test_a_sequence_and_a_decoder_are_refused() -> None:
    for site, code in ((site_of(4), "kind"), (grid_site(4, 2, causal="a decoder"), "causality")):
        with pytest.raises(BlockError) as refused:
            Rows(site, stack=[])
        assert (refused.value.code, bool(refused.value.fix.text)) == (code, True)
