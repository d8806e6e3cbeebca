"""Training: from a recipe to a run folder."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer, seed_everything
from rich.console import Console

from composer import run_folder
from composer.allocator import keep_freed_memory
from composer.budget import DEFAULT_EPOCHS, Budget
from composer.course import Course
from composer.data.batches import ReadingOrder, TrainingOrder, loader
from composer.data.load import Data, load_data
from composer.data.pairs import check_files
from composer.data.tokenizer import Tokenizers
from composer.errors import ComposerError, RunError, RunFailed
from composer.journal import Journal
from composer.keeper import Keeper
from composer.metrics_log import MetricsLog
from composer.module import Seq2Seq
from composer.outcome import Outcome, conclude
from composer.plan import plan
from composer.position import EndlessOrder
from composer.progress import Display
from composer.recipe import Recipe
from composer.run_folder import RunFolder
from composer.samples import Judge
from composer.signals import Signals, Stopped
from composer.start import last_checkpoint, must_be_same, must_be_same_data, take_weights, tokenizers_of
from composer.trainer import quieten, rank, trainer_of
from composer.wandb_log import WandbLog

RUNS = Path("runs")
PATIENCE = 3600.0
"""Seconds that a process waits for the first one to have trained the tokenizer."""


def train(
    recipe: Recipe,
    run: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
) -> Outcome:
    """Trains `recipe` and writes the run folder `run` (`runs/NAME`).

    Raises RecipeError, DataError or RunError, with nothing written, where the recipe, its files or the folder are not
    fit; RunFailed where a training cannot go on; KeyboardInterrupt or SystemExit(143) after a signal.
    """
    quieten()
    keep_freed_memory()
    folder = RunFolder(Path(run) if run else RUNS / recipe.name)
    display = Display(Console(soft_wrap=True, quiet=rank() != 0))
    record: dict[str, Any] = {}
    if rank() == 0:
        run_folder.refuse(folder, resume)
        record = {} if folder.is_empty() else folder.read()
        if record.get("status") == "finished":
            display.say(f"{folder.path} is finished already; nothing is left to do")
            return Outcome(folder.path, record)
        if record:
            must_be_same(recipe, folder, record)
        check(recipe, data_folders(recipe, data, record))
    session = prepare(recipe, folder, data, Path(start_from) if start_from else None, record, display)
    with held(folder, resume), reported(session):
        begin(session)
        fit(session)
        return conclude(session)


def check(recipe: Recipe, folders: list[Path]) -> None:
    """Raises every fault of the model and of the data files together."""
    faults = check_files(recipe, folders)
    try:
        plan(recipe)
    except ComposerError as error:
        faults += error.faults
    if faults:
        raise ComposerError(faults)


@dataclass
class Session:
    """All that one process has in hand while it trains."""

    recipe: Recipe
    folder: RunFolder
    folders: list[Path]
    data: Data
    module: Seq2Seq
    order: EndlessOrder
    signals: Signals
    display: Display
    record: dict[str, Any]
    keeper: Keeper
    course: Course
    trainer: Trainer


def prepare(
    recipe: Recipe, folder: RunFolder, data: str | Path | None, start_from: Path | None, record: dict[str, Any],
    display: Display,
) -> Session:  # fmt: skip
    """Data, tokenizers, model and trainer; writes nothing. Raises DataError and RunError."""
    if rank() != 0:
        wait_for(folder.tokenizer)
    folders = data_folders(recipe, data, record)
    display.say(f"reading the data of {recipe.name}")
    loaded = load_data(recipe, folders, tokenizers_of(recipe, folder, start_from))
    if record:
        must_be_same_data(loaded.train, record, folder)
    training = recipe.training
    seed_everything(training["seed"], verbose=False)
    module = Seq2Seq(recipe.dump(), loaded.tokenizers.text(), (recipe, loaded.tokenizers))
    if start_from is not None:
        take_weights(module.model, start_from)
    if training["compile"]:
        module.model.compile()
    order = EndlessOrder(
        TrainingOrder(
            loaded.train, tokens_per_batch=training["tokens_per_batch"], seed=training["seed"],
            accumulate=training["accumulate"],
        )
    )  # fmt: skip
    signals = Signals()
    early = training["early_stopping"]
    keeper = Keeper(folder.checkpoints, max(2, training["average_checkpoints"]), early["metric"] if early else "val/loss")
    course = Course(
        budget_of(training), order, keeper, signals, training["validate_every"], early, loaded.tokenizers.sha256
    )
    trainer = trainer_of(recipe, [course])
    return Session(recipe, folder, folders, loaded, module, order, signals, display, record, keeper, course, trainer)


def budget_of(training: dict[str, Any]) -> Budget:
    """The budget that a recipe names; ten epochs where it names none."""
    limits = training["max_steps"], training["max_epochs"], training["max_minutes"]
    return Budget(*limits) if any(limits) else Budget(epochs=DEFAULT_EPOCHS)


def data_folders(recipe: Recipe, data: str | Path | None, record: dict[str, Any]) -> list[Path]:
    """Where data files are looked up: as told, else as the run was told when it began, then beside the recipe."""
    known = [Path(folder) for folder in record.get("data", {}).get("folders", [])] if data is None else []
    return [*known, *(folder.resolve() for folder in recipe.folders(data) if folder.resolve() not in known)]


def wait_for(path: Path) -> None:
    """Waits until the first process has written a file. Raises RunError after an hour."""
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            raise RunError.of("the first process has not written this file within an hour", "", str(path))
        time.sleep(0.2)


@contextmanager
def held(folder: RunFolder, resume: bool) -> Iterator[None]:
    """Holds the folder against other trainings; only the first process writes there."""
    if rank() != 0:
        yield
        return
    with run_folder.lock(folder):
        run_folder.refuse(folder, resume)
        yield


def begin(session: Session) -> None:
    """Writes what a run folder holds from its first moment, and opens the journal."""
    if rank() != 0:
        return
    recipe, folder, loaded = session.recipe, session.folder, session.data
    if not session.record:
        folder.checkpoints.mkdir(exist_ok=True)
        folder.recipe.write_text(recipe.dump(), encoding="utf-8")
        session.record = first_record(session)
        folder.write(session.record)
        loaded.tokenizers.save(folder.tokenizer)
    session.record = folder.update(status="running", versions=run_folder.versions())
    wandb = WandbLog(recipe.logging["wandb"], folder.path, recipe.name, session.record["wandb"])
    session.display.say(wandb.told(folder.path))
    for note in loaded.notes:
        session.display.say(note)
    wandb.describe(folder.recipe, recipe.written)
    session.wandb = wandb
