"""Collation: from the rows of a batch slice to padded tensors, and the data loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from blocks.core.documents import Documents, find_documents
from composer.data.ids import Corpus
from composer.data.pairs import TARGET
from composer.data.sampler import BatchSlice
from composer.data.stories import NO_FACT
from composer.data.tokenizer import Tokenizers
from composer.model.special_tokens import PAD


class Batch(TypedDict):
    """A padded batch for one device.

    Padding is 0, on the right. B rows, T target and S source positions.

    `tokens` counts the real target tokens, eos included, of the whole global batch: a loss summed
    over this batch, then divided by it, adds up to the mean over the global batch. `part` is the
    share of its rows that are here, so that means over rows add up too. `rows` are the numbers of
    the pairs; -1 is a row that only keeps a device busy: it is all padding. Packed, the B rows of a
    side stand in one, (1, sum of their lengths).
    """

    sources: dict[
        str, Tensor
    ]  # (B, S) each, ending in eos; of a story (B, N, W), sentences by words
    target_in: Tensor  # (B, T) bos and the target
    target_out: Tensor  # (B, T) the target and eos
    tokens: float
    part: float
    rows: Tensor  # (B,)
    graded: Tensor  # (B,) bool, whether a curriculum counts the row's mistakes
    # of rows that go on from a state, how many windows came before; -1 where none is carried
    window: int
    turn: int  # of the accumulation
    # (B, F) indices of the sentences that support the answer, -1 for none; F = 0 without stories
    facts: Tensor
    # where the documents of `target` and of each source are, if they are in one row
    packed: dict[str, Documents]


class BatchDataset(Dataset[Batch]):
    """Map-style dataset whose index is a batch slice, and whose item the batch."""

    def __init__(self, corpus: Corpus, packing: bool = False) -> None:
        self.corpus, self.packing = corpus, packing

    def __getitem__(self, index: BatchSlice) -> Batch:
        encoded, rows = self.corpus.of_epoch(index.epoch), index.rows
        graded = np.zeros(len(rows), dtype=bool) if index.graded is None else index.graded
        if encoded.facts is None:
            facts = np.zeros((len(rows), 0), dtype=np.int64)
        else:
            facts = encoded.facts[rows]
        batch: Batch = {
            "sources": {
                side: torch.from_numpy(ids.outputs(rows)) for side, ids in encoded.sources.items()
            },
            "target_in": torch.from_numpy(encoded.target.inputs(rows)),
            "target_out": torch.from_numpy(encoded.target.outputs(rows)),
            "tokens": float(index.tokens),
            "part": index.part,
            "rows": torch.from_numpy(rows.astype(np.int64)),
            "graded": torch.from_numpy(graded),
            "window": index.window,
            "turn": index.turn,
            "facts": torch.from_numpy(facts),
            "packed": {},
        }
        if not index.part:
            return mask_rows(batch)
        return pack_rows(batch) if self.packing else batch


def mask_rows(batch: Batch) -> Batch:
    """Return a batch without real rows, which adds nothing to a loss, a count or a score."""

    def mask(ids: Tensor) -> Tensor:
        return torch.full_like(ids, torch.nan if ids.is_floating_point() else PAD)

    return {
        **batch,
        "sources": {side: mask(ids) for side, ids in batch["sources"].items()},
        "target_in": mask(batch["target_in"]),
        "target_out": mask(batch["target_out"]),
        "rows": torch.full_like(batch["rows"], -1),
        "graded": torch.zeros_like(batch["graded"]),
        "facts": torch.full_like(batch["facts"], NO_FACT),
    }


def pack_rows(batch: Batch) -> Batch:
    """Return a batch with its rows one behind the other in one, without their padding."""
    sides = {**batch["sources"], TARGET: batch["target_in"]}
    real = {side: ids != PAD for side, ids in sides.items()}  # (B, T) each
    ids = {side: ids[real[side]][None] for side, ids in sides.items()}  # (1, sum of lengths) each
    return {
        **batch,
        "target_in": ids.pop(TARGET),
        "target_out": batch["target_out"][real[TARGET]][None],
        "sources": ids,
        "packed": {side: find_documents(mark_starts(mask)) for side, mask in real.items()},
    }


def mark_starts(real: Tensor) -> Tensor:
    """Return the starts of packed rows: (B, T) bool -> (1, sum of lengths) bool"""
    first = torch.zeros_like(real)
    first[:, 0] = True
    return first[real][None]


class BatchLoader(DataLoader[Batch]):
    """Data loader of the batches of a corpus, prepared by this process or `workers` more.

    It has its own generator: it never draws from torch's global one. Workers are forked, so that
    they share the corpus with this process. `tokenizers` are those of its ids, where a loop of
    one's own needs them. `packing`: The rows of a batch stand in one.
    """

    def __init__(
        self,
        corpus: Corpus,
        order: Sampler[BatchSlice] | Sequence[BatchSlice],
        workers: int = 0,
        tokenizers: Tokenizers | None = None,
        packing: bool = False,
    ) -> None:
        super().__init__(
            BatchDataset(corpus, packing),
            sampler=order,
            batch_size=None,
            num_workers=workers,
            generator=torch.Generator(),
            multiprocessing_context="fork" if workers else None,
        )
        self.corpus, self.tokenizers = corpus, tokenizers
