"""`pyramid` by hand."""

from __future__ import annotations

import pytest
import torch

from blocks.core.contract import BlockError, Stream
from blocks.pyramid import Pyramid
from tests.blocks.single_block import close, grid_site, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {"pyramid": ({}, {"factor": 3})}
"""Settings with which the laws are checked, by block."""


def test_neighbours_are_side_by_side_and_an_odd_last_one_beside_zeros() -> None:
    block, x, mask = Pyramid(site_of(2)), torch.randn(3, 5, 2), mask_of(5, 4, 1)
    y, zeros = run(block, x, mask)[0], torch.zeros(2)
    close(
        y[0], torch.stack([x[0, 0:2].flatten(), x[0, 2:4].flatten(), torch.cat([x[0, 4], zeros])])
    )
    close(y[1, :2], torch.stack([x[1, 0:2].flatten(), x[1, 2:4].flatten()]))
    close(y[2, 0], torch.cat([x[2, 0], zeros]))
    assert block.mask(mask).sum(1).tolist() == [3, 2, 1]
    assert block.out == Stream(4).shortened(2)


def test_a_grid_and_a_decoder_are_refused() -> None:
    for site, code in ((grid_site(4, 2), "kind"), (site_of(4, causal="a decoder"), "causality")):
        with pytest.raises(BlockError) as refused:
            Pyramid(site)
        assert (refused.value.code, bool(refused.value.fix.text)) == (code, True)
