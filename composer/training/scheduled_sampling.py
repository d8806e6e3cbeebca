"""Scheduled sampling (Bengio et al. 2015) in its parallel form (Mihaylova & Martins 2019): two passes over the answer.

The first says what the model would write at each position after the true answer so far; the second reads some of it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from composer.model.vocabulary import BOS, EOS, PAD

Choose = Literal["argmax", "sample"]
NEVER_READ = (PAD, BOS, EOS)
"""What no answer goes on from."""


def chance_at(spent: float, *, rate: float, warmup: float) -> float:
    """How probable it is that a token is replaced: rises linearly to `rate` over the share `warmup` of the budget."""
    return rate * min(1.0, spent / warmup) if warmup else rate


def mixed(target: Tensor, logits: Tensor, chance: float, choose: Choose) -> Tensor:
    """bos and the answer, with some tokens replaced by what was predicted there. (B, T), (B, T, V) -> (B, T)"""
    own = written(logits[:, :-1], choose)  # (B, T - 1)
    true = target[:, 1:]
    replaced = (torch.rand(true.shape, device=true.device) < chance) & (true != PAD)
    return torch.cat((target[:, :1], torch.where(replaced, own, true)), 1)


def written(logits: Tensor, choose: Choose) -> Tensor:
    """A token for each position, among those that an answer can go on from. (B, T, V) -> (B, T)"""
    logits = logits.float().index_fill(-1, logits.new_tensor(NEVER_READ, dtype=torch.long), -torch.inf)
    if choose == "argmax":
        return logits.argmax(-1)
    # the largest of logits with Gumbel noise is drawn as the softmax says, without a matrix of probabilities
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
