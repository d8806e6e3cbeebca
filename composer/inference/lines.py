"""Lines of text as ids, and what a model computes of given targets: losses and log-probabilities."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from blocks.core.contract import State
from composer.data.collate import Batch, BatchLoader
from composer.data.columns import NumberedLines
from composer.data.encoding import MAX_TOKENS, encode_pairs, story_faults
from composer.data.feature_files import READ_BY, encode_features
from composer.data.ids import Encoded
from composer.data.pairs import TARGET, Pairs
from composer.data.sampler import BatchSlice, EvalBatchSampler
from composer.data.stories import encode_side, story_shape
from composer.data.tokenizer import Tokenizers
from composer.errors import DataError, Fault, RunError, RunFailed
from composer.formatting import strip_control_characters
from composer.inference.decode import SourceIds, evaluation_mode
from composer.model.encoder_decoder import EOS, PAD, SPECIAL_TOKENS, EncoderDecoder
from composer.model.features import feature_settings
from composer.model.weights import is_out_of_memory
from composer.recipe.recipe import Recipe

LINES = "<lines>"
"""What lines are called in faults that no file has."""
POSITIONS = 2048
"""Target positions that are measured at once."""


class Score(NamedTuple):
    """The log-probabilities of a target's tokens in nats, eos last; `total` is their sum, a `Translation`'s score.

    Of CTC beside a decoder it is another: the two are normalised together at each token here, and in a search they are
    not (`JointModel`).
    """

    total: float
    tokens: list[str]
    log_probabilities: list[float]


def score_targets(model: EncoderDecoder, encoded: Encoded, tokenizers: Tokenizers) -> list[Score]:
    """Return the score of every target."""
    scores: dict[int, Score] = {}
    with evaluation_mode([model]):
        for batch, measures in measure_targets(model, encoded):
            target, log_p = batch["target_out"], -measures["loss"]  # (B, T)
            for row, ids, values in zip(batch["rows"].tolist(), target.tolist(), log_p.tolist(), strict=True):
                count = len(ids) - ids.count(PAD)
                texts = tokenizers.decode(TARGET, [[token] for token in ids[: count - 1]])
                scores[row] = Score(sum(values[:count]), [*texts, SPECIAL_TOKENS[EOS]], values[:count])
    return [scores[row] for row in range(len(encoded))]


def measure_targets(
    model: EncoderDecoder, encoded: Encoded, order: Sampler[BatchSlice] | None = None
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Yield the batches of all pairs, on the model's device, and what `OutputHead.measure` says of each.

    order: That of the batches, which may carry a state from one to the next; by default batches of similar lengths.
    """
    state: State | None = None
    for batch in BatchLoader(encoded, order or EvalBatchSampler(encoded, tokens_per_batch=POSITIONS)):
        moved = to_device(batch, model.device)
        read, target = moved["target_in"], moved["target_out"]
        if batch["window"] < 0:
            outputs = model(moved["sources"], read, answer=target)
        else:
            outputs, state = model.step(read, state if batch["window"] else None, {}, answer=target)
        yield moved, model.output.measure(outputs, target)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with the ids of all sides on a device."""
    sources = {side: ids.to(device) for side, ids in batch["sources"].items()}
    targets = {"target_in": batch["target_in"].to(device), "target_out": batch["target_out"].to(device)}
    return cast("Batch", {**batch, "sources": sources, **targets})


def check_texts(
    recipe: Recipe, lines: Sequence[str | Path], others: Sequence[str] | None = None, what: str = ""
) -> tuple[list[str], list[str] | None]:
    """Return lines and the others that each of them has as texts; a line may be a path where the model reads files.

    Raises TypeError for a text in place of a list, and RunError where not every line has one of the others, or is text.
    """
    if isinstance(lines, str | Path) or isinstance(others, str):
        raise TypeError("lines are a list of texts: write `[line]`")
    if others is not None and len(lines) != len(others):
        raise RunError.of(f"there are {len(others)} {what} for {len(lines)} lines", 'give every line one; it may be ""')
    sides = recipe.sources
    reads_files = len(sides) == 1 and feature_settings(recipe.dataset, sides[0]) is not None
    texts: list[Any] = [str(line) if reads_files and isinstance(line, Path) else line for line in lines]
    for text in (*texts, *(others or ())):
        if not isinstance(text, str):
            fix = "write texts, or paths of files" if reads_files else "write texts"
            fix = f"{fix}, with tabs between those of several encoders" if len(sides) > 1 else fix
            raise RunError.of(f"a line is `{shorten(repr(text), 60, placeholder='...')}`, which is no text", fix)
    return texts, None if others is None else [*others]


def encode_targets(
    recipe: Recipe, tokenizers: Tokenizers, lines: Sequence[str | Path], targets: Sequence[str] | None
) -> Encoded:
    """Return the ids of lines and their targets. Raises RunError and DataError."""
    sides = recipe.sources
    if not sides and targets is not None:
        raise RunError.of("a model without encoders reads no sources", "give it the targets alone, as `lines`")
    read, targets = check_texts(recipe, lines, (targets or ()) if sides else None, "targets")
    texts, _ = encode_lines(recipe, tokenizers, dict(enumerate(read, start=1)))
    return encode_pairs(recipe, Pairs({**texts, TARGET: read if targets is None else targets}), tokenizers)


def split_columns(line: str, sides: Sequence[str], number: int, origin: str) -> list[str]:
    """Return what each encoder reads of a line. Raises DataError."""
    if len(sides) <= 1:
        return [line][: len(sides)]
    results = line.split("\t")
    if len(results) != len(sides):
        texts = "1 text" if len(results) == 1 else f"{len(results)} texts"
        message = f"this line has {texts}, and the model reads {len(sides)}: {', '.join(sides)}"
        fix = "put a tab between the texts, in this order"
        raise DataError([Fault(origin, number, 1, "columns", "", message, fix, line[:200])])
    return results


def encode_lines(
    recipe: Recipe, tokenizers: Tokenizers, lines: Mapping[int, str], origin: str = LINES
) -> tuple[dict[str, list[str]], dict[str, list[SourceIds]]]:
    """Return the texts and the ids of each side of lines, given by their numbers. Raises DataError.

    `origin` is the file that faults name: a line with another number of texts, or a story that is not one.
    """
    sides = recipe.sources
    rows = [split_columns(line, sides, number, origin) for number, line in lines.items()]
    texts = {side: [row[column] for row in rows] for column, side in enumerate(sides)}
    numbered = {side: NumberedLines(column, [*lines]) for side, column in texts.items()}
    if faults := [*story_faults(recipe, numbered, origin)]:
        raise DataError(faults)
    ids: dict[str, list[SourceIds]] = {}
    for side, column in numbered.items():
        if settings := feature_settings(recipe.dataset, side):
            features = encode_features(column, settings, origin)
            ids[side] = [features[row] for row in range(len(features))]
        else:
            ids[side] = encode_side(recipe, tokenizers, side, column)
    return texts, ids


def source_form(recipe: Recipe, side: str) -> Any:
    """Return what decides beside a tokenizer what is read of a side: of files the settings, of stories the shape."""
    if settings := feature_settings(recipe.dataset, side):
        return [settings["kind"], *(settings[key] for key in READ_BY[settings["kind"]])]
    return story_shape(recipe, side)


def cut_line(ids: SourceIds, place: str, what: str = "this line") -> SourceIds:
    """Return the first MAX_TOKENS tokens of a line, and say on stderr if there were more."""
    if len(ids) > MAX_TOKENS:
        note = f"{place}: {what} has {len(ids):,} tokens, and only its first {MAX_TOKENS:,} are read; split it"
        write_note(note)
    return ids[:MAX_TOKENS]


@contextmanager
def oom_as_run_failed(ids: Mapping[str, Sequence[SourceIds]]) -> Iterator[None]:
    """Turn an out-of-memory error into a RunFailed that names the longest line."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        longest = max((np.size(row) for rows in ids.values() for row in rows), default=0)
        message = f"out of memory; the longest of these lines has {longest:,} tokens"
        raise RunFailed.of(message, "split long lines, or use a smaller beam") from error


def write_note(text: str) -> None:
    """Write a line to stderr, for the person at the terminal; without effect where nobody reads it any more."""
    with suppress(OSError):
        sys.stderr.write(f"{strip_control_characters(text)}\n")
        sys.stderr.flush()
