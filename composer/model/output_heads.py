"""From the decoder's last output to a logit for each token of the vocabulary.

Every kind has `in_features`, the width that arrives, and `out_features`, the size of the vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from composer.model.vocabulary import EOS, SPECIAL

NEVER = -1e4
"""The logit of what cannot come: its probability is 0 in every precision, and sums of it stay finite."""


class LinearOutput(nn.Linear):
    """A linear map: W y + b."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary)
        nn.init.normal_(self.weight, std=width**-0.5)
        nn.init.zeros_(self.bias)


class SigmoidOutput(nn.Module):
    """A sigmoid for each bit of the answer's vectors, and one for its end (Graves et al. 2014, section 4).

    p(v) = (1 - s_end) prod_b s_b^(v_b) (1 - s_b)^(1 - v_b) and p(eos) = s_end, as logits over all tokens: v l of the
    vector v, and l_end + sum_b softplus(l_b) of eos. Vectors stand in the vocabulary in numeric order, the first digit
    being the most significant.
    """

    vectors: Tensor

    def __init__(self, width: int, bits: int) -> None:
        super().__init__()
        self.in_features, self.out_features = width, SPECIAL + 2**bits
        self.map = nn.Linear(width, bits + 1)
        nn.init.normal_(self.map.weight, std=width**-0.5)
        nn.init.zeros_(self.map.bias)
        places = torch.arange(bits - 1, -1, -1)
        vectors = (torch.arange(2**bits)[:, None] >> places) & 1
        self.register_buffer("vectors", vectors.to(torch.get_default_dtype()), persistent=False)  # (2^n, n)

    def forward(self, y: Tensor) -> Tensor:
        found = self.map(y)  # (B, T, n + 1)
        bits, end = found[..., :-1], found[..., -1:]
        end = end + F.softplus(bits).sum(-1, keepdim=True)  # (B, T, 1)
        never = torch.full_like(end, NEVER)
        special = [end if index == EOS else never for index in range(SPECIAL)]
        return torch.cat([*special, F.linear(bits, self.vectors.to(bits.dtype))], -1)  # (B, T, V)


class IdentityOutput(nn.Module):
    """What the decoder makes are the logits: of every token but the special ones, which never come."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_features, self.out_features = width, width + SPECIAL

    def forward(self, y: Tensor) -> Tensor:
        return F.pad(y, (SPECIAL, 0), value=NEVER)  # (B, T, V)


def ended(logits: Tensor, written: Tensor, length: int) -> Tensor:
    """Logits of answers that have exactly `length` tokens: eos is certain after them, and cannot come before.

    logits: (B, T, V), written: (B, T) how many tokens stand before each position.
    """
    over = (written >= length)[..., None]  # (B, T, 1)
    is_eos = torch.arange(logits.shape[-1], device=logits.device) == EOS
    return logits.masked_fill(over != is_eos, NEVER).masked_fill(over & is_eos, 0.0)


def bits_of(logits: Tensor, target: Tensor) -> Tensor:
    """The bits that an answer's vectors cost at each position by a sigmoid's logits, its end not counted.

    logits: (B, T, V), target: ids (B, T) -> (B, T), 0 where no vector stands.
    """
    log_p = logits[..., SPECIAL:].float().log_softmax(-1)
    found = log_p.gather(-1, (target - SPECIAL).clamp(min=0)[..., None])[..., 0]
    return -found.masked_fill(target < SPECIAL, 0.0) / math.log(2)
