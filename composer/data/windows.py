"""Windows of a text: rows of as many tokens, shuffled, or with state carried between them.

The text is one stream of tokens, documents one after another, each with its end. A window reads the
token before it, bos at the beginning of the text, and all its own but the last; it writes all its
own. A model of windows reads bos as the end of a document, see `EncoderDecoder`: so each document
of a text, and each that is asked for, stands after one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Sampler

from composer.data.encoding import Data
from composer.data.epochs import EpochCorpus
from composer.data.ids import Encoded, Ids, ragged_positions
from composer.data.sampler import BatchSlice, EpochRows, EpochSampler, EvalBatchSampler
from composer.model.special_tokens import BOS, EOS, PAD

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


@dataclass(frozen=True)
class Windows(Ids):
    """Rows of a stream of tokens, where ends of documents are tokens. A row may have none.

    reads: (rows,) where the reading of each window begins; tokens before its start are read, and
    not written.
    """

    reads: np.ndarray

    def keep(self, rows: np.ndarray) -> Windows:
        return replace(super().keep(rows), reads=self.reads[rows])

    def positions(self) -> np.ndarray:
        """Return the tokens that are read for each window."""
        return self.ends - self.reads

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """Return the inputs of windows: the token before, and all but the last. -> (B, T) int64"""
        reads, tokens = self.reads[rows], self._read(rows)
        first = np.where(reads > 0, self.values[np.maximum(reads, 1) - 1], BOS).astype(np.int64)
        return np.where(tokens == PAD, PAD, np.concatenate([first[:, None], tokens[:, :-1]], 1))

    def outputs(self, rows: np.ndarray) -> np.ndarray:
        """Return the tokens of each window, padded on the right, and left for context.

        -> (B, T) int64
        """
        context = (self.starts - self.reads)[rows]  # (B,)
        tokens = self._read(rows)
        return np.where(np.arange(tokens.shape[1]) < context[:, None], PAD, tokens)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        tokens = Ids(self.values, self.reads[rows], self.ends[rows]).padded(np.arange(len(rows)))
        return tokens if tokens.shape[1] else np.full((len(rows), 1), PAD, dtype=np.int64)


def cut_windows(text: Encoded, size: int, start: int = 0, context: int = 0) -> Encoded:
    """Return the text in windows of `size` tokens from `start` on, after one of those before.

    So many tokens of `context` are read before each, where there are as many.
    """
    total = len(text.target.values)
    edges = np.arange(start, total, size)
    edges = edges if start == 0 else np.concatenate([[0], edges])
    reads = np.maximum(edges - context, 0) if context else edges
    return _windows(text, edges, np.append(edges[1:], total), reads)


def _windows(text: Encoded, starts: np.ndarray, ends: np.ndarray, reads: np.ndarray) -> Encoded:
    target = Windows(text.target.values, starts, ends, reads)
    return replace(text, target=target, originals=np.arange(len(starts)))


def measured_lines(recipe: Recipe, lines: Encoded) -> Encoded:
    """Return the rows in which lines are measured, each a text; `originals` are the lines of rows.

    Of a model of windows they are those of `evaluation_order`, so that none reads more than what it
    was trained on.
    """
    if recipe.window is None or recipe.carries_state:
        return lines
    size, context = evaluation_window(recipe, recipe.window)
    ids, counts = lines.target, lines.target.lengths()  # (lines,)
    first = np.cumsum(counts + 2) - (counts + 1)  # (lines,) after bos
    positions, line_of = ragged_positions(counts)  # (tokens,) each
    values = np.full(int((counts + 2).sum()), EOS, dtype=ids.values.dtype)
    values[first - 1] = BOS
    values[first[line_of] + positions] = ids.values[np.repeat(ids.starts, counts) + positions]
    numbers, line_of = ragged_positions(-(-(counts + 1) // size))  # (windows,) each
    starts, ends = first[line_of] + size * numbers, (first + counts + 1)[line_of]
    reads = np.maximum(starts - context, first[line_of])
    target = Windows(values, starts, np.minimum(starts + size, ends), reads)
    return replace(lines, target=target, originals=line_of)


def evaluation_window(recipe: Recipe, window: int) -> tuple[int, int]:
    """Return the tokens of each window that are measured, and those read before them."""
    size = recipe.evaluation.stride or window
    return size, window - size


READ_TOKENS = 1024
"""Tokens measured at once if the state is carried; scores do not depend on it."""


def evaluation_order(
    recipe: Recipe, text: Encoded, tokens_per_batch: int, rank: int = 0, world: int = 1
) -> tuple[Encoded, Sampler[BatchSlice]]:
    """Return the rows in which pairs or a text are measured, and a device's batches of them.

    A text whose state is carried is read from its start to its end; in windows, each is read after
    `window - stride` tokens of context; else documents are rows.
    """
    if recipe.carries_state:
        rows = cut_windows(text, READ_TOKENS)
        return rows, WholeText(rows, rank)
    if recipe.window:
        size, context = evaluation_window(recipe, recipe.window)
        text = cut_windows(text, size, context=context)
    return text, EvalBatchSampler(text, tokens_per_batch=tokens_per_batch, rank=rank, world=world)


def shuffle_windows(text: Encoded, size: int, seed: int) -> EpochCorpus:
    """Return a corpus whose epochs are the windows of a text, each epoch's cut at another place."""

    def make(epoch: int) -> Encoded:
        start = int(np.random.default_rng([seed, epoch, 2]).integers(size))
        return cut_windows(text, size, min(start, len(text.target.values)))

    return EpochCorpus(make)


def file_weights(recipe: Recipe, data: Data) -> Callable[[Encoded, int], EpochRows] | None:
    """Return a function that draws the rows of an epoch by file weights; None without weights.

    A row is there as often as the file weighs in which it begins; of a fraction of a weight an
    epoch draws as many rows, one at least.
    """
    weights = data.pairs["train"].weights
    text = data.splits["train"].target
    seed = recipe.training.seed
    if weights is None:
        return None

    def choose(rows: Encoded, epoch: int) -> EpochRows:
        random = np.random.default_rng([seed, epoch, 3])
        weight = weights[
            np.searchsorted(text.ends, rows.target.starts) if recipe.window else rows.originals
        ]  # (rows,)
        times = np.floor(weight).astype(np.int64)
        for share in np.unique(weight - times):
            rest = np.flatnonzero(weight - times == share) if share else ()
            times[
                random.choice(rest, max(1, round(float(share) * len(rest))), replace=False)
                if share
                else []
            ] += 1
        return EpochRows(np.repeat(np.arange(len(weight)), times), None)

    return choose


def cut_streams(text: Encoded, count: int, size: int) -> Encoded:
    """Return a text as `count` streams of equal length, in windows of `size` tokens or fewer.

    Of W windows in a stream, row s W + t is window t of stream s.
    """
    total = len(text.target.values)
    length = -(-total // count)
    first = np.arange(count)[:, None] * length  # (S, 1)
    within = np.arange(0, length, size)  # (W,)
    starts = np.minimum(first + within, total).ravel()
    ends = np.minimum(first + np.minimum(within + size, length), total).ravel()
    return _windows(text, starts, ends, starts)


class StreamSampler(EpochSampler):
    """Yield a device's slices of a text with carried state: batch t has window t of each stream.

    Every epoch is the same. A device has the same streams in all batches, whose states it keeps;
    with accumulation, as many sets of them. rows: of `cut_streams`.
    """

    def __init__(self, rows: Encoded, streams: int, *, seed: int, accumulate: int = 1) -> None:
        super().__init__(rows, seed=seed, accumulate=accumulate)
        self.rows, self.streams = rows, streams

    def slices_in(self, epoch: int) -> int:
        return len(self.rows) // self.streams * self.accumulate

    def batches(self) -> list[np.ndarray]:
        return [*np.arange(len(self.rows)).reshape(self.streams, -1).T]  # (S,) each

    def __iter__(self) -> Iterator[BatchSlice]:
        lengths = self.rows.target.lengths()
        parts = self.world * self.accumulate
        batches = self.batches()
        epoch, done = self.epoch, self.skip
        for number in range(done, self.slices_in(epoch)):
            window, turn = divmod(number, self.accumulate)
            rows = batches[window]  # (S,)
            part = rows[turn * self.world + self.rank :: parts]
            tokens = int(lengths[rows].sum())
            yield BatchSlice(part, tokens, len(part) / len(rows), epoch, window=window, turn=turn)


class WholeText(Sampler[BatchSlice]):
    """Yield the windows of a text in order, a row each, to the first device; padding to others."""

    def __init__(self, windows: Encoded, rank: int = 0) -> None:
        self.lengths, self.rank = windows.target.lengths(), rank

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[BatchSlice]:
        part = float(self.rank == 0)
        for window, tokens in enumerate(self.lengths.tolist()):
            yield BatchSlice(np.array([window]), tokens, part, window=window)
