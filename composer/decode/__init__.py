"""Decoding: from a model, or several that vote, to the best sequences it can write.

Every decoder drives every model through the same three calls, `encode`, `start` and `step`, and moves rows of states
with the one `select`. A sequence of n tokens costs n steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from composer.decode.beam import beam
from composer.decode.follow import greedy, sample
from composer.decode.search import Hypothesis, Search
from composer.model import EOS, PAD, EncoderDecoder

__all__ = ["DECODERS", "Hypothesis", "Search", "decode", "decode_all", "reading"]

DECODERS: dict[str, Callable[..., list[list[Hypothesis]]]] = {"greedy": greedy, "beam": beam, "sample": sample}
"""Every decoder by its word in a recipe: from a `Search` to the n best hypotheses of each of its rows."""

MAX_ROWS = 64
"""Sequences that are decoded at once; more gain little on a CPU."""
MAX_HYPOTHESES = 1024
"""Hypotheses that are decoded at once, where one sequence has several."""
MAX_TOKENS = 8192
"""Source positions that are decoded at once, padding included."""


def decode(
    models: Sequence[EncoderDecoder],
    sources: Mapping[str, Tensor],
    decoding: Mapping[str, Mapping[str, Any]],
    prefixes: Sequence[Sequence[int]] | None = None,
    n_best: int = 1,
    numbers: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for each row of one batch, best first.

    sources: ids (B, S) by the encoders' keys, ending in eos, padded on the right. decoding: a decoder's name with its
    settings, as a frozen recipe has it. prefixes: ids with which each row's answer must begin. numbers: what tells the
    rows apart when sampling. A model without encoders needs `prefixes`, one for each row; they may be empty.
    Raises RunError where the models cannot vote together, or the decoder has no n answers.
    """
    ((name, settings),) = decoding.items()
    rows = len(next(iter(sources.values()))) if sources else len(prefixes or ())
    search = Search(models, sources, prefixes or [()] * rows, n_best, numbers or range(rows))
    with reading(models):
        return DECODERS[name](search, **settings)


@contextmanager
def reading(models: Sequence[EncoderDecoder]) -> Iterator[None]:
    """Without gradients and without dropout; afterwards the models are in the mode in which they were."""
    training = [model for model in models if model.training]
    for model in training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for model in training:
            model.train()


def decode_all(
    models: Sequence[EncoderDecoder],
    sources: Mapping[str, Sequence[Sequence[int]]],
    decoding: Mapping[str, Mapping[str, Any]],
    prefixes: Sequence[Sequence[int]] | None = None,
    n_best: int = 1,
    numbers: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for any number of sequences, in their order; decoded in batches of similar length.

    sources: rows of ids without eos, by the encoders' keys. The rest as in `decode`.
    """
    count = len(next(iter(sources.values()))) if sources else len(prefixes or ())
    prefixes = prefixes or [()] * count
    lengths = [max((len(rows[at]) for rows in sources.values()), default=0) + 1 for at in range(count)]
    device = next(models[0].parameters()).device
    found: list[list[Hypothesis]] = [[]] * count
    ((_, settings),) = decoding.items()
    for rows in batches(lengths, max(n_best, settings.get("size", 1))):
        batch = {key: padded([[*every[at], EOS] for at in rows], device) for key, every in sources.items()}
        chosen = [numbers[at] if numbers else at for at in rows]
        answers = decode(models, batch, decoding, [prefixes[at] for at in rows], n_best, chosen)
        for at, answer in zip(rows, answers, strict=True):
            found[at] = answer
    return found


def batches(lengths: Sequence[int], hypotheses: int = 1) -> list[list[int]]:
    """Which rows are decoded together, the longest first: a row has that many `hypotheses`."""
    found: list[list[int]] = []
    most, longest = min(MAX_ROWS, MAX_HYPOTHESES // hypotheses), 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not found or len(found[-1]) >= max(1, min(most, MAX_TOKENS // longest)):
            found.append([])
            longest = lengths[row]
        found[-1].append(row)
    return found


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of ids as one tensor, padded on the right. -> (B, S)"""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
