"""Attention scores (dot, general, additive, location, fine-grained) and local attention windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocks.core.attention import open_empty_rows, split_heads
from blocks.core.contract import BlockError, Fix, NoEffect, Set, State, Stream, remove, write
from blocks.core.named_inputs import MemorySource, ProjectionWidths


def projection_widths(
    score: str, query: int, width: int, heads: int, max_length: int | None, values: int
) -> ProjectionWidths:
    """Return the widths of a score's linear maps, for a query `query` wide and a model `width`
    wide.
    """
    return {
        "scaled_dot": ProjectionWidths(width, width, values),
        "dot": ProjectionWidths(0, 0, values),
        "general": ProjectionWidths(0, heads * query, values),
        "additive": ProjectionWidths(width, width, values),
        "location": ProjectionWidths(heads * (max_length or 0), 0, values),
        "fine_grained": ProjectionWidths(width, width, values),
    }[score]


class AttentionScore(nn.Module):
    """Compares each query with each key, once the linear maps are done.

    `product` says whether it is `scale` times the product of the two: that, the fused kernel
    computes.
    """

    product = False

    def __init__(self, heads: int, scale: float = 1.0) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale

    def queries(self, query: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, d)"""
        return split_heads(query, self.heads)

    def keys(self, keys: Tensor) -> State:
        """(B, S, D) -> (B, H, S, d)"""
        return split_heads(keys, self.heads)

    def seen(self, mask: Tensor) -> Tensor:
        """Return the mask of positions that it can score: (B, S)"""
        return mask

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        """query (B, H, T, d), keys (B, H, S, d), `length` S -> (B, H, T, S)"""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")


class DotScore(AttentionScore):
    """e = scale q.k; each head compares its share of both (dot, scaled_dot)."""

    product = True

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        return (query * self.scale) @ keys.transpose(-2, -1)


class GeneralScore(DotScore):
    """e = q.(W k), with a W for each head, and the whole q for all."""

    def queries(self, query: Tensor) -> Tensor:
        return query[:, None].expand(-1, self.heads, -1, -1)


class AdditiveScore(AttentionScore):
    """e = v.tanh(q + k); q and k are linear in what is compared, and each head has its share of
    them.
    """

    layouts: ClassVar = {"vectors": ""}  # one for each head

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads)
        self.vectors = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        hidden = torch.tanh(query[:, :, :, None] + keys[:, :, None])  # (B, H, T, S, d)
        return torch.einsum("bhtsd,hd->bhts", hidden, self.vectors)


class FineGrainedScore(AttentionScore):
    """e_f = v_f.tanh(q + k) for each feature f of the values, so that every feature is a head for
    what is read.
    """

    layouts: ClassVar = {"vectors": "own"}

    def __init__(self, features: int, width: int) -> None:
        super().__init__(1)
        self.vectors = nn.Parameter(torch.empty(features, width))
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        hidden = torch.tanh(query[:, 0, :, None] + keys[:, 0, None])  # (B, T, S, d)
        return torch.einsum("btsd,fd->bfts", hidden, self.vectors)


class LocationScore(AttentionScore):
    """e = W q: a score for each of the first `max_length` positions, whatever stands there."""

    def __init__(self, heads: int, max_length: int) -> None:
        super().__init__(heads)
        self.max_length = max_length

    def keys(self, keys: Tensor) -> State:
        return ()

    def seen(self, mask: Tensor) -> Tensor:
        return mask & (torch.arange(mask.shape[1], device=mask.device) < self.max_length)

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        return F.pad(query[..., :length], (0, max(length - self.max_length, 0)))


def build_score(
    score: str, heads: int, width: int, features: int, max_length: int | None
) -> AttentionScore:
    """Build the score, for a model `width` wide and values `features` wide."""
    match score:
        case "scaled_dot":
            return DotScore(heads, (width // heads) ** -0.5)
        case "dot":
            return DotScore(heads)
        case "general":
            return GeneralScore(heads)
        case "additive":
            return AdditiveScore(heads, width)
        case "location":
            return LocationScore(heads, max_length or 0)
    return FineGrainedScore(features, width)


def check_score(
    score: str,
    heads: int,
    max_length: int | None,
    query_width: int,
    sources: Sequence[MemorySource],
) -> None:
    """Raise BlockError where another setting, or a width, does not go with the score of a query
    `query_width` wide.
    """
    if score == "location":
        _check_location(max_length, sources)
    elif max_length is not None:
        message = f"the score `{score}` has no maximal length"
        raise NoEffect("max_length", message, fix="remove `max_length`, or write `score: location`")
    if score == "fine_grained" and heads > 1:
        message = "a fine-grained score has a weight for each feature, and no heads"
        raise NoEffect("heads", message, fix="remove `heads`, or write `score: additive`")
    unlike = [source for source in sources if source.keys and source.width != query_width]
    if score == "dot" and unlike:
        raise BlockError(
            "score",
            f"`dot` compares equal widths, and the query is {query_width} wide,"
            f" `{unlike[0].memory}` {unlike[0].width}",
            code="width",
            fix=write("score", "general"),
        )


def _check_location(max_length: int | None, sources: Sequence[MemorySource]) -> None:
    """Raise BlockError where a location score lacks its length, or has more to look at than
    positions.
    """
    if max_length is None:
        message = "`location` has a row for each position, and nothing says for how many"
        raise BlockError(
            "score", message, fix="write `max_length`, the positions of the longest source"
        )
    if any(not (source.keys and source.values) for source in sources):
        message = "`location` looks at positions alone, and here keys are named"
        raise BlockError(
            "score", message, fix=remove("keys", " and `values`, and name the memory in `from`")
        )
    if len(sources) > 1:
        message = "`location` is for the positions of one memory, and `from` names several"
        raise BlockError(
            "score",
            message,
            fix=Fix(
                "name one memory in `from`, or write `score: additive`", Set(("score",), "additive")
            ),
        )


class Coverage(NamedTuple):
    """How much of 1 each real position has still to be read, which are real, and what the penalty
    has been so far.
    """

    left: Tensor  # (B, S)
    real: Tensor  # (B, S)
    penalty: Tensor  # (B,)


def no_coverage(real: Tensor, like: Tensor) -> Coverage:
    """Return the coverage before the first position. real: (B, S)"""
    exact = torch.promote_types(like.dtype, torch.float32)
    return Coverage(
        real.to(exact), real, torch.zeros(real.shape[0], dtype=exact, device=real.device)
    )


def cover(before: Coverage, weights: Tensor, mask: Tensor) -> Coverage:
    """Return the coverage after more queries; the penalty is sum_s (1 - sum_t a_ts)^2, a the mean
    over heads.

    weights: (B, H, T, S), mask: (B, T) of the queries.
    """
    read = (weights.to(before.left.dtype).mean(1) * mask[..., None]).sum(1)  # (B, S)
    left = before.left - read.masked_fill(~before.real, 0.0)
    return Coverage(left, before.real, left.square().sum(-1))


class LocalMask(NamedTuple):
    """What each query sees: a mask, broadcastable to (B, H, T, S), and what multiplies its weights,
    if anything.
    """

    mask: Tensor
    fade: Tensor | None
    state: State


class GlobalAttention(nn.Module):
    """Sees everything. A window stands in the subclasses."""

    def start(self, mask: Tensor) -> State:
        """Return the state before the first position. mask: (B, 1, 1, S)"""
        return ()

    def forward(self, query: Tensor, mask: Tensor, real: Tensor, state: State) -> LocalMask:
        """query (B, T, D), mask (B, 1, 1, S) of the memory, real (B, T) of the queries."""
        return LocalMask(mask, None, state)


class MonotonicWindow(GlobalAttention):
    """p_t = t: the window of position t stands around t, and at a row's end it waits. State:
    positions so far (B,).
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def start(self, mask: Tensor) -> State:
        return torch.zeros(mask.shape[0], dtype=torch.long, device=mask.device)

    def forward(self, query: Tensor, mask: Tensor, real: Tensor, state: State) -> LocalMask:
        last = mask.sum(-1)[:, 0] - 1  # (B, 1)
        centre = (state[:, None] + torch.arange(query.shape[1], device=mask.device)).minimum(
            last
        )  # (B, T)
        near = center_offsets(centre[:, None], mask).abs() <= self.window  # (B, 1, T, S)
        return LocalMask(open_empty_rows(mask & near), None, state + real.sum(1))


class PredictedWindow(GlobalAttention):
    """p_t = S sigmoid(v.tanh(W q)), for each head its own; what is far from it counts little, as
    under a Gaussian.
    """

    layouts: ClassVar = {"vectors": ""}  # one for each head

    def __init__(self, window: int, query: int, width: int, heads: int) -> None:
        super().__init__()
        self.window = window
        self.query = nn.Linear(query, width, bias=False)
        self.vectors = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.query.weight)
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, query: Tensor, mask: Tensor, real: Tensor, state: State) -> LocalMask:
        hidden = torch.tanh(self.query(query)).unflatten(-1, self.vectors.shape)  # (B, T, H, d)
        part = torch.sigmoid(torch.einsum("bthd,hd->bht", hidden, self.vectors))
        # bfloat16 has no odd position above 256
        part = part.to(torch.promote_types(part.dtype, torch.float32))
        distance = center_offsets(part * mask.sum(-1), mask)  # (B, H, T, S)
        fade = torch.exp(-2 * (distance / self.window).square())  # the deviation is window / 2
        return LocalMask(open_empty_rows(mask & (distance.abs() <= self.window)), fade, state)


def center_offsets(centre: Tensor, mask: Tensor) -> Tensor:
    """Return the distance of each position from each center: (B, H, T) -> (B, H, T, S)"""
    return torch.arange(mask.shape[-1], device=mask.device) - centre[..., None]


def build_window(local: str, window: int, query: int, width: int, heads: int) -> GlobalAttention:
    """Build what says where a query `query` wide looks, with a hidden layer `width` wide where that
    is predicted.
    """
    if local == "none":
        return GlobalAttention()
    return (
        MonotonicWindow(window)
        if local == "monotonic"
        else PredictedWindow(window, query, width, heads)
    )


def check_window(local: str, window: int | None, query: Stream, memories: int) -> None:
    """Raise BlockError where there is no window, or nothing that it could move with, or over."""
    if local == "none":
        if window is not None:
            message = "`window` needs `local`"
            fix = "remove `window`, or write `local: monotonic` or `local: predicted`"
            raise NoEffect("window", message, fix=fix)
        return
    if query.length_ratio == 0:
        message = "a local window needs a query for each position, and here is one for all"
        raise BlockError("local", message, fix=remove("local", ", or read a query that moves"))
    if memories > 1:
        message = "local attention reads one memory, and `from` names several"
        raise BlockError("local", message, fix=remove("local", ", or name one memory in `from`"))
