"""Train a recipe: resolve the run directory, check, load data and model, fit, finalize."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback
from pytorch_lightning.loggers import Logger

from composer.atomic_io import atomic_write
from composer.data.sources import DataSource, is_endless
from composer.errors import ComposerError, RunError, RunFailed, os_error_hint, os_error_reason
from composer.fingerprint import fingerprint_pairs, initial_weights
from composer.model.planner import count_parameters, plan
from composer.recipe.recipe import Recipe
from composer.run_dir import RUNS, RunDir, check_writable, locked, utc_now
from composer.training.distributed import is_main_process, processes_of_training
from composer.training.finalize import TrainingResult, finalize
from composer.training.loggers import JsonLinesWriter, MetricsLogger, WandbLogger, current_wandb_mode, describe_mode
from composer.training.progress import ProgressDisplay
from composer.training.reproduce import environment_differences, environment_record, find_original_run
from composer.training.resume import check_same_recipe, resolve_initial_run
from composer.training.setup import (
    TrainingSetup,
    data_folders,
    keep_freed_memory,
    setup,
    silence_lightning,
    wait_for_record,
)
from composer.training.signals import TrainingInterrupted


def train(
    recipe: Recipe,
    run: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> TrainingResult:
    """Train `recipe` and write the run directory `run` (`runs/NAME`).

    `callbacks` and `loggers` are Lightning's, for its Trainer. A recipe that lies in a run directory, without overrides
    that change results, reproduces that run: in `runs/NAME-repeat`, on the same data, with the same tokenizer and
    initial weights. `TrainingResult.record["repeat_of"]["same"]` then says whether it ended with the same weights.

    Raises:
        RecipeError, DataError, RunError: If recipe, data files or directory are not fit; with nothing written.
        RunFailed: If the training cannot go on.
        KeyboardInterrupt, SystemExit: After SIGINT; after SIGTERM, with status 143.
    """
    silence_lightning()
    keep_freed_memory()
    original = find_original_run(recipe, run, start_from)
    default = original.default_dir(RUNS, recipe.name) if original else RUNS / recipe.name
    run_dir = RunDir(Path(run) if run else default)
    display = ProgressDisplay(quiet=not is_main_process() or recipe.trainer.get("enable_progress_bar") is False)
    if is_main_process():
        check_writable(run_dir, resume)
        record = {} if run_dir.is_empty() else run_dir.read()
        if record:
            check_same_recipe(recipe, run_dir, record)
    else:
        record = wait_for_record(run_dir)
    if record.get("status") == "finished":
        display.say(f"{run_dir.path} is finished already; nothing is left to do")
        return TrainingResult(run_dir.path, record)

    source = DataSource(recipe, data_folders(recipe, data, record or (original.record if original else {})))
    if is_main_process():
        check(source)
    display.say(describe_mode(current_wandb_mode(recipe.logging["wandb"]), run_dir.path))
    initial_run = resolve_initial_run(start_from, record, run_dir, original)
    training = setup(source, run_dir, record, initial_run, display, original, callbacks, loggers)

    with exclusive(run_dir, resume, record), recorded_failure(training):
        training.loop.logger = logger = start_logging(training) if is_main_process() else None
        fit(training)
        result = finalize(training, logger)
        if logger:
            logger.close(0)
        return result


def check(source: DataSource) -> None:
    """Raise every fault of the data files and of the model together, before any of them is read or built."""
    faults = list(source.faults)
    try:
        plan(source.recipe)
    except ComposerError as error:
        faults += error.faults
    if faults:
        raise ComposerError(faults)


@contextmanager
def exclusive(run_dir: RunDir, resume: bool, record: Mapping[str, Any]) -> Iterator[None]:
    """Lock the run directory against other trainings. The main process alone writes, so the others need no lock.

    Raises RunError if another process holds it, or has written since `record` was read.
    """
    if not is_main_process():
        yield
        return
    with locked(run_dir):
        check_writable(run_dir, resume)
        if record and run_dir.read() != record:
            message = "another training has been writing into this folder"
            raise RunError.of(message, "say `--resume` again", str(run_dir.path))
        yield


def start_logging(training: TrainingSetup) -> MetricsLogger:
    """Write what a run directory holds from its first moment, and open the log of metrics."""
    run_dir, recipe, data, say = training.run_dir, training.recipe, training.data, training.display.say
    record = start_record(training)
    run_dir.write(record)
    run_dir.checkpoints.mkdir(exist_ok=True)
    atomic_write(run_dir.recipe, recipe.dump().encode())
    if not run_dir.tokenizer.exists():
        data.tokenizers.save(run_dir.tokenizer)
    settings = recipe.logging["wandb"]
    wandb = WandbLogger(current_wandb_mode(settings), settings, run_dir.path, recipe.name, record["wandb"], say)
    if wandb.trouble:
        say(f"Weights & Biases could not start: {wandb.trouble}")
    wandb.describe(run_dir.recipe, recipe.explicit)
    for note in data.data.notes:
        say(note)
    if repeat_of := record.get("repeat_of"):
        say(f"repeats {repeat_of['run']}")
        for difference in repeat_of["differs"]:
            say(f"not as then: {difference}")
    sizes = ", ".join(f"{side} {size:,}" for side, size in record["vocabularies"].items())
    pairs = f"{len(data.train):,} training pairs{', new ones in every epoch' if is_endless(recipe) else ''}"
    say(f"{record['parameters']:,} parameters; {pairs}; vocabulary: {sizes}")
    last_step = int(training.checkpoint.stem.removeprefix("step-")) if training.checkpoint else 0
    return MetricsLogger(JsonLinesWriter(run_dir.metrics, last_step), wandb, training.display)


def start_record(training: TrainingSetup) -> dict[str, Any]:
    """Return run.json for a training that begins or resumes, perhaps with other code or on another machine."""
    recipe, tokenizers, data = training.recipe, training.data.tokenizers, training.data.data
    environment = environment_record(recipe, training.trainer)
    if training.run_dir.tokenizer.exists():
        changes = [*training.record.get("resumed_with", []), *environment_differences(training.record, environment)]
        return {**training.record, "status": "running", **environment, "resumed_with": changes}
    weights = initial_weights(RunDir(training.start_from)) if training.start_from else None
    fingerprints = fingerprint_pairs(recipe, data.pairs, weights)
    original = training.original
    return {
        "name": recipe.name,
        "status": "running",
        "fingerprints": {**fingerprints, "recipe": recipe.fingerprints["run"]},
        "seed": recipe.training["seed"],
        **environment,
        "started_at": utc_now(),
        "start_from": str(training.start_from) if training.start_from else None,
        "initial_weights": weights,
        "repeat_of": original.comparison_record(recipe, fingerprints, environment) if original else None,
        "data": {
            "folders": [str(folder) for folder in training.source.folders],
            "pairs": {split: len(pairs) for split, pairs in data.pairs.items()},
            "train_pairs_used": len(training.data.train),
            "sha256": data.train.sha256 if data.train else None,
            "val_sha256": data.val.sha256 if data.val else None,
        },
        "tokenizer": tokenizers.sha256,
        "vocabularies": {side: tokenizers.size(side) for side in tokenizers.sides},
        "parameters": count_parameters(training.module.model),
        "wandb": secrets.token_hex(4),
    }


def fit(training: TrainingSetup) -> None:
    """Train with Lightning, from the last checkpoint if there is one."""
    trainer, signals = training.trainer, training.loop.signals
    if training.checkpoint:
        training.display.say(f"going on from {training.checkpoint}")
    local = 1 if training.recipe.trainer["accelerator"] == "tpu" else trainer.num_devices  # Lightning starts a TPU's
    try:
        with processes_of_training(local, trainer.num_nodes):
            trainer.fit(training.module, datamodule=training.data, ckpt_path=training.checkpoint, weights_only=True)
    finally:
        signals.restore()


@contextmanager
def recorded_failure(training: TrainingSetup) -> Iterator[None]:
    """Record in run.json how a training that did not finish ended; explain interrupts, full disks and memory."""
    try:
        yield
    except TrainingInterrupted as interrupt:
        if not is_main_process():
            raise SystemExit(0) from None  # the main process says how it ended; this one must not look like a crash
        close(training, "interrupted")
        command = f"the same command with `--resume --run {training.run_dir.path}`"
        training.display.say(f"stopped at step {training.loop.progress.step:,}, nothing is lost; {command} goes on")
        if interrupt.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + interrupt.number) from None
    except (KeyboardInterrupt, SystemExit):
        close(training, "interrupted")
        raise
    except BaseException as error:
        close(training, "failed")
        if (explained := explain(error, training)) is not None:
            raise explained from error
        raise


def close(training: TrainingSetup, status: str) -> None:
    """End the log of metrics and write the status into run.json, as far as the disk lets it."""
    if training.loop.logger is not None:
        training.loop.logger.close(1)
    if is_main_process():
        try:
            training.run_dir.update(status=status, ended_at=utc_now())
        except (OSError, RunError):
            return


def explain(error: BaseException, training: TrainingSetup) -> RunFailed | None:
    """Return an error of the machine, a full disk or too little memory, with its fix; None for any other."""
    path = str(training.run_dir.path)
    if isinstance(error, OSError):
        fix = f"{os_error_hint(error)}, or take another with `--run DIR`; `--resume` goes on from the last checkpoint"
        return RunFailed.of(os_error_reason(error), fix, str(error.filename or path))
    phrases = ("not enough memory", "allocate memory", "out of memory")  # a plain RuntimeError where it is not CUDA's
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)
    ):
        budget, accumulate = (training.recipe.training[key] for key in ("tokens_per_batch", "accumulate"))
        batch = training.module.last_batch
        sides = {**batch.get("sources", {}), "target": batch.get("target_in")}
        shapes = [f"{side} {ids.shape[0]} x {ids.shape[1]}" for side, ids in sides.items() if ids is not None]
        shape = ", ".join(shapes) or "unknown shape"
        cause = f"out of memory on a batch of {shape} with `tokens_per_batch` {budget}"
        settings = f"`training.tokens_per_batch` to {max(1, budget // 2)}, or `training.accumulate` to {2 * accumulate}"
        return RunFailed.of(cause, f"set {settings}: the update is then the same", path)
    return None
