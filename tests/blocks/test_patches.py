"""`patches` as a convolution whose stride is its kernel, and at edges that no patch meets."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from blocks.core.contract import BlockError, Stream
from blocks.patches import Patches
from tests.blocks.single_block import cells_of, close, context_of, grid_site, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {"patches": ({"size": [2, 2]}, {"size": [3, 1], "width": 5})}
"""Settings with which the laws are checked, by block."""


def test_each_patch_has_a_vector() -> None:
    block, s = Patches(grid_site(3, 6), size=(4, 2), width=5), torch.randn(2, 8, 6, 3)
    y = block(s, (), context_of(cells_of(6, 8, 8)))[0]
    weight = block.map.weight.view(5, 4, 2, 3).movedim(-1, 1)  # (width, D, p, q)
    close(y, F.conv2d(s.movedim(-1, 1), weight, block.map.bias, stride=(4, 2)).movedim(1, -1))
    close(y[1, 1, 2], block.map(s[1, 4:8, 4:6].flatten()))
    assert block.out == Stream(5, True, columns=3).shortened(4)


def test_what_is_not_there_is_zero() -> None:
    block, s, mask = (
        Patches(grid_site(2, 3), size=(2, 2)),
        torch.randn(2, 5, 3, 2),
        cells_of(3, 5, 2),
    )
    y, real = block(s, (), context_of(mask))[0], block.mask(mask)
    padded = F.pad(s * mask[..., None], (0, 0, 0, 1, 0, 1))
    close(
        y, Patches.forward(block, padded, (), context_of(torch.ones(2, 6, 4, dtype=torch.bool)))[0]
    )
    assert real.sum((1, 2)).tolist() == [6, 2]


def test_a_sequence_a_decoder_and_a_patch_wider_than_the_grid_are_refused() -> None:
    sites = (
        (site_of(4), "kind"),
        (grid_site(4, 2, causal="a decoder"), "causality"),
        (grid_site(4, 1), "setting"),
    )
    for site, code in sites:
        with pytest.raises(BlockError) as refused:
            Patches(site, size=(2, 2))
        assert (refused.value.code, bool(refused.value.fix.text)) == (code, True)
