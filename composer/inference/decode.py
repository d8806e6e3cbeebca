"""Decoding: from a model, or several that vote, to the best sequences it can write.

Every decoder drives every model through the same three calls, `encode`, `start` and `step`, and moves rows of states
with the one `select`. A sequence of n tokens costs n steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from composer.inference.beam_search import beam
from composer.inference.sampling import greedy, sample
from composer.inference.search import (
    Hypothesis,
    LengthQuery,
    Lengths,
    Search,
    candidate_lengths,
    check_same_kind,
    length_constraint,
    token_limit,
)
from composer.inference.viterbi import viterbi
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.vocabulary import EOS, PAD

__all__ = [
    "DECODERS",
    "Hypothesis",
    "Search",
    "decode",
    "decode_all",
    "evaluation_mode",
    "length_queries",
    "num_positions",
    "pad",
    "source_tensor",
]

if TYPE_CHECKING:  # an exported model decodes without numpy
    import numpy as np

DECODERS: dict[str, Callable[..., list[list[Hypothesis]]]] = {
    "greedy": greedy,
    "beam": beam,
    "sample": sample,
    "viterbi": viterbi,
}
"""Every decoder by its word in a recipe: from a `Search` to the n best hypotheses of each of its rows."""

Decoding = Mapping[str, Mapping[str, Any]]
"""A decoder's name with its settings, as a frozen recipe has it."""

SourceIds: TypeAlias = "Sequence[int] | np.ndarray"
"""The ids of a source without eos, a sequence; of a story its sentences, an array or lists (sentences, words)."""

MAX_ROWS = 64
"""Sequences that are decoded at once, each size of an answer counted; more gain little on a CPU."""
MAX_HYPOTHESES = 1024
"""Hypotheses that are decoded at once, where one sequence has several."""
MAX_TOKENS = 8192
"""Source positions that are decoded at once, padding and the room for an answer included."""


def decode(
    models: Sequence[EncoderDecoder],
    sources: Mapping[str, Tensor],
    decoding: Decoding,
    prefixes: Sequence[Sequence[int]] | None = None,
    n_best: int = 1,
    numbers: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for each row of one batch, best first.

    sources: ids (B, S) by the encoders' keys, ending in eos, padded on the right; of a story (B, N, W). decoding: a
    decoder's name with its settings, as a frozen recipe has it. prefixes: ids with which each row's answer must begin.
    numbers: what tells the rows apart when sampling. A model without encoders needs `prefixes`, one for each row; they
    may be empty.
    Where a model makes room for its answer, each row is asked at each size, side by side, and the best are kept.
    Raises RunError where the models cannot vote together, where the decoder has no n answers, and where `viterbi` is to
    search with a decoder that remembers more than the last token.
    """
    rows = len(next(iter(sources.values()))) if sources else len(prefixes or ())
    prefixes = prefixes or [()] * rows
    lengths = {key: (ids != PAD).flatten(1).sum(1).tolist() for key, ids in sources.items()}
    asked = length_queries(models, lengths, decoding, prefixes)
    chosen = torch.tensor([each.row for each in asked], dtype=torch.long, device=models[0].device)
    batch = {key: ids[chosen] for key, ids in sources.items()} if len(asked) > rows else sources
    found = decode_queries(models, batch, decoding, prefixes, n_best, numbers or range(rows), asked)
    return best_over_lengths(asked, found, n_best)


def length_queries(
    models: Sequence[EncoderDecoder], lengths: Lengths, decoding: Decoding, prefixes: Sequence[Sequence[int]]
) -> list[LengthQuery]:
    """What is asked of the models: each row, where their answers have sizes at each size. Raises RunError."""
    check_same_kind(models)
    ((name, settings),) = decoding.items()
    taken = {**(DECODERS[name].__kwdefaults__ or {}), **settings}
    sources = [max((length[row] for length in lengths.values()), default=0) for row in range(len(prefixes))]
    limits = [token_limit(each, taken["max_length"], taken["max_ratio"]) for each in sources]
    return candidate_lengths(models, lengths, prefixes, limits)


def decode_queries(
    models: Sequence[EncoderDecoder],
    batch: Mapping[str, Tensor],
    decoding: Decoding,
    prefixes: Sequence[Sequence[int]],
    n_best: int,
    numbers: Sequence[int],
    asked: Sequence[LengthQuery],
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each question. batch: their sources; prefixes, numbers: those of all rows."""
    ((name, settings),) = decoding.items()
    begun = [prefixes[each.row] for each in asked]
    told = [numbers[each.row] for each in asked]
    search = Search(models, batch, begun, n_best, told, length_constraint(asked, begun, models[0].device))
    with evaluation_mode(models):
        return DECODERS[name](search, **settings)


def best_over_lengths(
    asked: Sequence[LengthQuery], found: Sequence[list[Hypothesis]], n_best: int
) -> list[list[Hypothesis]]:
    """The n best of each row's hypotheses of all sizes: what ended before what was cut, each answer at one size."""
    if not any(each.size for each in asked):
        return list(found)
    rows: dict[int, list[tuple[int, Hypothesis]]] = {}
    for question, answers in zip(asked, found, strict=True):
        rows.setdefault(question.row, []).extend((question.size, each) for each in answers)
    best = []
    for row in range(len(rows)):
        ranked = sorted(rows[row], key=lambda each: (not each[1].ended, -each[1].normalised))
        first: dict[tuple[int, ...], int] = {}
        kept = [each for size, each in ranked if first.setdefault(tuple(each.ids), size) == size]
        best.append(kept[:n_best])
    return best


@contextmanager
def evaluation_mode(models: Sequence[EncoderDecoder]) -> Iterator[None]:
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
    sources: Mapping[str, Sequence[SourceIds]],
    decoding: Decoding,
    prefixes: Sequence[Sequence[int]] | None = None,
    n_best: int = 1,
    numbers: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for any number of sequences, in their order; decoded in batches of similar length.

    sources: rows of ids without eos, by the encoders' keys; stories (sentences, words). The rest as in `decode`.
    """
    count = len(next(iter(sources.values()))) if sources else len(prefixes or ())
    prefixes, numbers = prefixes or [()] * count, numbers or range(count)
    lengths = {key: [*map(num_positions, rows)] for key, rows in sources.items()}
    asked = length_queries(models, lengths, decoding, prefixes)
    long = [max((each.size, 1, *(length[each.row] for length in lengths.values()))) for each in asked]
    device = models[0].device
    found: list[list[Hypothesis]] = [[]] * len(asked)
    for places in batches(long, max(n_best, hypotheses_per_row(models, decoding))):
        part = [asked[at] for at in places]
        batch = {key: source_tensor([rows[each.row] for each in part], device) for key, rows in sources.items()}
        answers = decode_queries(models, batch, decoding, prefixes, n_best, numbers, part)
        for at, answer in zip(places, answers, strict=True):
            found[at] = answer
    return best_over_lengths(asked, found, n_best)


def hypotheses_per_row(models: Sequence[EncoderDecoder], decoding: Decoding) -> int:
    """How many hypotheses a decoder has of each row."""
    ((name, settings),) = decoding.items()
    if name == "viterbi" and any(model.embedding is not None for model in models):
        return models[0].vocabulary
    found: int = settings.get("size", 1)
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


def is_story(row: SourceIds) -> bool:
    """Return whether a source is a story: rows of sentences, padded to one number of words."""
    return len(row) > 0 and isinstance(row[0], Sized)


def num_positions(row: SourceIds) -> int:
    """How many positions a source has alone, eos counted; a story its sentences times their room."""
    return torch.as_tensor(row).numel() if is_story(row) else len(row) + 1


def source_tensor(rows: Sequence[SourceIds], device: torch.device) -> Tensor:
    """What an encoder reads of these sources: (B, S), ending in eos; of stories (B, N, W)."""
    if not is_story(rows[0]):
        return pad([[*row, EOS] for row in rows], device)
    stories = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(stories, batch_first=True, padding_value=PAD).to(device)


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of ids as one tensor, padded on the right. -> (B, S)"""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
