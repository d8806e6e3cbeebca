"""Functions of the scores of next tokens: the largest, a draw, and tokens that are excluded."""

from __future__ import annotations

import torch
from torch import Tensor

from composer.model.encoder_decoder import is_impossible
from composer.model.special_tokens import EOS, PAD

BLOCK = 64
"""Columns whose maximum `top_k` takes first."""
LARGE = 1 << 17
"""Numbers from which on the maxima of blocks pay."""


def top_k(log_p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest numbers of each row, and their columns. log_p: (R, V)

    `topk` is slow for a large vocabulary. The largest numbers are in the `count` blocks with the
    largest maxima, or after the last whole block.
    """
    blocks = log_p.shape[1] // BLOCK
    if log_p.numel() < LARGE or blocks <= 2 * count:
        return log_p.max(-1, keepdim=True) if count == 1 else log_p.topk(count)
    blocked = log_p[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (R, blocks, BLOCK)
    rest = log_p[:, blocks * BLOCK :]
    chosen = blocked.amax(-1).topk(count)[1]  # (R, count)
    best = blocked.gather(1, chosen[..., None].expand(-1, -1, BLOCK))  # (R, count, BLOCK)
    values, places = torch.cat((best.flatten(1), rest), 1).topk(count)  # (R, count)
    block = chosen.gather(1, (places // BLOCK).clamp(max=count - 1))  # (R, count)
    in_block = block * BLOCK + places % BLOCK
    in_rest = places - count * BLOCK + blocks * BLOCK
    return values, torch.where(places < count * BLOCK, in_block, in_rest)


def draw_from_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token at which the cumulative probability passes a number; the sum need not be 1.

    probabilities: (R, V) of 64 bits, uniforms: (R,) -> columns (R,)
    """
    sums = probabilities.cumsum(-1)  # (R, V)
    # a number that reaches the last sum draws the last token with a probability above 0
    below = uniforms.double() * sums[:, -1]  # (R,)
    return torch.searchsorted(sums, below[:, None], right=True)[:, 0].clamp(max=sums.shape[1] - 1)


def exclude(log_p: Tensor, tokens: Tensor) -> Tensor:
    """Set log p of `tokens` to -inf in rows where others remain. log_p, tokens: (R, V) -> (R, V)"""
    remaining = log_p.masked_fill(tokens, -torch.inf)
    return torch.where(remaining.isneginf().all(1, keepdim=True), log_p, remaining)


def exclude_impossible(log_p: Tensor) -> Tensor:
    """Set log p of impossible tokens to -inf in rows where others remain. (R, V) -> (R, V)"""
    return exclude(log_p, is_impossible(log_p))


def exclude_repeated_ngrams(log_p: Tensor, history: Tensor, size: int) -> Tensor:
    """Set log p to -inf of tokens that would repeat an n-gram, in rows where others remain.

    log_p: (R, V - EOS); history: (R, t), padded on the left -> (R, V - EOS)
    """
    rows, length = history.shape
    if length < size:
        return log_p
    ngrams = history.unfold(1, size, 1)  # (R, t - n + 1, n)
    last = history[:, None, length - size + 1 :]  # (R, 1, n - 1)
    repeated = (ngrams[..., :-1] == last).all(-1)  # (R, t - n + 1)
    tokens = ngrams[..., -1].masked_fill(~repeated, PAD)  # (R, t - n + 1); no answer has PAD
    columns = log_p.shape[1] + EOS
    excluded = torch.zeros(rows, columns, dtype=torch.bool, device=log_p.device)  # (R, V)
    return exclude(log_p, excluded.scatter(1, tokens, True)[:, EOS:])
