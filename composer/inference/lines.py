"""Lines of text as ids, and measures of given targets: losses and log-probabilities."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from blocks.core.contract import State
from composer.data.collate import Batch, BatchLoader
from composer.data.columns import NumberedLines
from composer.data.encoding import MAX_TOKENS, encode_pairs, story_faults
from composer.data.feature_files import encode_features, read_by
from composer.data.ids import Encoded, Ids
from composer.data.pairs import TARGET, Pairs
from composer.data.sampler import BatchSlice, EvalBatchSampler
from composer.data.stories import encode_side, story_shape
from composer.data.tables import SURROGATE
from composer.data.tokenizer import Tokenizers
from composer.data.windows import measured_lines
from composer.errors import DataError, Fault, RunError, RunFailed
from composer.formatting import count_noun, strip_control_characters
from composer.inference.decode import SourceIds, evaluation_mode
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.features import feature_settings
from composer.model.special_tokens import EOS, PAD, SPECIAL_TOKENS
from composer.model.weights import is_out_of_memory
from composer.recipe.recipe import Recipe
from composer.text_lines import is_blank

Line: TypeAlias = tuple[str, ...]
"""A text for each encoder, in the recipe's order; without encoders the beginning of a text."""
GivenLine: TypeAlias = "str | Path | Sequence[str | Path]"
"""A line in Python: its text or the path of a file; for several encoders a tuple of these, or texts
with tabs between, as on the command line.
"""
LINES = "<lines>"
"""The name of lines without a file in faults."""
POSITIONS = 2048
"""Target positions measured at once."""


class Score(NamedTuple):
    """The log-probabilities of a target's tokens in nats, eos last, and their sum `total`.

    With CTC beside a decoder the sum differs from the score of a search: only here are the two
    normalised together at each token (`JointModel`).
    """

    total: float
    tokens: list[str]
    log_probabilities: list[float]


def score_targets(
    recipe: Recipe, model: EncoderDecoder, lines: Encoded, tokenizers: Tokenizers
) -> list[Score]:
    """Score every target as `evaluate` measures a text of this line alone."""
    rows, read = measured_lines(recipe, lines), dict[int, tuple[list[int], list[float]]]()
    with evaluation_mode([model]):
        for batch, measures in measure_targets([model], rows):
            log_p, real = -measures["loss"], batch["target_out"] != PAD  # (B, T) each
            for at, row in enumerate(batch["rows"].tolist()):
                read[row] = batch["target_out"][at][real[at]].tolist(), log_p[at][real[at]].tolist()
    ids, values = [list[int]() for _ in lines.lines], [list[float]() for _ in lines.lines]
    for row, line in enumerate(rows.originals.tolist()):
        ids[line] += read[row][0]
        values[line] += read[row][1]
    scores: list[Score] = []
    for tokens, log_probabilities in zip(ids, values, strict=True):
        texts = tokenizers.decode_pieces(TARGET, [[token] for token in tokens[:-1]])
        scores.append(
            Score(sum(log_probabilities), [*texts, SPECIAL_TOKENS[EOS]], log_probabilities)
        )
    return scores


def measure_targets(
    models: Sequence[EncoderDecoder], encoded: Encoded, order: Sampler[BatchSlice] | None = None
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Yield the batches of all pairs, on the models' device, with their `OutputHead.measure`.

    models: One, or an ensemble, whose probabilities are their mean. order: That of the batches,
    which may carry a state from one to the next; by default batches of similar lengths.
    """
    states: list[State | None] = [None] * len(models)
    for batch in BatchLoader(
        encoded, order or EvalBatchSampler(encoded, tokens_per_batch=POSITIONS)
    ):
        moved = to_device(batch, models[0].device)
        read, target = moved["target_in"], moved["target_out"]
        outputs: list[Tensor] = []
        for at, model in enumerate(models):
            if batch["window"] < 0:
                outputs.append(model(moved["sources"], read, answer=target))
            else:
                output, states[at] = model.step(
                    read, states[at] if batch["window"] else None, {}, answer=target
                )
                outputs.append(output)
        yield moved, measure_votes(models, outputs, target)


def measure_votes(
    models: Sequence[EncoderDecoder], outputs: Sequence[Tensor], target: Tensor
) -> dict[str, Tensor]:
    """Measure the outputs of one model, or the mean probabilities of several.

    outputs: Of each model, logits (B, T, V) or costs (B, T); target: (B, T) -> (B, T) each. Where a
    model has costs alone, the loss is all that is known of the ensemble.
    """
    if len(models) == 1:
        return models[0].output.measure(outputs[0], target)
    if all(logits.ndim > target.ndim for logits in outputs):
        votes = torch.stack(
            [logits.log_softmax(-1, torch.float32) for logits in outputs]
        )  # (models, B, T, V)
        return models[0].output.measure(votes.logsumexp(0) - math.log(len(models)), target)
    pairs = zip(models, outputs, strict=True)
    losses = torch.stack(
        [model.output.measure(output, target)["loss"].float() for model, output in pairs]
    )
    return {"loss": math.log(len(models)) - (-losses).logsumexp(0)}


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with the ids of all sides on a device."""
    sources = {side: ids.to(device) for side, ids in batch["sources"].items()}
    targets = {
        "target_in": batch["target_in"].to(device),
        "target_out": batch["target_out"].to(device),
    }
    return cast("Batch", {**batch, "sources": sources, **targets})


def check_lines(
    recipe: Recipe,
    lines: Sequence[GivenLine],
    paired: Sequence[str] | None = None,
    what: str = "",
    origin: str = LINES,
) -> tuple[list[Line], list[str] | None]:
    """Check lines, and further texts of each; a path stands for the file that is read.

    Returns the texts of each line, and the further ones.

    paired: A further text of each line, called `what` in errors.

    Raises TypeError for a text in place of a list, RunError if the further texts are not as many as
    the lines or a line is no text, and DataError, with `origin` as its file, for a line whose texts
    are not as many as the encoders.
    """
    if isinstance(lines, str | Path) or isinstance(paired, str):
        raise TypeError("lines are a list of texts: write `[line]`")
    if paired is not None and len(lines) != len(paired):
        counts = f"{count_noun(len(paired), 'text')} for {count_noun(len(lines), 'line')}"
        raise RunError.of(f"`{what}` has {counts}", 'give every line one; it may be ""')
    checked = [
        line_texts(recipe, line, number, origin) for number, line in enumerate(lines, start=1)
    ]
    for text in paired or ():
        check_text(recipe, text, text)
    return checked, None if paired is None else [*paired]


def line_texts(recipe: Recipe, line: GivenLine, number: int, origin: str) -> Line:
    """Return the texts of a line that Python gives. Raises as `check_lines`."""
    sides = recipe.sources
    if isinstance(line, str) and len(sides) > 1:
        return split_source(line, sides, number, origin)
    texts: list[Any] = [*line] if isinstance(line, tuple | list) else [line]
    if len(texts) != max(1, len(sides)):
        fix = "give it a text for each, in this order" if len(sides) > 1 else "give it one text"
        raise text_count_error(len(texts), sides, number, origin, fix)
    columns = [feature_settings(recipe.data, side) for side in sides] or [None]
    read = []
    for text, column in zip(texts, columns, strict=True):
        is_file = column is not None and isinstance(text, Path)
        read.append(str(text) if is_file else text)
        check_text(recipe, read[-1], line)
    return tuple(read)


def check_text(recipe: Recipe, text: object, line: object) -> None:
    """Raise RunError if a text of a line is no string, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise no_text(recipe, line)
    if half := SURROGATE.search(text):
        before = text[max(0, half.start() - 30) : half.start()]
        message = f"a text has an unpaired surrogate after `{before}`, so it is no UTF-8"
        raise RunError.of(message, "do not cut texts between the bytes of a character")


def no_text(recipe: Recipe, value: object) -> RunError:
    """Return the error of a value that is no string."""
    sides = recipe.sources
    reads_files = any(feature_settings(recipe.data, side) for side in sides)
    fix = "write texts, or paths of files" if reads_files else "write texts"
    fix = f"{fix}; of several encoders a tuple of them for each line" if len(sides) > 1 else fix
    shown = shorten(repr(value), 60, placeholder="...")
    return RunError.of(f"expected a string, got `{shown}`", fix)


def encode_targets(
    recipe: Recipe,
    tokenizers: Tokenizers,
    lines: Sequence[GivenLine],
    targets: Sequence[str] | None,
) -> Encoded:
    """Return the ids of lines and their targets; an empty one has the prefix of its side.

    Raises RunError and DataError.
    """
    sides = recipe.sources
    if not sides and targets is not None:
        raise RunError.of(
            "a model without encoders reads no sources", "give it the targets alone, as `lines`"
        )
    read, targets = check_lines(recipe, lines, (targets or ()) if sides else None, "targets")
    texts, _ = encode_lines(recipe, tokenizers, dict(enumerate(read, start=1)))
    answers = [line[0] for line in read] if targets is None else targets
    encoded = encode_pairs(recipe, Pairs({**texts, TARGET: answers}), tokenizers)
    if not (begun := tokenizers.beginning(TARGET)):
        return encoded
    rows = [[*encoded.target[row]] or begun for row in range(len(encoded))]
    return replace(encoded, target=Ids.of([rows], tokenizers.sizes[TARGET]))


def split_source(line: str, sides: Sequence[str], number: int, origin: str) -> Line:
    """Split a line of the command line into the texts of the encoders; a blank line has empty ones.

    Raises DataError.
    """
    if is_blank(line):
        return ("",) * max(1, len(sides))
    return split_line(line, sides, number, origin)


def split_line(line: str, sides: Sequence[str], number: int, origin: str) -> Line:
    """Return the texts of a line that has tabs between several. Raises DataError."""
    texts = tuple(line.split("\t")) if len(sides) > 1 else (line,)
    if len(texts) != max(1, len(sides)):
        raise text_count_error(
            len(texts), sides, number, origin, "put a tab between the texts, in this order", line
        )
    return texts


def text_count_error(
    count: int, sides: Sequence[str], number: int, origin: str, fix: str, excerpt: str = ""
) -> DataError:
    """Return the error of a line whose texts are not as many as the encoders."""
    reads = f"{len(sides)}: {', '.join(sides)}" if len(sides) > 1 else "one"
    message = f"this line has {count_noun(count, 'text')}, and the model reads {reads}"
    return DataError([Fault(origin, number, 1, "columns", "", message, fix, excerpt[:200])])


def encode_lines(
    recipe: Recipe, tokenizers: Tokenizers, lines: Mapping[int, Line], origin: str = LINES
) -> tuple[dict[str, list[str]], dict[str, list[SourceIds]]]:
    """Return the texts and the ids of each side of lines, given by their numbers. Raises DataError.

    `origin` is the file that faults name, of a story that is not one.
    """
    texts = {}
    for column, side in enumerate(recipe.sources):
        texts[side] = [line[column] for line in lines.values()]
    numbered = {side: NumberedLines(own, [*lines]) for side, own in texts.items()}
    if faults := [*story_faults(recipe, numbered, origin)]:
        raise DataError(faults)
    ids: dict[str, list[SourceIds]] = {}
    for side, own in numbered.items():
        if settings := feature_settings(recipe.data, side):
            features = encode_features(own, settings, origin)
            ids[side] = [features[row] for row in range(len(features))]
        else:
            ids[side] = encode_side(recipe, tokenizers, side, own)
    return texts, ids


def source_form(recipe: Recipe, side: str) -> object:
    """Return the settings on which the reading of a side depends, beside its tokenizer."""
    if settings := feature_settings(recipe.data, side):
        return read_by(settings)
    return story_shape(recipe, side)


def check_positions(most: int | None, rows: Mapping[int, Sequence[int]], origin: str) -> None:
    """Raise DataError for the first text that leaves a language model no position to continue it.

    most: The positions of the model, the first of which is that of bos; None without a limit. rows:
    Ids of texts, by the numbers of their lines in `origin`.
    """
    for number, ids in rows.items():
        if most is not None and len(ids) >= most:
            message = f"this line has {len(ids):,} tokens"
            message += f", and this model reads {most - 1:,} at most"
            fix = "give it the end of the text alone"
            raise DataError([Fault(origin, number, 1, "positions", "", message, fix)])


def cut_line(ids: SourceIds, place: str, what: str = "this line") -> SourceIds:
    """Return the first MAX_TOKENS tokens of a line, and say on stderr if there were more."""
    if len(ids) > MAX_TOKENS:
        note = (
            f"{place}: {what} has {len(ids):,} tokens, and only its first {MAX_TOKENS:,} are read;"
            " split it"
        )
        write_note(note)
    return ids[:MAX_TOKENS]


@contextmanager
def oom_as_run_failed(sources: Iterable[SourceIds]) -> Iterator[None]:
    """Turn an out-of-memory error into a RunFailed that names the longest line."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        longest = max(map(np.size, sources), default=0)
        message = f"out of memory; the longest of these lines has {longest:,} tokens"
        raise RunFailed.of(message, "split long lines, or use a smaller beam") from error


def write_note(text: str) -> None:
    """Write a line to stderr for the person at the terminal, unless nobody reads it any more."""
    with suppress(OSError):
        sys.stderr.write(f"{strip_control_characters(text)}\n")
        sys.stderr.flush()
