"""Set up a training in this process: data, module, callback and Trainer, before anything is written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.loggers import Logger

from composer.data.sampler import ResumableBatchSampler
from composer.data.sources import DataSource
from composer.errors import RunError
from composer.model.weights import load_weights
from composer.recipe.recipe import Recipe
from composer.run_dir import RunDir
from composer.training.callback import ROW_STEPS, TrainingLoopCallback
from composer.training.checkpointing import CheckpointManager
from composer.training.datamodule import Curriculum, RecipeDataModule
from composer.training.loggers import read_budget_trace
from composer.training.module import Seq2SeqModule
from composer.training.optim import Budget, EarlyStopping
from composer.training.progress import ProgressDisplay
from composer.training.reproduce import ReproducedRun
from composer.training.resume import check_checkpoint, check_same_data, checkpoint_to_resume, existing_tokenizers
from composer.training.trainer import build_trainer
from composer.training.validation_decoding import ValidationDecoder

TOKENIZER_SECONDS = 3600.0
"""Seconds that a process waits for the main one to have trained the tokenizer."""


@dataclass(frozen=True)
class TrainingSetup:
    """The parts of one training in this process.

    `record` is the run.json that was there, empty for a new run; `checkpoint` is what to resume from; `start_from` is
    the run whose weights this one starts from, `original` the one that it reproduces.
    """

    source: DataSource
    run_dir: RunDir
    record: Mapping[str, Any]
    display: ProgressDisplay
    data: RecipeDataModule
    module: Seq2SeqModule
    loop: TrainingLoopCallback
    trainer: Trainer
    start_from: Path | None
    checkpoint: Path | None
    original: ReproducedRun | None

    @property
    def recipe(self) -> Recipe:
        """Return the recipe that is trained."""
        return self.source.recipe


def setup(
    source: DataSource,
    run_dir: RunDir,
    record: Mapping[str, Any],
    start_from: Path | None,
    display: ProgressDisplay,
    original: ReproducedRun | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> TrainingSetup:
    """Return data, module, callback and Trainer of a training; write nothing.

    Raises:
        DataError: If the data cannot be trained on.
        RunError: If data, tokenizer or checkpoint are not those that the run was begun with.
        RecipeError: If Lightning cannot train so here.
    """
    recipe = source.recipe
    display.say(f"{recipe.name}: reading the data")
    tokenizers = None
    if original is not None and not run_dir.tokenizer.exists():
        tokenizers = original.tokenizers(source)
    data = RecipeDataModule(recipe, source, tokenizers or existing_tokenizers(recipe, run_dir, start_from))
    if record and run_dir.tokenizer.exists():
        check_same_data(data.data, record, run_dir)
    checkpoint = checkpoint_to_resume(run_dir, display.say)
    if checkpoint is not None:
        check_checkpoint(recipe, data.tokenizers, checkpoint)

    training = recipe.training
    seed_everything(training["seed"], verbose=False)
    if start_from is None:
        module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
    else:
        module = Seq2SeqModule(recipe.dump(), data.tokenizers.text(), (recipe, data.tokenizers))
        if checkpoint is None:
            load_weights(module.model, RunDir(start_from).weights)
    if training["compile"]:
        module.compile_model(display.say)

    settings = training["curriculum"]
    curriculum = Curriculum(**settings, seed=training["seed"]) if settings else None
    data.plan_batches(module.model, training["accumulate"], curriculum)
    loop = build_loop(recipe, run_dir, data, curriculum)
    if record.get("repeat_of"):
        loop.reproduced_pace = read_budget_trace(RunDir(Path(record["repeat_of"]["run"])).metrics)
    elif original:
        loop.reproduced_pace = original.budget_trace()
    trainer = build_trainer(recipe, loop, callbacks, loggers)
    return TrainingSetup(
        source, run_dir, record, display, data, module, loop, trainer, start_from, checkpoint, original
    )


def build_loop(
    recipe: Recipe, run_dir: RunDir, data: RecipeDataModule, curriculum: Curriculum | None
) -> TrainingLoopCallback:
    """Return the training loop's callback, and give the data its sampler of all epochs."""
    training = recipe.training
    assert data.batches is not None
    # without `validate_every` Lightning validates where an iteration of the sampler ends: after every epoch
    data.resumable = ResumableBatchSampler(data.batches, by_epoch=not training["validate_every"])
    early_stopping = EarlyStopping(**training["early_stopping"]) if training["early_stopping"] else None
    val = data.data.val
    return TrainingLoopCallback(
        data.resumable,
        Budget(training["max_steps"], training["max_epochs"], training["max_minutes"]),
        CheckpointManager(
            run_dir.checkpoints,
            last=max(2, training["average_checkpoints"]),
            metric=early_stopping.metric if early_stopping else "val/loss",
        ),
        training["validate_every"],
        early_stopping,
        curriculum,
        ValidationDecoder(val, data.data.pairs["val"], data.tokenizers).evaluate if val else None,
        recipe.trainer.get("log_every_n_steps") or ROW_STEPS,
    )


def data_folders(recipe: Recipe, data: str | Path | None, record: Mapping[str, Any]) -> list[Path]:
    """Return the folders to look up data files in: `data`, or those in a run's record; then beside the recipe."""
    recorded = [] if data is not None else [Path(folder) for folder in record.get("data", {}).get("folders", [])]
    resolved = [path.resolve() for path in recipe.folders(data)]
    return [*recorded, *(path for path in resolved if path not in recorded)]


def wait_for_record(run_dir: RunDir) -> dict[str, Any]:
    """Return run.json once the main process has written all that the others read. Raises RunError after an hour."""
    deadline = time.monotonic() + TOKENIZER_SECONDS
    while not run_dir.tokenizer.exists():
        if time.monotonic() > deadline:
            raise RunError.of(
                "the first process has not written this file within an hour",
                "give all machines the same run folder, on a file system that they share",
                str(run_dir.tokenizer.absolute()),
            )
        time.sleep(0.2)
    return run_dir.read()
