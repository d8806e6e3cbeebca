"""LightningDataModule of a recipe, and curriculum learning: which pairs each epoch trains on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from blocks.core.fixes import Fix, Remove
from composer.data.answer_limits import AnswerLimits
from composer.data.collate import Batch, BatchLoader
from composer.data.encoding import encode_data
from composer.data.epochs import training_corpus
from composer.data.ids import Encoded
from composer.data.pairs import available_splits
from composer.data.sampler import (
    BatchSlice,
    EpochRows,
    EpochSampler,
    EvalBatchSampler,
    ResumableBatchSampler,
    TrainBatchSampler,
)
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.data.training_pairs import answerable_rows, measured_pairs
from composer.data.windows import (
    StreamSampler,
    cut_streams,
    evaluation_order,
    file_weights,
    shuffle_windows,
)
from composer.errors import RecipeError
from composer.evaluation.scores import missing_split
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe import training_sections
from composer.recipe.recipe import Recipe
from composer.training.lightning import LightningDataModule, Trainer
from composer.training.module import Seq2SeqModule

COMPOSER_ONLY = {
    "curriculum": "a curriculum",
    "ema": "a moving average of the weights",
    "asgd": "an average of the weights",
    "optimizer": "an optimizer that averages the weights",
}
"""Keys of `training` that a Trainer of one's own does not follow, and what they are."""


class RecipeDataModule(LightningDataModule):
    """LightningDataModule of a recipe: batches of training and validation pairs, and tokenizers.

    Batches are filled up to a budget of tokens.

    It serves any `Trainer(use_distributed_sampler=False)`: a batch is split over devices and
    accumulation here. An epoch is one pass over the training pairs, in an order that depends on
    `training.seed` and the epoch alone. `composer.train` sets `resumable`, a sampler of all epochs
    that starts at any batch.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: DataSource | str | Path | None = None,
        tokenizers: Tokenizers | None = None,
    ) -> None:
        """Read and encode the recipe's data. Raises DataError with all faults of the files.

        data: folder in which files are looked up before the recipe's own, or the data already
        opened. tokenizers: those to encode with; trained on the training part without them.
        """
        super().__init__()
        source = data if isinstance(data, DataSource) else DataSource(recipe, recipe.folders(data))
        self.recipe = recipe
        self.data = encode_data(source, tokenizers)
        self.tokenizers = self.data.tokenizers
        assert self.data.train is not None  # it encodes every split, and each recipe has this one
        self.train = self.data.train
        self.val = self.data.val
        self.val_limit: int | float = 1.0
        self.limited: Trainer | None = None  # whose limit the loader has taken over
        self.batches: EpochSampler | None = None
        self.resumable: ResumableBatchSampler | None = None

    def plan_batches(
        self, model: EncoderDecoder, accumulate: int, curriculum: Curriculum | None = None
    ) -> None:
        """Leave out training pairs that `model` could never decode, and plan all batches.

        Raises DataError if no pair is left.
        """
        limits = AnswerLimits.of(model)
        self.val = (
            None
            if self.data.val is None
            else measured_pairs(self.recipe, "val", self.data.val, limits)
        )
        answerable = answerable_rows(self.recipe, self.train, limits, self.data.notes)
        self.train = self.train if answerable.all() else self.train.keep(answerable)
        training = self.recipe.training
        window = self.recipe.window
        if window and self.recipe.carries_state:
            streams = training.tokens_per_batch // window
            rows = cut_streams(self.train, streams, window)
            self.batches = StreamSampler(rows, streams, seed=training.seed, accumulate=accumulate)
            return
        corpus = training_corpus(self.recipe, self.train, self.tokenizers, limits.answerable)
        if window:
            corpus = shuffle_windows(self.train, window, training.seed)
        self.batches = TrainBatchSampler(
            corpus,
            tokens_per_batch=training.tokens_per_batch,
            seed=training.seed,
            accumulate=accumulate,
            choose=curriculum.choose if curriculum else file_weights(self.recipe, self.data),
        )

    def setup(self, stage: str) -> None:
        """Plan the batches for the module that a Trainer fits, unless that is done.

        Raises RecipeError if the recipe has a curriculum or averages its weights, which only
        `composer.train` follows.
        """
        trainer = self.trainer
        if trainer is not None and trainer.limit_val_batches and not self.recipe.carries_state:
            # Lightning would take the first batches, which have the longest lines; the loader is of
            # a sample instead
            self.val_limit, trainer.limit_val_batches = trainer.limit_val_batches, 1.0
            self.limited = trainer
        if (
            self.batches is not None
            or trainer is None
            or not isinstance(trainer.lightning_module, Seq2SeqModule)
        ):
            return
        training = self.recipe.training
        for key, noun in COMPOSER_ONLY.items():
            is_used = training.optimizer.averages if key == "optimizer" else getattr(training, key)
            if is_used:
                path, message = ("training", key), f"only `composer.train` follows {noun}"
                fix = Fix("train with `composer.train`, or remove it", Remove(path))
                raise RecipeError([self.recipe.fault("value", path, message, fix)])
        self.plan_batches(trainer.lightning_module.model, trainer.accumulate_grad_batches)

    def teardown(self, stage: str) -> None:
        """Give the Trainer its `limit_val_batches` back, which `setup` reads at its next use."""
        if self.limited is not None:
            self.limited.limit_val_batches, self.limited = self.val_limit, None

    def on_exception(self, exception: BaseException) -> None:
        """Give the Trainer its `limit_val_batches` back, as `teardown` does where all goes well."""
        self.teardown("")

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the loader of this device's parts of the training batches."""
        assert self.batches is not None, "a Trainer calls `setup` before"
        assert self.trainer is not None
        self.batches.rank, self.batches.world = self.trainer.global_rank, self.trainer.world_size
        return self._train_loader(self.resumable or self.batches)

    def _train_loader(self, order: Sampler[BatchSlice]) -> BatchLoader:
        assert self.batches is not None  # planned
        workers, packing = self.recipe.training.workers, self.recipe.data.packing
        return BatchLoader(self.batches.corpus, order, workers, self.tokenizers, packing)

    def split_loader(self, split: str) -> BatchLoader:
        """Return the loader of a split for your own loop, without a Trainer. Raises RunError."""
        if split not in available_splits(self.recipe):
            raise missing_split(self.recipe, split)
        with torch.device("meta"):
            model = build(self.recipe, self.tokenizers.sizes)
        if split != "train":
            encoded = measured_pairs(
                self.recipe, split, self.data.splits[split], AnswerLimits.of(model)
            )
            order = evaluation_order(self.recipe, encoded, self.recipe.training.tokens_per_batch)
            return BatchLoader(*order, self.recipe.training.workers, self.tokenizers)
        self.plan_batches(model, accumulate=1)
        assert self.batches is not None  # planned
        return self._train_loader(self.batches)

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Return the loader of this device's parts of the validation batches; [] without any."""
        if not self.val or self.trainer is None:
            return []
        where = self.trainer.global_rank, self.trainer.world_size
        budget = self.recipe.training.tokens_per_batch
        rows, order = evaluation_order(self.recipe, self.val, budget, *where)
        if (
            isinstance(order, EvalBatchSampler)
            and (sample := order.sample_rows(self.val_limit)) is not None
        ):
            rows = rows.keep(sample)
            order = EvalBatchSampler(rows, budget, *where)
        loader = BatchLoader(rows, order)
        # of a text whose state is carried, which is read from its start
        share = self.trainer.limit_val_batches
        if isinstance(share, float) and 0 < share * len(loader) < 1:
            self.trainer.limit_val_batches = 1  # Lightning refuses a share of less than one batch
        return loader


class Curriculum:
    """Curriculum by length: the level of every epoch, which is how many tokens its pairs may have.

    Batches are prefetched, so an epoch's level must be known before the epoch before it ends: it
    depends on the errors of the epochs before that one. Epochs 0 and 1 have the level `start`.
    Epoch e + 2 has the level of e + 1, plus `step` if epoch e was at that same level and its
    sequence error was below `error`: so a level lasts two epochs or more. Once no pair is longer
    than the level, it stays.
    """

    def __init__(self, settings: training_sections.Curriculum, seed: int) -> None:
        self.settings, self.by, self.seed = settings, settings.by, seed
        self.levels = [settings.start, settings.start]
        self.wrong, self.graded = 0.0, 0.0

    @property
    def level(self) -> int:
        """Return the level of the current epoch."""
        return self.levels[-2]

    def choose(self, encoded: Encoded, epoch: int) -> EpochRows:
        """Return the rows of an epoch: pairs within its level, others with probability `beyond`.

        Where none is within the level, the shortest count as such. The longest within it are
        graded: those whose length is among its last `step`.
        """
        length = encoded.lengths(self.by)
        within = length <= max(self.levels[epoch], int(length.min()))
        beyond = (
            np.random.default_rng([self.seed, epoch, 1]).random(len(length)) < self.settings.beyond
        )
        graded = within & (length > int(length[within].max()) - self.settings.step)
        return EpochRows(np.flatnonzero(within | beyond), graded)

    def count(self, sums: Mapping[str, float]) -> None:
        """Add the wrong and the graded rows of some steps of the current epoch."""
        self.wrong += sums["wrong"]
        self.graded += sums["graded"]

    def finish(self, encoded: Encoded) -> float:
        """End the current epoch, which had these pairs, and return its sequence error."""
        error = self.wrong / self.graded if self.graded else math.nan
        level, next_level = self.levels[-2:]
        longest = encoded.lengths(self.by).max()
        rises = error < self.settings.error and level == next_level and level < longest
        self.levels.append(next_level + self.settings.step if rises else next_level)
        self.wrong, self.graded = 0.0, 0.0
        return error

    def state_dict(self) -> dict[str, Any]:
        """Return the levels and the counts of the current epoch."""
        return {"levels": self.levels, "wrong": self.wrong, "graded": self.graded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.levels, self.wrong, self.graded = (
            list(state["levels"]),
            state["wrong"],
            state["graded"],
        )
