"""How long answers may be; and sizes: to a model that makes room for its answer, their length belongs to the question.

Such a model has learned p(y | x, n) with n = max(|x| + 1, |y| + 1), eos counted. So of size |x| + 1, the source's own,
are all answers of at most so many tokens; of a larger size are those of exactly so many. A search asks for each size
that there is room for, and keeps the best answers of all (Kaiser & Bengio 2016, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from composer.model.encoder_decoder import EncoderDecoder

ALWAYS_ALLOWED = 50
"""Tokens that every answer may have, however short its source is."""
ROUNDING = 1e-9
"""What a product of a room and a length may be too large by."""

Lengths = Mapping[str, Sequence[int]]
"""Tokens of each row's source, eos counted, by the encoders' keys."""


class LengthQuery(NamedTuple):
    """A row, and the size that its answer is asked for; 0 where sizes do not matter."""

    row: int
    size: int
    own: int  # the size of its source


class LengthConstraint(NamedTuple):
    """What the answers of a search must be; by row."""

    size: Tensor  # (B,)
    left: Tensor  # (B,) tokens of that, eos counted, a forced prefix not
    exact: Tensor  # (B,) bool: exactly so many tokens, not at most

    def room(self) -> Tensor:
        """The positions that the encoders are to make room for. -> (B, N) bool"""
        return torch.arange(int(self.size.max()), device=self.size.device) < self.size[:, None]

    def allowed(self, log_p: Tensor, rows: Tensor, written: int) -> Tensor:
        """log p of the next token, -inf for what it cannot be. The last one of a size is eos; in an exact one no other.

        log_p: (R, V), of which eos is the first; rows: (R,) which of the B each is; written: tokens beside the prefix.
        """
        last = (self.left[rows] <= written + 1)[:, None]  # (R, 1)
        early = self.exact[rows][:, None] & ~last
        end, words = log_p[:, :1], log_p[:, 1:]
        return torch.cat((end.masked_fill(early, -torch.inf), words.masked_fill(last, -torch.inf)), 1)


def token_limit(source: int, max_length: int, max_ratio: float) -> int:
    """Tokens of an answer at most, eos counted, a forced prefix not. source: those of its source; 0 without one."""
    return min(max_length, math.ceil(max_ratio * source) + ALWAYS_ALLOWED) if source else max_length


def candidate_lengths(
    models: Sequence[EncoderDecoder], lengths: Lengths, prefixes: Sequence[Sequence[int]], limits: Sequence[int]
) -> list[LengthQuery]:
    """Each row, at each size that there is room for and `limits` allow; of each row one at least."""
    readers = [reader for model in models if model.room for reader in model.readers().items()]
    rooms = [(encoder.room, lengths[key]) for key, encoder in readers if encoder.room]
    if not rooms:
        return [LengthQuery(row, 0, 0) for row in range(len(prefixes))]
    asked = []
    for row, (prefix, limit) in enumerate(zip(prefixes, limits, strict=True)):
        own = min(length[row] for _, length in rooms)
        first = max(own, len(prefix) + 1)
        most = max(math.ceil(room * length[row] - ROUNDING) for room, length in rooms)
        asked += [LengthQuery(row, size, own) for size in range(first, max(first, min(most, len(prefix) + limit)) + 1)]
    return asked


def sizes_of(
    asked: Sequence[LengthQuery], prefixes: Sequence[Sequence[int]], device: torch.device
) -> LengthConstraint | None:
    """The sizes of `asked`, whose answers begin with `prefixes`; None where they do not matter."""
    if not any(each.size for each in asked):
        return None
    left = [each.size - len(prefix) for each, prefix in zip(asked, prefixes, strict=True)]
    exact = [each.size > each.own for each in asked]
    return LengthConstraint(
        *(torch.tensor(each, device=device) for each in ([each.size for each in asked], left, exact))
    )
