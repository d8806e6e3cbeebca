"""Decoding: from a model, or several that vote, to the best sequences it can write.

Every decoder drives every model through the same three calls, `encode`, `start` and `step`, and
moves rows of states with the one `select`. A sequence of n tokens costs n steps.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from composer.errors import RunError
from composer.inference import decoders
from composer.inference.drafts import Draft
from composer.inference.target_lengths import LengthQuery, Lengths, length_constraint, token_limit
from composer.model.encoder_decoder import ROUNDING, EncoderDecoder, has_state
from composer.model.special_tokens import EOS, PAD
from composer.recipe.choices import Decoder

SourceIds: TypeAlias = Sequence[int] | np.ndarray | Tensor
"""The ids of a source without eos, a sequence; of a story its sentences, an array or lists
(sentences, words).
"""

MAX_ROWS = 64
"""Sequences that are decoded at once, each size of an answer counted; more gain little on a CPU."""
MAX_HYPOTHESES = 1024
"""Hypotheses that are decoded at once, where one sequence has several."""
MAX_TOKENS = 8192
"""Positions of sources or of prefixes that are read at once, padding and the room for an answer
included.
"""


def decode_all(
    models: Sequence[EncoderDecoder],
    sources: Mapping[str, Sequence[SourceIds]],
    decoding: Decoder,
    prefixes: Sequence[Sequence[int]] | None = None,
    n_best: int = 1,
    numbers: Sequence[int] | None = None,
    to_texts: decoders.ToTexts = decoders.join_ids,
    on_batch: Callable[[float], None] = lambda share: None,
    on_token: Callable[[int], None] | None = None,
    draft: Draft | None = None,
) -> list[list[decoders.Hypothesis]]:
    """Return the n best hypotheses of each sequence, best first. Decode in batches of similar
    length.

    Where a model makes room for its answer, decode each sequence at each candidate length, and
    return the best.

    Args:
        models: One model, or an ensemble of models that read and write the same tokens.
        sources: Rows of ids without eos, by the encoders' keys; of a story (sentences, words),
            padded on the right.
        decoding: A way of decoding, with its settings.
        prefixes: Ids with which each answer must begin; a model without encoders needs them, and
            they may be empty.
        n_best: Hypotheses of each sequence.
        numbers: Each sequence's number, which the random numbers of sampling depend on.
        on_batch: Called after each batch with the share of the sequences that is decoded.
        on_token: Called with each token of a single sequence as it comes; `greedy` and `sample` do.
        draft: What proposes tokens, of one sequence after the other, as `check_draft` allows; it
            counts the accepted.
        to_texts: From the ids of answers to their texts, which `mbr` compares; without it, ids as
            words.

    Raises:
        RunError: If the method does not suit the models, or has no n answers.
    """
    keep_freed_memory()
    count = len(next(iter(sources.values()))) if sources else len(prefixes or ())
    prefixes, numbers = prefixes or [()] * count, numbers or range(count)
    lengths = {key: [*map(num_positions, rows)] for key, rows in sources.items()}
    queries = length_queries(models, lengths, decoding, prefixes)
    longest = [
        max(
            (
                query.size,
                len(prefixes[query.row]) + 1,
                *(length[query.row] for length in lengths.values()),
            )
        )
        for query in queries
    ]
    device, hypotheses = models[0].device, max(n_best, decoding.num_hypotheses(models))
    results: list[list[decoders.Hypothesis]] = [[]] * len(queries)
    proposing = [] if draft is None else [draft.model]
    with evaluation_mode([*models, *proposing]):
        done = 0
        for places in (
            batches(longest, hypotheses) if draft is None else [[at] for at in range(len(queries))]
        ):
            part = [queries[at] for at in places]
            batch = {
                key: source_tensor([rows[query.row] for query in part], device)
                for key, rows in sources.items()
            }
            begun = [prefixes[query.row] for query in part]
            sizes = length_constraint(part, begun, device)
            places_of = [numbers[query.row] for query in part]
            search = decoders.Search(
                models,
                batch,
                begun,
                n_best,
                places_of,
                sizes,
                to_texts,
                on_token=on_token,
                draft=draft,
            )
            for at, answers in zip(places, search_with(decoding, search), strict=True):
                results[at] = answers
            done += len(places)
            on_batch(done / len(queries))
    return best_over_lengths(queries, results, n_best)


def search_with(decoding: Decoder, search: decoders.Search) -> list[list[decoders.Hypothesis]]:
    """Return the n best hypotheses of each row. Raises RunError if the way of decoding does not
    suit the models.
    """
    if decoding.one_answer and search.n_best > 1:
        message = f"`{decoding.word}` finds one answer, and {search.n_best} are requested"
        raise RunError.of(
            message, f"use a beam: `--beam {search.n_best}` (in Python `beam={search.n_best}`)"
        )
    if decoding.first_order and any(map(has_state, search.models)):
        raise RunError.of(
            decoding.state_problem, "use a beam: `decoding.beam.size=5`, or `--beam 5`"
        )
    return decoding.decode(search)


@functools.cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: the next step asks for it again. Does nothing on other
    systems.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(-3, (1 << 31) - 1)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        mallopt(-2, 64 << 20)  # M_TOP_PAD


def trim_if_doubled(before: int) -> int:
    """Give freed memory back if this process has twice as many bytes in memory as before; return
    what it had first.

    Batches of many shapes leave holes that add up. before: What the last call returned; 0 at first,
    and after a trim.
    """
    now = resident_memory()
    if not before or now <= 2 * before:
        return before or now
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return 0


def resident_memory() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    return 0


def length_queries(
    models: Sequence[EncoderDecoder],
    lengths: Lengths,
    decoding: Decoder,
    prefixes: Sequence[Sequence[int]],
) -> list[LengthQuery]:
    """Return each row at each length that the models and the decoder's limits allow; at least one a
    row.
    """
    readers = [
        reader for model in models if model.max_target_ratio for reader in model.readers().items()
    ]
    ratios = [
        (encoder.max_target_ratio, lengths[key])
        for key, encoder in readers
        if encoder.max_target_ratio
    ]
    if not ratios:
        return [LengthQuery(row, 0, 0) for row in range(len(prefixes))]
    queries = []
    for row, prefix in enumerate(prefixes):
        source = max(length[row] for length in lengths.values())
        limit = token_limit(source, decoding.max_length, decoding.max_ratio)
        own = min(length[row] for _, length in ratios)
        first = max(own, len(prefix) + 1)
        most = max(math.ceil(ratio * length[row] - ROUNDING) for ratio, length in ratios)
        last = max(first, min(most, len(prefix) + limit))
        queries += [LengthQuery(row, size, own) for size in range(first, last + 1)]
    return queries


def best_over_lengths(
    queries: Sequence[LengthQuery], results: Sequence[list[decoders.Hypothesis]], n_best: int
) -> list[list[decoders.Hypothesis]]:
    """Return the n best of each row's hypotheses over all lengths: finished before truncated ones."""
    if not any(query.size for query in queries):
        return list(results)
    rows: dict[int, list[tuple[int, decoders.Hypothesis]]] = {}
    for query, answers in zip(queries, results, strict=True):
        rows.setdefault(query.row, []).extend((query.size, answer) for answer in answers)
    best = []
    for row in range(len(rows)):
        ranked = sorted(rows[row], key=lambda pair: (not pair[1].ended, -pair[1].normalised))
        first: dict[tuple[int, ...], int] = {}
        unique = [
            answer for size, answer in ranked if first.setdefault(tuple(answer.ids), size) == size
        ]
        best.append(unique[:n_best])
    return best


@contextmanager
def evaluation_mode(models: Sequence[EncoderDecoder], for_training: bool = False) -> Iterator[None]:
    """Disable gradients and dropout; afterwards put the models back into their modes.

    for_training: Whether what is computed may become the input of another model that trains.
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


def is_story(row: SourceIds) -> bool:
    """Return whether a source is a story: rows of sentences, padded to one number of words."""
    return len(row) > 0 and isinstance(row[0], Sized)


def num_positions(row: SourceIds) -> int:
    """Return the positions of a source, eos counted; of a story its sentences times their padded
    width.
    """
    if isinstance(row, Tensor) and row.is_floating_point():
        return row[..., 0].numel()
    return torch.as_tensor(row).numel() if is_story(row) else len(row) + 1


def source_tensor(rows: Sequence[SourceIds], device: torch.device) -> Tensor:
    """Return the input of an encoder: (B, S), ending in eos; of stories (B, N, W); of features (B,
    S, ..., F).

    Padded on the right.
    """
    if isinstance(rows[0], Tensor) and rows[0].is_floating_point():
        features = [torch.as_tensor(row) for row in rows]
        return pad_sequence(features, batch_first=True, padding_value=torch.nan).to(device)
    has_stories = is_story(rows[0])
    tensors = [
        torch.as_tensor(row if has_stories else [*row, EOS], dtype=torch.long) for row in rows
    ]
    return pad_sequence(tensors, batch_first=True, padding_value=PAD).to(device)
