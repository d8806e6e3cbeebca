"""One process's part in a training: everything it has in hand, made before anything is written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pytorch_lightning import Trainer, seed_everything

from composer.data.encoding import Corpus, Data, Encoded, encode_data, training_corpus
from composer.data.sampler import ResumableBatchSampler, TrainBatchSampler, all_pairs
from composer.data.sources import DataSource
from composer.errors import DataError, RunError
from composer.inference.search import ROUNDING
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.weights import initialize, load_weights
from composer.recipe.recipe import Recipe
from composer.run_dir import RunDir
from composer.training.callback import ROW_STEPS, TrainingLoopCallback
from composer.training.checkpointing import CheckpointManager
from composer.training.datamodule import Curriculum
from composer.training.loggers import read_budget_trace
from composer.training.module import Seq2SeqModule
from composer.training.optim import Budget
from composer.training.progress import ProgressDisplay
from composer.training.reproduce import ReproducedRun
from composer.training.resume import check_checkpoint, check_same_data, checkpoint_to_resume, existing_tokenizers
from composer.training.trainer import build_trainer
from composer.training.validation_decoding import ValidationDecoder

PATIENCE = 3600.0
"""Seconds that a process waits for the first one to have trained the tokenizer."""


@dataclass(frozen=True)
class TrainingSetup:
    """The parts of a training. `record` is the run.json that was found, empty for a new run.

    `train` are the pairs of the first epoch, which are those of every epoch where the task is not endless.
    `checkpoint` is what to go on from. `origin` is the run that this one repeats.
    """

    recipe: Recipe
    folder: RunDir
    folders: list[Path]
    record: Mapping[str, Any]
    display: ProgressDisplay
    data: Data
    train: Encoded
    module: Seq2SeqModule
    course: TrainingLoopCallback
    trainer: Trainer
    start_from: Path | None
    checkpoint: Path | None
    origin: ReproducedRun | None = None


def setup(
    source: DataSource,
    folder: RunDir,
    record: Mapping[str, Any],
    start_from: Path | None,
    display: ProgressDisplay,
    origin: ReproducedRun | None = None,
) -> TrainingSetup:
    """Data, tokenizers, model and trainer; writes nothing. Raises DataError and RunError."""
    recipe = source.recipe
    display.say(f"{recipe.name}: reading the data")
    repeats = origin is not None and not folder.tokenizer.exists()
    known = origin.tokenizers(source) if origin is not None and repeats else None
    data = encode_data(source, known or existing_tokenizers(recipe, folder, start_from))
    assert data.train is not None
    if record and folder.tokenizer.exists():
        check_same_data(data, record, folder)
    checkpoint = checkpoint_to_resume(folder, display.say)
    if checkpoint is not None:
        check_checkpoint(recipe, data.tokenizers, checkpoint)
    seed_everything(recipe.training["seed"], verbose=False)
    module = Seq2SeqModule(recipe.dump(), data.tokenizers.text(), (recipe, data.tokenizers))
    if start_from is None:
        initialize(module.model, recipe.training["initialization"])
    elif checkpoint is None:
        load_weights(module.model, RunDir(start_from).weights)
    if recipe.training["compile"]:
        module.compile_model(display.say)
    train = without_unanswerable(recipe, data.train, data.notes, module.model)
    corpus = training_corpus(recipe, train, data.tokenizers, partial(answerable, module.model))
    course = course_of(recipe, folder, corpus, data)
    course.followed = pace_followed(origin, record)
    trainer = build_trainer(recipe, [course])
    return TrainingSetup(
        recipe,
        folder,
        list(source.folders),
        record,
        display,
        data,
        train,
        module,
        course,
        trainer,
        start_from,
        checkpoint,
        origin,
    )


def pace_followed(origin: ReproducedRun | None, record: Mapping[str, Any]) -> dict[int, float]:
    """How a budget in minutes is spent by a repeat, one that goes on too; empty where the clock says it."""
    known = record.get("repeat_of")
    if known:
        return read_budget_trace(RunDir(Path(known["run"])).metrics)
    return origin.pace() if origin else {}


def without_unanswerable(recipe: Recipe, pairs: Encoded, notes: list[str], model: EncoderDecoder) -> Encoded:
    """The pairs that a search could answer; the others are counted in a note. Raises DataError where none is left."""
    kept = answerable(model, pairs)
    if kept.all():
        return pairs
    told = f"{int((~kept).sum()):,} of {len(kept):,} training pairs whose answer is longer than {model.room:g} times"
    notes.append(f"left out {told} its source: no search makes room for it")
    if not kept.any():
        fix = "raise `room` of the block `grid`, or exchange source and target"
        raise DataError([recipe.fault("empty", ("data",), f"nothing is left without {told} its source", fix)])
    return pairs.keep(kept)


def answerable(model: EncoderDecoder, pairs: Encoded) -> np.ndarray:
    """Which pairs have an answer of a size that is asked for; all where sizes do not matter. -> (pairs,) bool"""
    rooms = {key: encoder.room for key, encoder in model.readers().items() if encoder.room}
    if not rooms:
        return np.ones(len(pairs), dtype=bool)
    sizes = [np.ceil(room * (pairs.sources[key].lengths() + 1) - ROUNDING) for key, room in rooms.items()]
    found: np.ndarray = pairs.target.lengths() + 1 <= np.max(sizes, axis=0)
    return found


def course_of(recipe: Recipe, folder: RunDir, corpus: Corpus, data: Data) -> TrainingLoopCallback:
    """The course of a recipe's training on these data."""
    training = recipe.training
    curriculum = Curriculum(**training["curriculum"], seed=training["seed"]) if training["curriculum"] else None
    order = TrainBatchSampler(
        corpus,
        tokens_per_batch=training["tokens_per_batch"],
        seed=training["seed"],
        accumulate=training["accumulate"],
        choose=curriculum.choose if curriculum else all_pairs,
    )
    early = training["early_stopping"]
    last = max(2, training["average_checkpoints"])
    keeper = CheckpointManager(folder.checkpoints, last, early["metric"] if early else "val/loss")
    rows = recipe.trainer.get("log_every_n_steps") or ROW_STEPS
    budget = Budget(training["max_steps"], training["max_epochs"], training["max_minutes"])
    judge = ValidationDecoder(data.val, data.pairs["val"], data.tokenizers) if data.val else None
    tokenizer = data.tokenizers.sha256
    return TrainingLoopCallback(
        budget,
        ResumableBatchSampler(order),
        keeper,
        training["validate_every"],
        early,
        tokenizer,
        rows,
        curriculum,
        judge,
    )


def data_folders(recipe: Recipe, data: str | Path | None, record: Mapping[str, Any]) -> list[Path]:
    """Where data files are looked up: as told, else where the run found them when it began; then beside the recipe."""
    known = [] if data is not None else [Path(each) for each in record.get("data", {}).get("folders", [])]
    return [*known, *(each for each in (path.resolve() for path in recipe.folders(data)) if each not in known)]


def record_of(folder: RunDir) -> dict[str, Any]:
    """The run.json of the first process, once it has written all that others read. Raises RunError after an hour."""
    until = time.monotonic() + PATIENCE
    while not folder.tokenizer.exists():
        if time.monotonic() > until:
            raise RunError.of(
                "the first process has not written this file within an hour",
                "give all machines the same run folder, on a file system that they share",
                str(folder.tokenizer.absolute()),
            )
        time.sleep(0.2)
    return folder.read()
