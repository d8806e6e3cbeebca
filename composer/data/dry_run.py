"""Dry run of a recipe's data: encode a sample as training encodes all, so that `check` knows what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from composer.data.encoding import Data, Encoded, answerable_rows, encode_data, encode_trainable, split_faults
from composer.data.sampler import TrainBatchSampler
from composer.data.sources import DataSource, find_hub_folder, generate_pairs, is_endless, task_settings
from composer.errors import DataError

SAMPLED_PAIRS = 2_000
"""Pairs of a split that are read at most, unless they have a fault."""


@dataclass(frozen=True)
class DryRun:
    """A sample of the data, encoded; `is_all` where that is all of them. `train_pairs`: how many there are in all.

    The vocabulary of a sample's tokenizer is a lower bound.
    """

    data: Data
    is_all: bool
    train_pairs: int
    later: Encoded | None = None  # pairs of a later epoch of an endless task

    def steps_per_epoch(self, tokens_per_batch: int) -> float:
        """Return the updates of an epoch; an estimate where the sample is not all."""
        assert self.data.train is not None
        batches = TrainBatchSampler(self.data.train, tokens_per_batch=tokens_per_batch, seed=0)
        return len(batches) * self.train_pairs / len(self.data.pairs["train"])


def dry_run(source: DataSource, max_ratios: Mapping[str, float], any_data: bool = False) -> DryRun | None:
    """Encode a sample of the data; None for a data set to be downloaded, and with `any_data` where files are not here.

    Raises DataError with what training would refuse. A fault of a sample is none yet: where it has one, everything is
    read. max_ratios: `max_target_ratios` of the model's plan.
    """
    recipe = source.recipe
    if any_data and any(fault.code == "file" for fault in source.faults):
        return None
    if source.faults:
        raise DataError(source.faults)
    if recipe.dataset.get("hub") and not find_hub_folder(recipe, source.folders):
        return None
    sample = source.sample(SAMPLED_PAIRS)
    is_all = all(len(pairs) < SAMPLED_PAIRS for pairs in sample.all_pairs().values())
    try:
        data = _encode(sample, max_ratios)
    except DataError:
        if is_all:
            raise
        data, is_all = _encode(source, max_ratios), True
    task, later = task_settings(recipe), _later_pairs(source, data) if is_endless(recipe) else None
    return DryRun(data, is_all, task["train"] if task else len(source.pairs("train")), later)


def _encode(source: DataSource, max_ratios: Mapping[str, float]) -> Data:
    data = encode_data(source)
    assert data.train is not None
    train = data.train.keep(answerable_rows(source.recipe, data.train, max_ratios))
    return replace(data, splits={**data.splits, "train": train})


def _later_pairs(source: DataSource, data: Data) -> Encoded:
    """Return pairs that an endless task draws later. Raises DataError if they do not suit the tokenizer or output."""
    pairs = generate_pairs(source.recipe, "train", epoch=1, train=SAMPLED_PAIRS)
    encoded = encode_trainable(source.recipe, pairs, data.tokenizers)
    if faults := split_faults(source.recipe, "train", encoded, pairs):
        raise DataError(faults)
    return encoded
