"""Lengths of answers: limits relative to the source, or sizes that a model allocates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from composer.model.encoder_decoder import ROUNDING, EncoderDecoder
from composer.recipe.choices import Decoder

MIN_LENGTH_LIMIT = 50
"""Tokens that every answer may have, however short its source is."""


@dataclass(frozen=True)
class LengthQuery:
    """A row, and the size of the answer to decode for it; 0 if sizes do not matter."""

    row: int
    size: int = 0
    source_size: int = 0


@dataclass(frozen=True)
class LengthConstraint:
    """The lengths of the answers of B rows.

    size: (B,) tokens of the answer, with its prefix and eos.
    left: (B,) tokens after the prefix, with eos.
    exact: (B,) bool, True if the answer has exactly `size` tokens, else at most.
    """

    size: Tensor
    left: Tensor
    exact: Tensor

    def target_mask(self) -> Tensor:
        """Return the mask of positions that the encoders allocate. -> (B, N) bool"""
        return torch.arange(int(self.size.max()), device=self.size.device) < self.size[:, None]

    def allowed(self, log_p: Tensor, rows: Tensor, length: int) -> Tensor:
        """Force eos at the given length, and exclude it before if the length is exact.

        log_p: (R, V - EOS), eos first; rows: (R,) of the B; length: tokens after the prefix.
        """
        last = (self.left[rows] <= length + 1)[:, None]  # (R, 1)
        early = self.exact[rows][:, None] & ~last  # (R, 1)
        end = log_p[:, :1].masked_fill(early, -torch.inf)  # (R, 1)
        words = log_p[:, 1:].masked_fill(last, -torch.inf)  # (R, V - EOS - 1)
        return torch.cat((end, words), 1)


def token_limit(source: int, max_length: int, max_ratio: float) -> int:
    """Return the maximum tokens of an answer, with eos, without its prefix.

    source: The length of its source, 0 without one.
    """
    if not source:
        return max_length
    return min(max_length, math.ceil(max_ratio * source) + MIN_LENGTH_LIMIT)


def target_ratios(models: Sequence[EncoderDecoder]) -> list[tuple[str, float]]:
    """Return the key of every encoder that allocates an answer, and its maximum length ratio."""
    ratios = []
    for model in models:
        if model.max_target_ratio:
            for key, encoder in model.readers().items():
                if encoder.max_target_ratio:
                    ratios.append((key, encoder.max_target_ratio))
    return ratios


def answer_sizes(
    ratios: Sequence[tuple[str, float]],
    lengths: Mapping[str, int],
    prefix_length: int,
    decoding: Decoder,
) -> range:
    """Return the sizes of answers to try for a row. lengths: positions of its sources by key"""
    limit = token_limit(max(lengths.values()), decoding.max_length, decoding.max_ratio)
    first = max(min(lengths[key] for key, _ in ratios), prefix_length + 1)
    most = max(math.ceil(ratio * lengths[key] - ROUNDING) for key, ratio in ratios)
    return range(first, max(first, min(most, prefix_length + limit)) + 1)


def length_constraint(
    queries: Sequence[LengthQuery], prefixes: Sequence[Sequence[int]], device: torch.device
) -> LengthConstraint | None:
    """Return the lengths of queries whose answers begin with `prefixes`; None without sizes."""
    if not any(query.size for query in queries):
        return None
    left = [query.size - len(prefix) for query, prefix in zip(queries, prefixes, strict=True)]
    return LengthConstraint(
        size=torch.tensor([query.size for query in queries], device=device),
        left=torch.tensor(left, device=device),
        exact=torch.tensor([query.size > query.source_size for query in queries], device=device),
    )
