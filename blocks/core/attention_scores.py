"""Scores of attention: how a query is compared with a key. Each is one small module, and a row in `maps`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocks.core.attention import split_heads
from blocks.core.attention_sources import Maps, Source
from blocks.core.contract import BlockError, State


def maps(score: str, query: int, width: int, heads: int, max_length: int | None, values: int) -> Maps:
    """The linear maps of a score, for a query `query` wide and a model `width` wide; `values` is that of the values."""
    return {
        "scaled_dot": Maps(width, width, values),
        "dot": Maps(0, 0, values),
        "general": Maps(0, heads * query, values),
        "additive": Maps(width, width, values),
        "location": Maps(heads * (max_length or 0), 0, values),
        "fine_grained": Maps(width, width, values),
    }[score]


class Score(nn.Module):
    """Compares each query with each key, once the linear maps are done.

    `product` says whether it is `scale` times the product of the two: that, the fused kernel computes.
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
        """The positions that it can score, of the real ones: (B, S)"""
        return mask

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        """query (B, H, T, d), keys (B, H, S, d), `length` S -> (B, H, T, S)"""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")


class Product(Score):
    """e = scale q.k; each head compares its share of both (dot, scaled_dot)."""

    product = True

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        return (query * self.scale) @ keys.transpose(-2, -1)


class General(Product):
    """e = q.(W k), with a W for each head, and the whole q for all."""

    def queries(self, query: Tensor) -> Tensor:
        return query[:, None].expand(-1, self.heads, -1, -1)


class Additive(Score):
    """e = v.tanh(q + k); q and k are linear in what is compared, and each head has its share of them."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads)
        self.vectors = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        hidden = torch.tanh(query[:, :, :, None] + keys[:, :, None])  # (B, H, T, S, d)
        return torch.einsum("bhtsd,hd->bhts", hidden, self.vectors)


class FineGrained(Score):
    """e_f = v_f.tanh(q + k) for each feature f of the values, so that every feature is a head for what is read."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__(1)
        self.vectors = nn.Parameter(torch.empty(features, width))
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, query: Tensor, keys: State, length: int) -> Tensor:
        hidden = torch.tanh(query[:, 0, :, None] + keys[:, 0, None])  # (B, T, S, d)
        return torch.einsum("btsd,fd->bfts", hidden, self.vectors)


class Location(Score):
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


def score_of(score: str, heads: int, width: int, features: int, max_length: int | None) -> Score:
    """The score, for a model `width` wide and values `features` wide."""
    match score:
        case "scaled_dot":
            return Product(heads, (width // heads) ** -0.5)
        case "dot":
            return Product(heads)
        case "general":
            return General(heads)
        case "additive":
            return Additive(heads, width)
        case "location":
            return Location(heads, max_length or 0)
    return FineGrained(features, width)


def score_fits(score: str, heads: int, max_length: int | None, asked: int, sources: Sequence[Source]) -> None:
    """Raises BlockError where another setting, or a width, does not go with the score of a query `asked` wide."""
    if score == "location":
        _location_fits(max_length, sources)
    elif max_length is not None:
        raise BlockError(
            "max_length",
            f"the score `{score}` has no maximal length",
            fix="write `score: location`, or remove `max_length`",
        )
    if score == "fine_grained" and heads > 1:
        raise BlockError(
            "heads",
            "a fine-grained score has a weight for each feature, and no heads",
            fix="remove `heads`, or write `score: additive`",
        )
    unlike = [each for each in sources if each.keys and each.width != asked]
    if score == "dot" and unlike:
        raise BlockError(
            "score",
            f"`dot` compares equal widths, and the query is {asked} wide, `{unlike[0].memory}` {unlike[0].width}",
            code="width",
            fix="write `score: general`",
        )


def _location_fits(max_length: int | None, sources: Sequence[Source]) -> None:
    """Raises BlockError where a location score lacks its length, or has more to look at than positions."""
    if max_length is None:
        raise BlockError(
            "score",
            "`location` has a row for each position, and nothing says for how many",
            fix="write `max_length`, the positions of the longest source",
        )
    if any(not (each.keys and each.values) for each in sources):
        raise BlockError(
            "score",
            "`location` looks at positions alone, and here keys are named",
            fix="remove `keys` and `values`, and name the memory in `from`",
        )
    if len(sources) > 1:
        raise BlockError(
            "score",
            "`location` is for the positions of one memory, and `from` names several",
            fix="name one memory in `from`, or write `score: additive`",
        )
