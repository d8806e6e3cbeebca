"""How long answers may be: in tokens of their source, or as long as a model has made room for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MIN_LENGTH_LIMIT = 50
"""Tokens that every answer may have, however short its source is."""

Lengths = Mapping[str, Sequence[int]]
"""Tokens of each row's source, eos counted, by the encoders' keys."""


class LengthQuery(NamedTuple):
    """A row, and the size of the answer to decode for it; 0 where sizes do not matter."""

    row: int
    size: int
    own: int  # the size of its source


class LengthConstraint(NamedTuple):
    """What the answers of a search must be; by row."""

    size: Tensor  # (B,)
    left: Tensor  # (B,) tokens of that, eos counted, a forced prefix not
    exact: Tensor  # (B,) bool: exactly so many tokens, not at most

    def target_mask(self) -> Tensor:
        """Return the mask of positions that the encoders are to allocate. -> (B, N) bool"""
        return torch.arange(int(self.size.max()), device=self.size.device) < self.size[:, None]

    def allowed(self, log_p: Tensor, rows: Tensor, length: int) -> Tensor:
        """Mask log p of the next token: eos is forced at a given length, and excluded before it if
        it is exact.

        log_p: (R, V), of which eos is the first; rows: (R,) which of the B each is; length: tokens
        after the prefix.
        """
        last = (self.left[rows] <= length + 1)[:, None]  # (R, 1)
        early = self.exact[rows][:, None] & ~last  # (R, 1)
        end, words = log_p[:, :1], log_p[:, 1:]  # (R, 1), (R, V - EOS - 1)
        return torch.cat(
            (end.masked_fill(early, -torch.inf), words.masked_fill(last, -torch.inf)), 1
        )


def token_limit(source: int, max_length: int, max_ratio: float) -> int:
    """Return the maximum tokens of an answer, eos counted, a forced prefix not. source: its length;
    0 without.
    """
    return (
        min(max_length, math.ceil(max_ratio * source) + MIN_LENGTH_LIMIT) if source else max_length
    )


def length_constraint(
    queries: Sequence[LengthQuery], prefixes: Sequence[Sequence[int]], device: torch.device
) -> LengthConstraint | None:
    """Return the lengths of the queries, whose answers begin with `prefixes`; None if lengths do
    not matter.
    """
    if not any(query.size for query in queries):
        return None
    left = [query.size - len(prefix) for query, prefix in zip(queries, prefixes, strict=True)]
    exact = [query.size > query.own for query in queries]
    columns = ([query.size for query in queries], left, exact)
    return LengthConstraint(*(torch.tensor(column, device=device) for column in columns))
