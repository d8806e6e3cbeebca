"""Decode sequences in batches of similar length, with one model or an ensemble.

Every decoder drives every model through the same three calls, `encode`, `start` and `step`, and
moves rows of states with the one `select`. A sequence of n tokens costs n steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from composer.errors import RunError
from composer.inference.decoders.search import Hypothesis, Options, RowBatch, Search
from composer.inference.freed_memory import keep_freed_memory
from composer.inference.target_lengths import (
    LengthQuery,
    answer_sizes,
    length_constraint,
    target_ratios,
)
from composer.model.encoder_decoder import EncoderDecoder, has_state
from composer.model.special_tokens import EOS, PAD
from composer.recipe.choices import Decoder

SourceIds: TypeAlias = Sequence[int] | np.ndarray | Tensor
"""Ids of a source, without eos; of a story (sentences, words)."""

MAX_ROWS = 64
"""Sequences decoded at once, each size of an answer counted; more gain little on a CPU."""
MAX_HYPOTHESES = 1024
"""Hypotheses decoded at once, where one sequence has several."""
MAX_TOKENS = 8192
"""Positions of sources or prefixes read at once, with padding and the room for an answer."""


@dataclass(frozen=True)
class Row:
    """A sequence to decode.

    sources: Its sources by the encoders' keys; of a story (sentences, words), padded on the right.
    prefix: Ids with which its answer must begin; without encoders the prompt, which may be empty.
    number: Its number, on which the random numbers of sampling depend.
    """

    sources: Mapping[str, SourceIds] = field(default_factory=dict)
    prefix: Sequence[int] = ()
    number: int = 0

    def source_lengths(self) -> dict[str, int]:
        """Return the positions of each source, see `num_positions`."""
        return {key: num_positions(source) for key, source in self.sources.items()}


def make_rows(
    sources: Mapping[str, Sequence[SourceIds]],
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
) -> list[Row]:
    """Return rows of columns of sources, and their prefixes; numbered from 0 without `numbers`."""
    counts = [len(column) for column in sources.values()]
    count = counts[0] if counts else len(prefixes or ())
    prefixes, numbers = prefixes or [()] * count, numbers or range(count)
    rows = []
    for at in range(count):
        own = {key: column[at] for key, column in sources.items()}
        rows.append(Row(own, prefixes[at], numbers[at]))
    return rows


def decode_all(
    models: Sequence[EncoderDecoder],
    rows: Sequence[Row],
    decoding: Decoder,
    options: Options | None = None,
    on_batch: Callable[[float], None] = lambda share: None,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each row, best first.

    If a model allocates positions for its answer, each row is decoded at each possible length.

    Args:
        models: One model, or an ensemble of models that read and write the same tokens.
        rows: The sequences to decode.
        decoding: A decoding method, with its settings.
        options: Options that do not depend on the method.
        on_batch: Called after each batch with the share of the sequences that is decoded.

    Raises:
        RunError: If the method does not suit the models, or has no n answers.
    """
    keep_freed_memory()
    options = options or Options()
    drafts = [options.draft.model] if options.draft else []
    queries = length_queries(models, rows, decoding)
    results: list[list[Hypothesis]] = [[]] * len(queries)
    done = 0
    with evaluation_mode([*models, *drafts]):
        for places in query_batches(models, rows, queries, decoding, options):
            batch = row_batch(rows, [queries[place] for place in places], models[0].device)
            answers = search_with(decoding, Search(models, batch, options))
            for place, hypotheses in zip(places, answers, strict=True):
                results[place] = hypotheses
            done += len(places)
            on_batch(done / len(queries))
    return best_over_lengths(queries, results, options.n_best)


def length_queries(
    models: Sequence[EncoderDecoder], rows: Sequence[Row], decoding: Decoder
) -> list[LengthQuery]:
    """Return each row at each answer length that models and decoder allow; at least one a row."""
    ratios = target_ratios(models)
    if not ratios:
        return [LengthQuery(place) for place in range(len(rows))]
    queries = []
    for place, row in enumerate(rows):
        lengths = row.source_lengths()
        own = min(lengths[key] for key, _ in ratios)
        sizes = answer_sizes(ratios, lengths, len(row.prefix), decoding)
        queries += [LengthQuery(place, size, own) for size in sizes]
    return queries


def query_batches(
    models: Sequence[EncoderDecoder],
    rows: Sequence[Row],
    queries: Sequence[LengthQuery],
    decoding: Decoder,
    options: Options,
) -> list[list[int]]:
    """Group the places of queries into batches of similar length; a draft takes one at a time."""
    if options.draft is not None:
        return [[place] for place in range(len(queries))]
    longest = [max([len(row.prefix) + 1, *row.source_lengths().values()]) for row in rows]
    lengths = [max(query.size, longest[query.row]) for query in queries]
    return batches(lengths, max(options.n_best, decoding.num_hypotheses(models)))


def batches(lengths: Sequence[int], hypotheses: int = 1) -> list[list[int]]:
    """Group rows into batches, longest first; each row counts `hypotheses` times."""
    results: list[list[int]] = []
    most, longest = min(MAX_ROWS, MAX_HYPOTHESES // hypotheses), 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not results or len(results[-1]) >= max(1, min(most, MAX_TOKENS // longest)):
            results.append([])
            longest = lengths[row]
        results[-1].append(row)
    return results


def row_batch(
    rows: Sequence[Row], queries: Sequence[LengthQuery], device: torch.device
) -> RowBatch:
    """Return the rows of these queries as a batch on a device."""
    chosen = [rows[query.row] for query in queries]
    prefixes = [row.prefix for row in chosen]
    sources = {}
    for key in chosen[0].sources:
        sources[key] = source_tensor([row.sources[key] for row in chosen], device)
    numbers = [row.number for row in chosen]
    return RowBatch(sources, prefixes, numbers, length_constraint(queries, prefixes, device))


def search_with(decoding: Decoder, search: Search) -> list[list[Hypothesis]]:
    """Search as a method does. Raises RunError if the method does not suit the models."""
    n_best = search.options.n_best
    if decoding.one_answer and n_best > 1:
        message = f"`{decoding.word}` finds one answer, and {n_best} are requested"
        fix = f"use a beam: `--beam {n_best}` (in Python `beam={n_best}`)"
        raise RunError.of(message, fix)
    if decoding.first_order and any(map(has_state, search.models)):
        fix = "use a beam: `decoding.beam.size=5`, or `--beam 5`"
        raise RunError.of(decoding.state_problem, fix)
    return decoding.decode(search)


def best_over_lengths(
    queries: Sequence[LengthQuery], results: Sequence[list[Hypothesis]], n_best: int
) -> list[list[Hypothesis]]:
    """Return the n best of each row's hypotheses over all lengths: finished before truncated ones.

    An answer that is found at several lengths counts at its best one.
    """
    if not any(query.size for query in queries):
        return list(results)
    rows: dict[int, list[tuple[int, Hypothesis]]] = {}
    for query, answers in zip(queries, results, strict=True):
        rows.setdefault(query.row, []).extend((query.size, answer) for answer in answers)
    best = []
    for row in range(len(rows)):
        ranked = sorted(rows[row], key=lambda pair: (not pair[1].ended, -pair[1].normalised))
        best_size: dict[tuple[int, ...], int] = {}
        unique = []
        for size, answer in ranked:
            if best_size.setdefault(tuple(answer.ids), size) == size:
                unique.append(answer)
        best.append(unique[:n_best])
    return best


@contextmanager
def evaluation_mode(models: Sequence[EncoderDecoder], for_training: bool = False) -> Iterator[None]:
    """Disable gradients and dropout; afterwards put the models back into their modes.

    for_training: True if the results may become inputs of another model that trains.
    """
    training = [model for model in models if model.training]
    for model in training:
        model.eval()
    try:
        with torch.no_grad() if for_training else torch.inference_mode():
            yield
    finally:
        for model in training:
            model.train()


def is_story(row: SourceIds) -> bool:
    """True for a story: rows of sentences, padded to one number of words."""
    return len(row) > 0 and isinstance(row[0], Sized)


def num_positions(row: SourceIds) -> int:
    """Return the positions of a source with eos; of a story its sentences times padded width."""
    if isinstance(row, Tensor) and row.is_floating_point():
        return row[..., 0].numel()
    return torch.as_tensor(row).numel() if is_story(row) else len(row) + 1


def source_tensor(rows: Sequence[SourceIds], device: torch.device) -> Tensor:
    """Return the input of an encoder, padded on the right.

    -> (B, S) ending in eos; of stories (B, N, W); of features (B, S, ..., F)
    """
    if isinstance(rows[0], Tensor) and rows[0].is_floating_point():
        features = [torch.as_tensor(row) for row in rows]
        return pad_sequence(features, batch_first=True, padding_value=torch.nan).to(device)
    if not is_story(rows[0]):
        rows = [[*row, EOS] for row in rows]
    tensors = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=PAD).to(device)
