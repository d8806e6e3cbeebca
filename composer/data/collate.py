"""Collation: from rows of ids to padded tensors, and the data loader."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from composer.data.encoding import Corpus, Encoded, Ids
from composer.data.sampler import BatchSlice
from composer.model.vocabulary import BOS, EOS, PAD


class Batch(TypedDict):
    """What one device sees at once. Padding is 0, on the right. B rows, T target and S source positions.

    `tokens` counts the real target tokens, eos included, of the whole global batch: a loss summed over this batch, then
    divided by it, adds up to the mean over the global batch. `part` is the share of its rows that are here, so that
    means over rows add up too. `rows` are the numbers of the pairs; -1 is a row that only keeps a device busy: all its
    `target_out` is padding.
    """

    sources: dict[str, Tensor]  # (B, S) each, ending in eos; of a story (B, N, W), sentences by words
    target_in: Tensor  # (B, T) bos and the target
    target_out: Tensor  # (B, T) the target and eos
    tokens: float
    part: float
    rows: Tensor  # (B,)
    graded: Tensor  # (B,) bool, whether a curriculum counts the row's mistakes
    facts: Tensor  # (B, F) the places in the story of what bears the answer, -1 for none; F = 0 without stories


class BatchDataset(Dataset[Batch]):
    """From a share of rows to the tensors of a batch."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __getitem__(self, share: BatchSlice) -> Batch:
        encoded = self.corpus.of_epoch(share.epoch)
        target = encoded.target
        out = pad_rows(target, share.rows, last=EOS)
        counted = share.graded is not None and share.part > 0.0
        return {
            "sources": {side: source_tensor(ids, share.rows) for side, ids in encoded.sources.items()},
            "target_in": pad_rows(target, share.rows, first=BOS),
            "target_out": out if share.part else torch.full_like(out, PAD),
            "tokens": float(share.tokens),
            "part": share.part,
            "rows": torch.from_numpy(share.rows.astype(np.int64)) if share.part else torch.full((1,), -1),
            "graded": torch.from_numpy(share.graded) if counted else torch.zeros(len(share.rows), dtype=torch.bool),
            "facts": facts_tensor(encoded, share.rows),
        }


def source_tensor(ids: Ids, rows: np.ndarray) -> Tensor:
    """What an encoder reads of these rows: (B, S), ending in eos; of stories (B, N, W)."""
    return pad_rows(ids, rows) if ids.is_story else pad_rows(ids, rows, last=EOS)


def facts_tensor(encoded: Encoded, rows: np.ndarray) -> Tensor:
    """The facts of these rows; none without stories. -> (B, F)"""
    none = np.zeros((len(rows), 0), dtype=np.int64)
    return torch.from_numpy(none if encoded.facts is None else encoded.facts[rows])


def pad_rows(ids: Ids, rows: np.ndarray, first: int | None = None, last: int | None = None) -> Tensor:
    """The ids of these rows with `first` before and `last` after each, padded on the right. -> (B, T) int64

    Stories, which have neither, get whole sentences of padding. -> (B, N, W)
    """
    starts, counts = ids.starts[rows], ids.lengths()[rows]
    before = int(first is not None)
    longest = before + int(counts.max(initial=0)) + int(last is not None)
    out = np.full((len(rows), longest, *ids.values.shape[1:]), PAD, dtype=np.int64)
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row_of = np.repeat(np.arange(len(rows)), counts)
    out[row_of, places + before] = ids.values[np.repeat(starts, counts) + places]
    if first is not None:
        out[:, 0] = first
    if last is not None:
        out[np.arange(len(rows)), before + counts] = last
    return torch.from_numpy(out)


def data_loader(corpus: Corpus, order: Sampler[BatchSlice], workers: int = 0) -> DataLoader[Batch]:
    """Batches in that order, prepared by this process or by `workers` beside it.

    The loader has its own generator: it never draws from torch's global one. Workers are forked, so that they share
    the corpus with this process.
    """
    return DataLoader(
        BatchDataset(corpus),
        sampler=order,
        batch_size=None,
        num_workers=workers,
        generator=torch.Generator(),
        persistent_workers=False,
        multiprocessing_context="fork" if workers else None,
    )
