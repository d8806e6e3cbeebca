"""`pool` by hand, with padding and with an empty row."""

from __future__ import annotations

import pytest
import torch

from blocks.core.contract import BlockError
from blocks.pool import Pool
from tests.blocks.single_block import close, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "pool": ({"how": "last"}, {"how": "mean"}, {"how": "max"}, {"how": "attention"}),
}
"""Settings with which the laws are checked, by block."""

X = torch.tensor([[1.0, -5, 3], [2, 4, 100], [7, 8, 9]], dtype=torch.float64)[
    ..., None
]  # (3, 3, 1)
MASK = mask_of(3, 2, 0)


@pytest.mark.parametrize(
    ("how", "expected"), [("last", [3, 4, 0]), ("mean", [-1 / 3, 3, 0]), ("max", [3, 4, 0])]
)
def test_only_real_positions_are_pooled(how: str, expected: list[float]) -> None:
    block = Pool(site_of(1), how=how)
    y, _ = run(block, X, MASK)
    close(y, torch.tensor(expected, dtype=torch.float64)[:, None, None])
    assert block.mask(MASK).tolist() == [[True], [True], [False]]
    assert block.out.length_ratio == 0


def test_attention_is_a_softmax_of_scores() -> None:
    block = Pool(site_of(1), how="attention")
    x = X.clone().requires_grad_()
    y, _ = run(block, x, MASK)
    weights = torch.softmax(X[1, :2, 0] * block.score.weight.item(), 0)
    close(y[1:, 0, 0], torch.stack([(weights * X[1, :2, 0]).sum(), torch.tensor(0.0)]))
    y.sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad[~MASK] == 0).all()


def test_a_pool_in_a_decoder_is_refused() -> None:
    with pytest.raises(BlockError, match="a decoder may not read the future, and `pool` does"):
        Pool(site_of(1, causal="a decoder"))
