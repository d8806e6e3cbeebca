"""The loss is torch's, to the last digit that matters, and so is its gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from composer.training.loss import sum_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_the_loss_equals_cross_entropy(smoothing: float, kind: torch.dtype) -> None:
    torch.manual_seed(1)
    logits = (3 * torch.randn(2, 5, 7)).to(kind).requires_grad_()
    target = torch.randint(1, 7, (2, 5))
    target[0, 3:] = 0
    theirs = F.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(kind, torch.float32)),
        target.flatten(),
        ignore_index=0,
        reduction="sum",
        label_smoothing=smoothing,
    )
    ours = sum_loss(logits, target, smoothing)
    torch.testing.assert_close(ours, theirs)
    (wanted,) = torch.autograd.grad(theirs * 1.7, logits)
    (result,) = torch.autograd.grad(ours * 1.7, logits)
    assert result.dtype == kind
    torch.testing.assert_close(result, wanted)
    assert not result[0, 3:].any()
