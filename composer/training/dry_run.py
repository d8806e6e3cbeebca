"""What `check` reads of the data: encodes them as a training does, of large ones a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from composer.checks.budget import EpochSize
from composer.data.answer_limits import AnswerLimits
from composer.data.documents import Documents
from composer.data.encoding import Data, cache_faults, encode_data
from composer.data.epochs import encode_trainable
from composer.data.ids import Encoded
from composer.data.largest_batch import BatchSize, largest_batch
from composer.data.pairs import TARGET
from composer.data.sampler import TrainBatchSampler
from composer.data.samples import in_memory, read_sample
from composer.data.sources import DataSource, find_hub_folder, generate_pairs, is_endless
from composer.data.split_faults import split_faults
from composer.data.tokenizer_cache import cached_tokenizers
from composer.data.tokenizer_training import train_source_tokenizers
from composer.data.training_pairs import answerable_rows
from composer.errors import DataError
from composer.model.features import feature_settings
from composer.recipe.recipe import Recipe

DataUse = Literal["required", "if_here", "none"]
"""Which data files a check reads: all of them, those that are on this machine, or none, even where
they are.
"""
STAND_IN_SIZE = 32_000
"""The vocabulary that counts in place of that of a tokenizer file that is not here, and is not to
be read.
"""
LATER_PAIRS = 2_000
"""Pairs of a later epoch that are drawn of an endless task."""


@dataclass(frozen=True)
class DryRun:
    """The data, encoded, or a part of them if not `is_all`.

    train_pairs: The number of all training pairs.

    beginnings: as of `Sample`. The vocabulary of a part's tokenizer is a lower bound.
    """

    data: Data
    is_all: bool
    beginnings: Mapping[str, int]
    train_pairs: int
    later: Encoded | None = None  # pairs of a later epoch of an endless task
    share: float | None = None  # of the training text that is in the sample; None of pairs
    weight: float = 1.0  # of the training files, their mean
    # the data before pairs that the model could not write are left out
    unfiltered: Data | None = None

    def describe_beginnings(self, noun: str) -> str:
        """Return in words which lines were read; "" if all were."""
        parts = [f"{count:,} {noun}s of {split}" for split, count in self.beginnings.items()]
        return f" of the first {' and '.join(parts)}" if parts else ""

    def steps_per_epoch(self, tokens_per_batch: int) -> float:
        """Return the updates of an epoch; an estimate where the sample is not all."""
        assert self.data.train is not None
        if self.share is not None:  # of a text, whose documents are of any length, or rows of one
            return (
                self.weight
                * float(self.data.train.target.positions().sum())
                / self.share
                / tokens_per_batch
            )
        batches = TrainBatchSampler(self.data.train, tokens_per_batch=tokens_per_batch, seed=0)
        return self.weight * len(batches) * self.train_pairs / len(self.data.pairs["train"])


def dry_run(
    source: DataSource, limits: AnswerLimits | None = None, data_use: DataUse = "required"
) -> DryRun | None:
    """Encode the data as a training does, of large ones a part.

    Returns None for a data set to be downloaded, and if no files are here or to be read.

    Raises DataError with what training would refuse. A fault of a part is none yet: where it has
    one, everything is read. limits: Of the model's plan.
    """
    recipe, limits = source.recipe, limits or AnswerLimits()
    if data_use == "none" and (not recipe.data.generate or stand_in_sizes(recipe)):
        return None
    if data_use == "if_here" and any(fault.code == "file" for fault in source.faults):
        return None
    if source.faults:
        raise DataError(source.faults)
    if recipe.data.hub and not find_hub_folder(recipe, source.folders):
        return None
    sample = read_sample(source, depends_on_sizes(recipe))
    is_all, beginnings = sample.is_all, sample.beginnings
    part, few = sample.source, sample.few
    if is_all and cache_faults(source):  # which are faults of this machine alone
        part = few = in_memory(source)
    try:
        unfiltered = _encode(part, few)
        data = _answerable(recipe, unfiltered, limits)
    except DataError:
        if is_all:
            raise
        unfiltered, is_all, beginnings = _encode(source, source), True, {}
        data = _answerable(recipe, unfiltered, limits)
    if task := recipe.data.generate:  # whose other pairs nobody needs to draw
        later = _later_pairs(source, data) if task.endless else None
        return DryRun(data, is_all, beginnings, task.train, later, unfiltered=unfiltered)
    train, share = source.pairs("train"), None
    if isinstance(documents := train.sides[TARGET], Documents):
        read, total = (
            data.pairs["train"].sides[TARGET],
            sum(file.characters for file in documents.facts),
        )
        share = 1.0 if read is documents else sum(map(len, read)) / total
    weight = 1.0 if train.weights is None else float(train.weights.mean())
    return DryRun(
        data, is_all, beginnings, len(documents), share=share, weight=weight, unfiltered=unfiltered
    )


def epoch_size(recipe: Recipe, sample: DryRun | None) -> EpochSize | None:
    """Return the size of an epoch of the pairs in a sample of the data; None without one."""
    if sample is None or sample.data.train is None:
        return None
    curriculum = recipe.training.curriculum
    lengths = (sample.later or sample.data.train).lengths(curriculum.by if curriculum else None)
    steps, endless = sample.steps_per_epoch(recipe.training.tokens_per_batch), is_endless(recipe)
    shortest = int(lengths.min()) if sample.is_all or endless else 0
    return EpochSize(steps, sample.is_all and not endless, int(lengths.max()), shortest)


def largest_batch_of(recipe: Recipe, sample: DryRun | None) -> BatchSize:
    """Return the size of the largest batch of the data in a sample, or of any data without one."""
    if sample is None or sample.data.train is None:
        return largest_batch(recipe)
    share = (
        len(sample.data.pairs["train"]) / sample.train_pairs
        if sample.share is None
        else sample.share
    )
    return largest_batch(recipe, sample.data.train, share)


def depends_on_sizes(recipe: Recipe) -> bool:
    """True if the sizes of vocabularies decide whether a model can be built."""
    return recipe.model.embedding.depends_on_size or recipe.model.output.kind.depends_on_size


def stand_in_sizes(recipe: Recipe) -> dict[str, int] | None:
    """Return sizes for the vocabularies of a tokenizer whose file is not here; else None."""
    if not any(fault.code == "file" for fault in recipe.tokenizer_faults()):
        return None
    keys = [key for key in recipe.sources if feature_settings(recipe.data, key) is None]
    return dict.fromkeys([*keys, TARGET], STAND_IN_SIZE)


def _encode(source: DataSource, few: DataSource) -> Data:
    """Encode data with the tokenizers of a few of them, or, if these are all, with a training's."""
    return encode_data(
        source, cached_tokenizers(source) if few is source else train_source_tokenizers(few)
    )


def _answerable(recipe: Recipe, data: Data, limits: AnswerLimits) -> Data:
    """Return data with the training pairs that a model can write. Raises DataError for none."""
    assert data.train is not None
    train = data.train.keep(answerable_rows(recipe, data.train, limits, data.notes))
    return replace(data, splits={**data.splits, "train": train})


def _later_pairs(source: DataSource, data: Data) -> Encoded:
    """Return pairs that an endless task draws later. Raises DataError if they do not fit."""
    pairs = generate_pairs(source.recipe, "train", epoch=1, train=LATER_PAIRS)
    encoded = encode_trainable(source.recipe, pairs, data.tokenizers)
    if faults := split_faults(source.recipe, "train", encoded, pairs):
        raise DataError(faults)
    return encoded
