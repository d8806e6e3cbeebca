"""Scaled dot-product attention (the only place that calls the fused kernel), what it sees, and
distances.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocks.core.contract import BlockError, Context, Fix, NoEffect, write
from blocks.core.functional import apply_dropout, last_positions, sinusoidal
from blocks.core.loops import is_compiled, is_one

# cuDNN's attention has gradients that are NaN in bfloat16 where a query's scores are all far below
# zero, as a speller's were on an H200 (github.com/pytorch/pytorch/issues/196678); PyTorch's other
# fused kernels have no such fault
torch.backends.cuda.enable_cudnn_sdp(False)


def check_heads(heads: int, width: int, parts: int = 1) -> None:
    """Raise BlockError where `heads`, of several parts each, do not divide `width`."""
    if width % (parts * heads):
        fits = [n for n in range(1, width + 1) if width % (parts * n) == 0]
        message = f"{parts * heads} does not divide the width {width}"
        other = f"choose a width that {parts * heads} divides"
        fix = (
            write("heads", min(fits, key=lambda n: abs(n - heads)), f", or {other}")
            if fits
            else Fix(other)
        )
        raise BlockError("heads", message, code="width", fix=fix)


def check_groups(heads: int, kv_heads: int | None) -> None:
    """Raise BlockError where `kv_heads` do not divide the heads."""
    if kv_heads is not None and heads == 1:
        raise NoEffect("kv_heads", "one head of queries has one of keys and values")
    if kv_heads is not None and heads % kv_heads:
        fits = [n for n in range(1, heads + 1) if heads % n == 0]
        nearest = min(fits, key=lambda n: abs(n - kv_heads))
        message = f"{kv_heads} does not divide the {heads} heads"
        raise BlockError("kv_heads", message, fix=write("kv_heads", nearest))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, D/H)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, D/H) -> (B, T, D)"""
    return x.transpose(1, 2).flatten(2)


class Softmax(nn.Module):
    """Attention weights from scores; `is_plain` if that is a softmax alone.

    With `soft_cap` c a score e is c tanh(e / c), before masks and the bias of ALiBi (Gemma Team
    2024, arXiv 2408.00118, section 2). With `sinks` each head has a learned logit s that takes its
    part of the weights and reads nothing, w_j = exp(e_j) / (exp(s) + sum_i exp(e_i)), as in gpt-oss
    (OpenAI 2025, arXiv 2508.10925), and is not a learned token, whose values would be read (Xiao et
    al. 2024, arXiv 2309.17453).
    """

    def __init__(self, heads: int, soft_cap: float | None = None, sinks: bool = False) -> None:
        super().__init__()
        self.soft_cap = soft_cap
        self.sinks = nn.Parameter(torch.zeros(heads)) if sinks else None

    @property
    def is_plain(self) -> bool:
        return self.soft_cap is None and self.sinks is None

    def forward(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """scores (B, H, T, N) -> weights (B, H, T, N), whose rows sum to 1, with sinks to less"""
        if self.soft_cap is not None:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        scores = scores if mask is None else add_mask(scores, mask)
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


def attention(
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
    softmax: Softmax | None = None,
) -> Tensor:
    """Softmax attention. query (B, H, T, d), keys (B, G, N, d), values (B, G, N, v) -> (B, H, T,
    v).

    G divides H: each head of keys and values serves H / G heads of queries in a row. `mask` is True
    where a query may look, broadcastable to (B, H, T, N), or is added to the scores; somewhere
    every query may look, as `open_empty_rows` sees to it. `causal` says that it may look at itself
    and before, for T = N without a mask. The scores are `scale` q.k + `bias`: the scale is
    1/sqrt(d) by default, the bias broadcastable like the mask.
    """
    has_softmax = softmax is not None and not softmax.is_plain
    if causal and (bias is not None or has_softmax):
        causal, mask = False, causal_mask(query)
    if has_softmax:
        weights = attention_weights(query, keys, mask, bias=bias, scale=scale, softmax=softmax)
        context.record("weights", weights.transpose(1, 2))
        return grouped_matmul(apply_dropout(weights, dropout, training=True), values)
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else add_mask(bias, mask)
    if context.records is not None:
        context.record(
            "weights",
            attention_weights(query, keys, mask, causal=causal, scale=scale).transpose(1, 2),
        )
    # On a CPU the fused kernel drops nothing, and is slower than the plain products for a single
    # query, and in bfloat16 backwards. Compiled, the plain products would be for several rows
    # alone; in an exported program the fused kernel becomes products that copy all keys.
    is_single = is_one(query.shape[-2]) and not is_compiled()
    is_slow = is_single or (query.dtype is torch.bfloat16 and query.requires_grad)
    if query.device.type == "cpu" and (dropout or is_slow):
        weights = attention_weights(query, keys, mask, causal=causal, scale=scale)
        return grouped_matmul(apply_dropout(weights, dropout, training=True), values)
    has_groups = keys.shape[1] != query.shape[1]
    # of the fused kernels, those that take a mask take no groups
    if has_groups and mask is not None:
        times = query.shape[1] // keys.shape[1]
        keys, values, has_groups = (
            keys.repeat_interleave(times, 1),
            values.repeat_interleave(times, 1),
            False,
        )
    return F.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=has_groups,
    )


def attention_weights(
    query: Tensor,
    keys: Tensor,
    mask: Tensor | None,
    *,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
    softmax: Softmax | None = None,
) -> Tensor:
    """Softmax of the masked scores: (B, H, T, N), each row sums to 1, with sinks to less. As in
    `attention`.
    """
    scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = grouped_matmul(scaled, keys.transpose(-2, -1))  # (B, H, T, N)
    if bias is not None:
        scores = scores + bias
    if causal:
        mask = causal_mask(query)
    if softmax is not None:
        return softmax(scores, mask)
    return (scores if mask is None else add_mask(scores, mask)).softmax(-1)


def add_mask(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the scores with -inf where a boolean mask is False, or with a mask of numbers added to
    them.
    """
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask


def grouped_matmul(x: Tensor, y: Tensor) -> Tensor:
    """Multiply each head of y with the H / G heads of x that share it. (B, H, T, n), (B, G, n, m)
    -> (B, H, T, m)
    """
    heads, groups, length = x.shape[1], y.shape[1], x.shape[2]
    if heads == groups:
        return x @ y
    rows = x.unflatten(1, (groups, heads // groups)).flatten(
        2, 3
    )  # (B, G, H / G * T, n): y is not copied
    return (rows @ y).unflatten(2, (heads // groups, length)).flatten(1, 2)


def open_empty_rows(mask: Tensor) -> Tensor:
    """Let a query that may look nowhere look everywhere, so that its garbage stays finite; give it
    zero values.
    """
    return mask | ~mask.any(-1, keepdim=True)


def causal_mask(query: Tensor) -> Tensor:
    """Return the mask of a position that sees itself and those before it: (T, T)"""
    length = query.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril()


def no_slots(mask: Tensor, count: int) -> Tensor:
    """Return the mask of `count` slots in which nothing is. mask: (B, T) -> (B, count)"""
    return mask.new_zeros(mask.shape[0], count)


def last_slots(seen: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return the mask of the last `count` slots that are real. seen: (B, count + T), mask: (B, T)
    -> (B, count)
    """
    return last_positions(seen, mask.sum(1), count)


def visible_slots(seen: Tensor, length: int, window: int | None, causal: bool) -> Tensor:
    """Return the mask of slots that each of the last `length` positions may see.

    seen: (B, N) -> (B, 1, T or 1, N)
    """
    mask = seen[:, None, None]  # (B, 1, 1, N)
    if window is not None or (causal and length > 1):
        slots = torch.arange(seen.shape[1], device=seen.device)
        distance = slots[-length:, None] - slots  # (T, N)
        if window is not None:
            mask = mask & (distance.abs() < window)
        if causal:
            mask = mask & (distance >= 0)
    return open_empty_rows(mask)


def slot_distances(seen: Tensor, length: int, has_window: bool) -> Tensor:
    """Count the real positions from each slot to each of the last `length` positions.

    seen: (B, N) -> (B or 1, T, N). The padding of a ragged chunk stands between the slots, unless a
    window has kept the real ones alone.
    """
    if has_window or seen.shape[1] == length:
        where = torch.arange(seen.shape[1], device=seen.device)[None]  # (1, N)
    else:
        where = seen.cumsum(1)  # (B, N)
    return where[:, -length:, None] - where[:, None, :]


BUCKETS = 32
"""Of distances, of `t5` positions."""


class Slots(NamedTuple):
    """Slots that queries read, and how far from each query they are."""

    keys: Tensor  # (B, G, N, d)
    values: Tensor  # (B, G, N, d)
    mask: Tensor  # (B, 1, T or 1, N), True where a query may see a slot
    distance: Tensor  # (B or 1, T, N): i - j of each query and slot


class AlibiAttention(nn.Module):
    """Attention in which a distance costs what a head's slope says (Press et al. 2022, section 3).

    e_ij = q_i k_j / sqrt(d) - 2^(-8h/H) |i - j| for the heads h = 1, ..., H, whatever their number;
    the authors' code interpolates where that is no power of 2.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(
        self,
        query: Tensor,
        slots: Slots,
        context: Context,
        dropout: float,
        softmax: Softmax | None = None,
    ) -> Tensor:
        """Attend as `attention` does, which has the letters."""
        costs = context.once(
            alibi_mask, slots.mask, slots.distance, self.heads, query.dtype
        )  # (B, H, T, N)
        return attention(
            query, slots.keys, slots.values, costs, context, dropout=dropout, softmax=softmax
        )


def alibi_mask(mask: Tensor, distance: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Return minus each head's slope times the distance, and -inf where `mask` is False. -> (B, H,
    T, N)
    """
    slopes = 2.0 ** (torch.arange(1, heads + 1, device=mask.device) * (-8.0 / heads))
    costs = -slopes[:, None, None] * distance.abs()[:, None]  # (B or 1, H, T, N)
    return add_mask(costs, mask).to(dtype)


class BucketAttention(nn.Module):
    """Attention with a learned number for each head and bucket of distances (Raffel et al. 2020,
    arXiv 1910.10683, section 2.1).

    e_ij = q_i k_j / sqrt(d) + b_h(bucket(i - j)). Half of the buckets are of one distance each, the
    others grow in their logarithms up to `furthest`, beyond which all distances are one. `future`:
    whether a query may see later positions, which then have half of the buckets.
    """

    layouts: ClassVar = {"bias": ""}

    def __init__(self, heads: int, furthest: int, future: bool) -> None:
        super().__init__()
        self.furthest, self.future = furthest, future
        self.bias = nn.Parameter(torch.zeros(BUCKETS, heads))

    def forward(
        self,
        query: Tensor,
        slots: Slots,
        context: Context,
        dropout: float,
        softmax: Softmax | None = None,
    ) -> Tensor:
        """Attend as `attention` does, which has the letters."""
        bucket = context.once(
            distance_buckets, slots.distance, self.furthest, self.future
        )  # (B or 1, T, N)
        bias = F.embedding(bucket, self.bias).movedim(-1, 1)  # (B or 1, H, T, N)
        mask = add_mask(bias, slots.mask).to(query.dtype)
        return attention(
            query, slots.keys, slots.values, mask, context, dropout=dropout, softmax=softmax
        )


def distance_buckets(distance: Tensor, furthest: int, future: bool) -> Tensor:
    """Return the bucket of each distance i - j; later positions have the upper half. (...)"""
    if future:
        buckets, size = BUCKETS // 2, distance.abs()
        later = torch.where(distance < 0, buckets, 0)
    else:
        buckets, size = BUCKETS, distance.clamp(min=0)
        later = torch.zeros_like(distance)
    exact = buckets // 2
    share = torch.log(size.clamp(min=1).float() / exact) / math.log(furthest / exact)
    far = exact + (share * (buckets - exact)).long()
    return later + torch.where(size < exact, size, far.clamp(max=buckets - 1))


class RelativeAttention(nn.Module):
    """Attention with learned vectors of distances (Shaw et al. 2018, equations 3 and 4).

    e_ij = q_i (k_j + a_ij) / sqrt(d)

    z_i = sum_j softmax_j(e_ij) (v_j + b_ij)

    a_ij and b_ij belong to the distance i - j, clipped to `furthest`, and are the same for all
    heads. `future`: whether a query may see later positions.
    """

    layouts: ClassVar = {"keys": "own", "values": "own"}

    def __init__(self, width: int, furthest: int, future: bool) -> None:
        super().__init__()
        self.furthest, self.nearest = furthest, -furthest if future else 0
        self.keys = nn.Parameter(torch.empty(furthest - self.nearest + 1, width))
        self.values = nn.Parameter(torch.empty(furthest - self.nearest + 1, width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def forward(
        self,
        query: Tensor,
        slots: Slots,
        context: Context,
        dropout: float,
        softmax: Softmax | None = None,
    ) -> Tensor:
        """Attend as `attention` does, which has the letters."""
        index = slots.distance.clamp(self.nearest, self.furthest) - self.nearest  # (B or 1, T, N)
        scaled = query * query.shape[-1] ** -0.5  # (B, H, T, d)
        bias = torch.einsum("bhtd,btnd->bhtn", scaled, F.embedding(index, self.keys))
        mixture = attention_weights(
            query, slots.keys, slots.mask, bias=bias, softmax=softmax
        )  # (B, H, T, N)
        context.record("weights", mixture.transpose(1, 2))
        mixture = apply_dropout(mixture, dropout, training=True)
        near = torch.einsum(
            "bhtn,btnd->bhtd", mixture, F.embedding(index, self.values)
        )  # (B, H, T, d)
        return grouped_matmul(mixture, slots.values) + near


class TransformerXlAttention(nn.Module):
    """Attention with a map of each distance's sinusoids, and biases (Dai et al. 2019, section 3.3).

    e_ij = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(d) with r = W R of the sinusoids R of the
    distance i - j, and u, v of each head; `future` says whether a position may be before another.
    """

    layouts: ClassVar = {"content": "", "position": ""}

    def __init__(
        self, width: int, heads: int, head_width: int, window: int | None, future: bool
    ) -> None:
        super().__init__()
        self.width, self.window, self.future = width, window, future
        self.project = nn.Linear(width, heads * head_width, bias=False)
        self.content = nn.Parameter(torch.zeros(heads, 1, head_width))
        self.position = nn.Parameter(torch.zeros(heads, 1, head_width))
        nn.init.xavier_uniform_(self.project.weight)

    def forward(
        self,
        query: Tensor,
        slots: Slots,
        context: Context,
        dropout: float,
        softmax: Softmax | None = None,
    ) -> Tensor:
        """Attend as `attention` does, which has the letters."""
        keys, values, mask, distance = slots
        furthest = min(keys.shape[2], self.window or keys.shape[2]) - 1
        nearest = -furthest if self.future else 0
        sinusoids = context.once(distance_sinusoids, mask, nearest, furthest, self.width).to(
            query.dtype
        )  # (R, D)
        weight = self.project.weight.unflatten(0, (len(self.position), -1))  # (H, d, D)
        query_at = query + self.position  # (B, H, T, d)
        # a step of decoding: one query costs less to map than all distances
        if query.shape[2] == 1:
            scores = query_at @ weight @ sinusoids.T  # (B, H, 1, R)
        else:
            scores = query_at @ (weight @ sinusoids.T)  # (B, H, T, R)
        index = (distance.clamp(nearest, furthest) - nearest)[:, None].expand(
            *scores.shape[:3], -1
        )  # (B, H, T, N)
        bias = scores.gather(-1, index) * query.shape[-1] ** -0.5
        query = query + self.content
        return attention(
            query, keys, values, mask, context, dropout=dropout, bias=bias, softmax=softmax
        )


def distance_sinusoids(like: Tensor, nearest: int, furthest: int, width: int) -> Tensor:
    """Return the sinusoids of distances, on the device of `like`: (R, width)"""
    return sinusoidal(torch.arange(nearest, furthest + 1, device=like.device), width)
