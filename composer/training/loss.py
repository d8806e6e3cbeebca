"""The loss of a batch: cross-entropy with label smoothing, or the cost of an output head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from composer.model.encoder_decoder import OutputHead
from composer.model.special_tokens import PAD


def sum_costs(
    output: OutputHead, outputs: Tensor, target: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the loss of the model's outputs in nats, summed over the real tokens. -> scalar

    outputs: costs (B, T) of a head that trains on them, else logits (B, T, V); target: ids (B, T)
    """
    if not output.trains_on_cost:
        return sum_loss(outputs, target, label_smoothing)
    exact = torch.promote_types(outputs.dtype, torch.float32)
    return outputs.to(exact).masked_fill(target == PAD, 0.0).sum()


def sum_loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats over the real tokens, with label smoothing (Szegedy 2016).

    logits: (B, T, V), target: ids (B, T) -> scalar of 32 bits or more.
    """
    return CrossEntropy.apply(logits.flatten(0, 1), target.flatten(), label_smoothing)


class CrossEntropy(torch.autograd.Function):
    """Autograd function: sum over real tokens of -(1 - s) log p(target) - s / V sum log p.

    Its values are those of `torch.nn.functional.cross_entropy`, whose backward pass makes four
    tensors of the size of the logits, by far the largest of a step. Here the kept log p becomes the
    gradient, so backward can run only once.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """logits: (N, V), target: (N,) -> scalar"""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_p = torch.log_softmax(logits, -1, dtype=dtype)  # (N, V)
        loss = (smoothing - 1.0) * log_p.gather(1, target[:, None])[:, 0]
        if smoothing:
            loss = loss - log_p.sum(1) * (smoothing / log_p.shape[1])
        real = target != PAD
        ctx.save_for_backward(log_p, target, real)
        ctx.smoothing, ctx.dtype = smoothing, logits.dtype
        return loss.masked_fill(~real, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient p - (1 - s) [target] - s / V, computed in place of log p."""
        log_p, target, real = ctx.saved_tensors
        gradient = log_p.exp_()
        if ctx.smoothing:
            gradient.sub_(ctx.smoothing / gradient.shape[1])
        gradient.scatter_add_(
            1, target[:, None], gradient.new_full((len(target), 1), ctx.smoothing - 1.0)
        )
        gradient.mul_((real * gradients[0])[:, None])
        return gradient.to(ctx.dtype), None, None
