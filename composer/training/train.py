"""Training: from a recipe to a run folder."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from composer import run_dir
from composer.atomic_io import atomic_write
from composer.data.collate import data_loader
from composer.data.sampler import EvalBatchSampler
from composer.data.sources import DataSource, is_endless
from composer.errors import ComposerError, RunError, RunFailed, os_error_hint, os_error_reason
from composer.fingerprint import fingerprint_pairs, initial_weights
from composer.model.planner import count_parameters, plan
from composer.recipe.recipe import Recipe
from composer.run_dir import RUNS, RunDir
from composer.training.distributed import is_main_process
from composer.training.finalize import TrainingResult, finalize
from composer.training.loggers import JsonLinesWriter, MetricsLogger, WandbLogger, current_wandb_mode, describe_mode
from composer.training.progress import ProgressDisplay
from composer.training.reproduce import (
    EnvironmentRecord,
    environment_differences,
    environment_record,
    find_original_run,
)
from composer.training.resume import check_same_recipe, resolve_initial_run
from composer.training.setup import TrainingSetup, data_folders, record_of, setup
from composer.training.signals import TrainingInterrupted
from composer.training.trainer import keep_freed_memory, silence_lightning


def train(
    recipe: Recipe,
    run: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
) -> TrainingResult:
    """Trains `recipe` and writes the run folder `run` (`runs/NAME`).

    Raises RecipeError, DataError or RunError, with nothing written, where the recipe, its files or the folder are not
    fit; RunFailed where a training cannot go on; KeyboardInterrupt or SystemExit(143) after a signal.

    A recipe that lies in a run folder, with nothing laid over it that decides, repeats that run: in `runs/NAME-repeat`,
    on the same data, with the same tokenizer and from the same beginning. `Outcome.record["repeat_of"]["same"]` says
    whether it has ended with the same weights.
    """
    silence_lightning()
    keep_freed_memory()
    origin = find_original_run(recipe, run, start_from)
    folder = RunDir(Path(run) if run else origin.place(RUNS, recipe.name) if origin else RUNS / recipe.name)
    display = ProgressDisplay(quiet=not is_main_process() or recipe.trainer.get("enable_progress_bar") is False)
    record = found(folder, recipe, resume) if is_main_process() else record_of(folder)
    if record.get("status") == "finished":
        display.say(f"{folder.path} is finished already; nothing is left to do")
        return TrainingResult(folder.path, record)
    source = DataSource(recipe, data_folders(recipe, data, record or (origin.record if origin else {})))
    if is_main_process():
        check(source)
    display.say(describe_mode(current_wandb_mode(recipe.logging["wandb"]), folder.path))
    start = resolve_initial_run(start_from, record, folder, origin)
    session = setup(source, folder, record, start, display, origin)
    with held(folder, resume, record), reported(session):
        journal = begin(session)
        fit(session, journal)
        outcome = finalize(session, journal)
        if journal:
            journal.close(0)
        return outcome


def found(folder: RunDir, recipe: Recipe, resume: bool) -> dict[str, Any]:
    """The run.json that is there, empty for a new run. Raises RunError where this recipe may not be trained here."""
    run_dir.check_writable(folder, resume)
    record = {} if folder.is_empty() else folder.read()
    if record:
        check_same_recipe(recipe, folder, record)
    return record


def check(source: DataSource) -> None:
    """Raise every fault of the model and of the data files together."""
    faults = list(source.faults)
    try:
        plan(source.recipe)
    except ComposerError as error:
        faults += error.faults
    if faults:
        raise ComposerError(faults)


@contextmanager
def held(folder: RunDir, resume: bool, record: Mapping[str, Any]) -> Iterator[None]:
    """Holds the folder against other trainings; only the first process writes there.

    Raises RunError where another one holds it, or has been at work there since `record` was read.
    """
    if not is_main_process():
        yield
        return
    with run_dir.locked(folder):
        run_dir.check_writable(folder, resume)
        if record and folder.read() != record:
            raise RunError.of(
                "another training has been writing into this folder", "say `--resume` again", str(folder.path)
            )
        yield


def begin(session: TrainingSetup) -> MetricsLogger | None:
    """Writes what a run folder holds from its first moment, and opens the journal; only the first process has one."""
    if not is_main_process():
        return None
    folder, recipe, say = session.folder, session.recipe, session.display.say
    record = record_now(session)
    folder.write(record)
    folder.checkpoints.mkdir(exist_ok=True)
    atomic_write(folder.recipe, recipe.dump().encode())
    if not folder.tokenizer.exists():
        session.data.tokenizers.save(folder.tokenizer)
    settings = recipe.logging["wandb"]
    wandb = WandbLogger(current_wandb_mode(settings), settings, folder.path, recipe.name, record["wandb"], say)
    if wandb.trouble:
        say(f"Weights & Biases could not start: {wandb.trouble}")
    wandb.describe(folder.recipe, recipe.written)
    for note in [*session.data.notes, *told_of_repeat(record.get("repeat_of"))]:
        say(note)
    sizes = ", ".join(f"{side} {size:,}" for side, size in record["vocabularies"].items())
    pairs = f"{len(session.train):,} training pairs{', new ones in every epoch' if is_endless(recipe) else ''}"
    say(f"{record['parameters']:,} parameters; {pairs}; vocabulary: {sizes}")
    after = int(session.checkpoint.stem.removeprefix("step-")) if session.checkpoint else 0
    return MetricsLogger(JsonLinesWriter(folder.metrics, after), wandb, session.display)


def record_now(session: TrainingSetup) -> dict[str, Any]:
    """run.json as a training begins, or goes on, perhaps with other code or on another machine."""
    known, now = session.record, environment_record(session.recipe, session.trainer)
    if not session.folder.tokenizer.exists():
        return first_record(session, now)
    resumed_with = [*known.get("resumed_with", []), *environment_differences(known, now)]
    return {**known, "status": "running", **now, "resumed_with": resumed_with}


def first_record(session: TrainingSetup, now: EnvironmentRecord) -> dict[str, Any]:
    """run.json at the start of a run; `now` is its lock."""
    recipe, tokenizers = session.recipe, session.data.tokenizers
    began = initial_weights(RunDir(session.start_from)) if session.start_from else None
    fingerprints = fingerprint_pairs(recipe, session.data.pairs, began)
    return {
        "name": recipe.name,
        "status": "running",
        "fingerprints": {**fingerprints, "recipe": recipe.fingerprints["run"]},
        "seed": recipe.training["seed"],
        **now,
        "started_at": run_dir.utc_now(),
        "start_from": str(session.start_from) if session.start_from else None,
        "initial_weights": began,
        "repeat_of": session.origin.told(recipe, fingerprints, now) if session.origin else None,
        "data": {
            "folders": [str(folder) for folder in session.folders],
            "pairs": {split: len(pairs) for split, pairs in session.data.pairs.items()},
            "train_pairs_used": len(session.train),
            "sha256": session.data.train.sha256 if session.data.train else None,
            "val_sha256": session.data.val.sha256 if session.data.val else None,
        },
        "tokenizer": tokenizers.sha256,
        "vocabularies": {side: tokenizers.size(side) for side in tokenizers.sides},
        "parameters": count_parameters(session.module.model),
        "wandb": secrets.token_hex(4),
    }


def told_of_repeat(repeat_of: Mapping[str, Any] | None) -> list[str]:
    """What a repeat says at its start: of what, and all that is known to differ."""
    if repeat_of is None:
        return []
    return [f"repeats {repeat_of['run']}", *(f"not as then: {each}" for each in repeat_of["differs"])]


def fit(session: TrainingSetup, journal: MetricsLogger | None) -> None:
    """Trains, from the last checkpoint if there is one."""
    course, training = session.course, session.recipe.training
    course.journal = journal
    if session.checkpoint:
        session.display.say(f"going on from {session.checkpoint}")
    val = session.data.val
    course.reading = EvalBatchSampler(val, tokens_per_batch=training["tokens_per_batch"]) if val else None
    try:
        session.trainer.fit(
            session.module,
            data_loader(course.order.order.corpus, course.order, training["workers"]),
            data_loader(val, course.reading) if val and course.reading else None,
            ckpt_path=session.checkpoint,
            weights_only=True,
        )
    finally:
        course.signals.restore()


@contextmanager
def reported(session: TrainingSetup) -> Iterator[None]:
    """Writes into run.json how a training that did not finish ended, and turns machine trouble into words."""
    try:
        yield
    except TrainingInterrupted as stopped:
        if not is_main_process():
            raise SystemExit(0) from None  # the first process says how it ended; this one must not look like a crash
        close(session, "interrupted")
        session.display.say(
            f"stopped at step {session.course.now.step:,}, nothing is lost; the same command with "
            f"`--resume --run {session.folder.path}` goes on"
        )
        if stopped.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + stopped.number) from None
    except (KeyboardInterrupt, SystemExit):
        close(session, "interrupted")
        raise
    except ComposerError:
        close(session, "failed")
        raise
    except OSError as error:
        close(session, "failed")
        raise cannot_write(error, session.folder) from error
    except (RuntimeError, MemoryError) as error:
        close(session, "failed")
        if is_out_of_memory(error):
            raise out_of_memory(session) from error
        raise
    except BaseException:
        close(session, "failed")
        raise


def close(session: TrainingSetup, status: str) -> None:
    """Ends the journal and says in run.json how the run ended, as far as the disk lets it."""
    if (journal := session.course.journal) is not None:
        journal.close(1)
    if is_main_process():
        try:
            session.folder.update(status=status, ended_at=run_dir.utc_now())
        except (OSError, RunError):
            return


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device, or this machine, had no memory left."""
    told = ("not enough memory", "allocate memory", "out of memory")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in str(error) for words in told)


def out_of_memory(session: TrainingSetup) -> RunFailed:
    """What was being computed, and what to make smaller."""
    budget = session.recipe.training["tokens_per_batch"]
    return RunFailed.of(
        f"out of memory on a batch of {session.module.shapes()} with `tokens_per_batch` {budget}",
        f"set `training.tokens_per_batch` to {max(1, budget // 2)}, or `training.accumulate` to "
        f"{2 * session.recipe.training['accumulate']}: the update is then the same",
        str(session.folder.path),
    )


def cannot_write(error: OSError, folder: RunDir) -> RunFailed:
    """A full or read-only disk, in words."""
    fix = f"{os_error_hint(error)}, or take another with `--run DIR`; `--resume` goes on from the last checkpoint"
    return RunFailed.of(os_error_reason(error), fix, str(error.filename or folder.path))
