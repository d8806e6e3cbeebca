"""The one door to attention: masked softmax over keys, by the fastest kernel there is."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.core.contract import BlockError, Context


def heads_divide(heads: int, width: int) -> None:
    """Raises BlockError where `heads` do not divide `width`."""
    if width % heads:
        fits = [n for n in range(1, width + 1) if width % n == 0]
        nearest = min(fits, key=lambda n: abs(n - heads))
        raise BlockError(
            "heads",
            f"{heads} does not divide the width {width}",
            code="width",
            fix=f"write `heads: {nearest}`, or choose a width that {heads} divides",
        )


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, D/H)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, D/H) -> (B, T, D)"""
    return x.transpose(1, 2).flatten(2)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    context: Context,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention. query (B, H, T, d), keys (B, H, N, d), values (B, H, N, v) -> (B, H, T, v).

    `mask` is True where a query may look, broadcastable to (B, H, T, N); `causal` says the same for T = N without one.
    A query that may look nowhere looks everywhere, so that its garbage stays finite; give zero values where it counts.
    The scores are `scale` q.k + `bias`: the scale is 1/sqrt(d) unless it is said, the bias broadcastable like the mask.
    """
    if bias is not None and causal:
        causal, mask = False, earlier(query)
    if mask is not None:
        mask = mask | ~mask.any(-1, keepdim=True)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    if context.records is not None:
        context.record("weights", weights(query, keys, mask, causal=causal, scale=scale).transpose(1, 2))
    if query.device.type == "cpu" and query.dtype is torch.bfloat16 and query.requires_grad:
        # There the fused kernel's backward is slower than the plain products: 4 to 8 times at lengths up to 60.
        return F.dropout(weights(query, keys, mask, causal=causal, scale=scale), dropout) @ values
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


def weights(
    query: Tensor, keys: Tensor, mask: Tensor | None, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Softmax of the masked scores: (B, H, T, N), each row sums to 1. A mask that is not boolean is added to them."""
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ keys.transpose(-2, -1)  # (B, H, T, N)
    if causal:
        mask = earlier(query)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return scores.softmax(-1)


def spread(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of scores (B, H, T, N) over what `mask` lets see; where that is nothing, over everything."""
    return scores.masked_fill(~(mask | ~mask.any(-1, keepdim=True)), -math.inf).softmax(-1)


def earlier(query: Tensor) -> Tensor:
    """The mask of a position that sees itself and those before it: (T, T)"""
    length = query.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
