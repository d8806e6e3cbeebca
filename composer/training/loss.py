"""Cross-entropy with label smoothing (Szegedy et al. 2016, section 7), with a gradient that takes no more memory.

The values are those of `torch.nn.functional.cross_entropy`. Its backward pass makes four tensors of the size of the
logits, which are by far the largest of a training step; here the one that the forward pass kept becomes the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from composer.model.vocabulary import PAD


def sum_loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Nats summed over the real tokens. logits: (B, T, V), target: ids (B, T) -> a scalar of 32 bits or more."""
    loss: Tensor = CrossEntropy.apply(logits.flatten(0, 1), target.flatten(), label_smoothing)
    return loss


def rows_wrong(logits: Tensor, target: Tensor, graded: Tensor) -> dict[str, Tensor]:
    """How many of some rows have a wrong token where every token before is given, and how many there are.

    logits: (B, T, V), target: ids (B, T), graded: (B,) bool, the rows that count.
    """
    right = (logits.argmax(-1) == target) | (target == PAD)  # (B, T)
    return {"wrong": (graded & ~right.all(1)).sum(), "graded": graded.sum()}


class CrossEntropy(torch.autograd.Function):
    """sum over real tokens of -(1 - s) log p(target) - s / V sum log p. Its backward pass can run once."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """logits: (N, V), target: (N,)"""
        kind = torch.promote_types(logits.dtype, torch.float32)
        log_p = torch.log_softmax(logits, -1, dtype=kind)  # (N, V)
        loss = (smoothing - 1.0) * log_p.gather(1, target[:, None])[:, 0]
        if smoothing:
            loss = loss - log_p.sum(1) * (smoothing / log_p.shape[1])
        real = target != PAD
        ctx.save_for_backward(log_p, target, real)
        ctx.smoothing, ctx.kind = smoothing, logits.dtype
        return loss.masked_fill(~real, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient p - (1 - s) [target] - s / V, made where log p was kept."""
        log_p, target, real = ctx.saved_tensors
        found = log_p.exp_()
        if ctx.smoothing:
            found.sub_(ctx.smoothing / found.shape[1])
        found.scatter_add_(1, target[:, None], found.new_full((len(target), 1), ctx.smoothing - 1.0))
        found.mul_((real * gradients[0])[:, None])
        return found.to(ctx.kind), None, None
