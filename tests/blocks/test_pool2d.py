"""`pool2d` by hand: windows at the edges, cells that are not real, and windows that overlap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from blocks.core.contract import BlockError, Stream
from blocks.pool2d import Pool2d
from tests.blocks.single_block import cells_of, close, context_of, grid_site, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "pool2d": (
        {},
        {"how": "mean"},
        {"size": [3, 2], "stride": [2, 1]},
        {"how": "mean", "size": [1, 3]},
    ),
}
"""Settings with which the laws are checked, by block."""

IMAGE = -torch.arange(1.0, 10.0).view(1, 3, 3, 1).double()
"""-1 -2 -3 / -4 -5 -6 / -7 -8 -9"""
THERE = torch.tensor([[[True, True, False], [True, False, False], [True, True, False]]])


@pytest.mark.parametrize(
    ("how", "real", "all_cells"),
    [
        ("max", [[-1.0, 0], [-7, 0]], [[-1.0, -3], [-7, -9]]),
        ("mean", [[-7 / 3, 0], [-7.5, 0]], [[-3.0, -4.5], [-7.5, -9]]),
    ],
)
def test_only_real_cells_count(
    how: Any, real: list[list[float]], all_cells: list[list[float]]
) -> None:
    block, everything = Pool2d(grid_site(1, 3), how=how), torch.ones_like(THERE)
    close(block(IMAGE, (), context_of(THERE))[0][0, ..., 0], torch.tensor(real))
    assert block.mask(THERE).tolist() == [[[True, False], [True, False]]]
    close(block(IMAGE, (), context_of(everything))[0][0, ..., 0], torch.tensor(all_cells))
    assert block.mask(everything).all()
    assert block.out == Stream(1, True, columns=2).shortened(2)


@pytest.mark.parametrize("how", ["max", "mean"])
@pytest.mark.parametrize(("size", "stride"), [((2, 3), None), ((3, 3), (2, 1)), ((4, 1), (1, 1))])
def test_whole_windows_are_those_of_torch(
    how: Any, size: tuple[int, int], stride: tuple[int, int] | None
) -> None:
    x = torch.randn(2, 8, 7, 3, requires_grad=True)
    y = Pool2d(grid_site(3, 7), how=how, size=size, stride=stride)(
        x, (), context_of(cells_of(7, 8, 8))
    )[0]
    pooled = (F.max_pool2d if how == "max" else F.avg_pool2d)(
        x.movedim(-1, 1), size, stride
    ).movedim(1, -1)
    inside = y[:, : pooled.shape[1], : pooled.shape[2]]
    close(inside, pooled)
    weight = torch.randn_like(pooled)
    mine, theirs = (torch.autograd.grad((made * weight).sum(), x)[0] for made in (inside, pooled))
    close(mine, theirs)


@pytest.mark.parametrize(
    ("settings", "setting", "code"),
    [
        ({"size": (1, 1)}, "size", "setting"),
        ({"size": (2, 4)}, "size", "setting"),
        ({"stride": (2, 3)}, "stride", "setting"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], setting: str, code: str) -> None:
    with pytest.raises(BlockError) as refused:
        Pool2d(grid_site(2, 3), **settings)
    assert (refused.value.setting, refused.value.code) == (setting, code)
    assert refused.value.fix.text


def test_a_sequence_and_a_decoder_are_refused() -> None:
    for site, code in ((site_of(4), "kind"), (grid_site(4, 2, causal="a decoder"), "causality")):
        with pytest.raises(BlockError) as refused:
            Pool2d(site)
        assert (refused.value.code, bool(refused.value.fix.text)) == (code, True)
