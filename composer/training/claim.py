"""The run folder that a training writes: its choice, its state, and its lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from composer.data.sources import DataSource
from composer.errors import FolderLocked, RunError
from composer.inference.run import as_begun
from composer.recipe.canonical_form import BUDGET_KEYS
from composer.recipe.recipe import Recipe
from composer.run_dir import (
    OTHER_RUN,
    RESUME,
    RunDir,
    check_writable,
    find_run,
    is_trial_run,
    list_checkpoints,
    locked,
)
from composer.runs.record import RunRecord
from composer.training.budget import is_spent, resumed_recipe
from composer.training.distributed import SHARE_FOLDER, is_main_process
from composer.training.reproduce import ReproducedRun, default_folder, find_original_run
from composer.training.resume import (
    NEW_RUN,
    check_same_recipe,
    keep_meaning,
    resolve_initial_run,
)

TOKENIZER_SECONDS = 3600.0
"""Seconds that a process waits for the main one to have trained the tokenizer."""


@dataclass(frozen=True)
class ClaimedRun:
    """The run that a training writes, and what is known of it before.

    record: run.json as it was; None for a new run.
    original: The run that this one reproduces.
    start_from: The run whose weights the user asks to start from; see `initial_run`.
    finish: Whether the training takes no further step.
    """

    recipe: Recipe
    run_dir: RunDir
    record: RunRecord | None = None
    original: ReproducedRun | None = None
    start_from: Path | None = None
    finish: bool = False

    @property
    def has_nothing_left(self) -> bool:
        """True if the run has finished, and its budget is spent or is not to be spent."""
        if self.record is None or not self.record.is_finished:
            return False
        return self.finish or is_spent(self.recipe, self.record)

    @cached_property
    def initial_run(self) -> Path | None:
        """The run whose weights this run starts from; None for random ones. Raises RunError."""
        return resolve_initial_run(self.start_from, self.record, self.run_dir, self.original)

    def open_source(self, data: str | Path | None) -> DataSource:
        """Return the data of the run, from the folder `data` or else from its own."""
        folders: list[Path] = []
        if data is None:
            before = self.record or _record_of_recipe(self.recipe) or RunRecord()
            folders = [Path(folder) for folder in before.data.folders]
        folders += [path.resolve() for path in self.recipe.folders(data)]
        return DataSource(self.recipe, list(dict.fromkeys(folders)))

    def describe_finished(self) -> str:
        """Return in words that the run has finished, and how it goes on."""
        assert self.record is not None
        done = f"{self.run_dir.path} has already finished; there is nothing to do"
        if self.recipe.training.early_stopping and not self.record.finished_early:
            return done
        limits = self.recipe.training.limits
        key = next(key for key in BUDGET_KEYS if limits[key] is not None)
        past = [budget.limits[key] or 0 for budget in self.record.budgets]
        larger = 2 * max([limits[key] or 0, *past])
        return (
            f"{done}; a larger budget continues it, such as `--resume training.{key}={larger:.10g}`"
        )


def choose_folder(
    recipe: Recipe, run: str | Path | None, start_from: str | Path | None, resume: bool
) -> RunDir:
    """Return the folder that a training writes: `run`, or else that of its recipe."""
    if run:
        return RunDir(Path(run))
    initial = None if start_from is None else find_run(start_from)
    return RunDir(default_folder(recipe, initial, resume))


def claim_run(
    recipe: Recipe,
    run_dir: RunDir,
    start_from: str | Path | None,
    resume: bool,
    finish: bool,
    say: Callable[[str], None],
) -> ClaimedRun:
    """Return the run that a training of this recipe writes, its recipe with the run's budget.

    Only the main process writes; the others wait for its run.json. Raises RunError if the folder
    may not be written, or its run was begun with another recipe.
    """
    initial = None if start_from is None else find_run(start_from)
    original = find_original_run(recipe, run_dir.path, initial)
    if finish and not run_dir.record.exists():
        raise RunError.of(
            "there is no run to finish in this folder",
            f"name it with {OTHER_RUN}",
            str(run_dir.path),
        )
    record = read_record(run_dir, resume)
    if record:
        recipe = keep_meaning(recipe, run_dir, record)
        if is_main_process():
            check_same_recipe(recipe, run_dir, record)
        if resume:
            recipe = as_begun(resumed_recipe(recipe, run_dir, record, finish, say), record)
    claimed = ClaimedRun(recipe, run_dir, record, original, initial, finish)
    if record and record.is_finished and not claimed.has_nothing_left:
        check_continuable(run_dir)
    return claimed


def read_record(run_dir: RunDir, resume: bool) -> RunRecord | None:
    """Return run.json of a folder to be written, None for a new run. Raises RunError."""
    if not is_main_process():
        return wait_for_record(run_dir)
    check_writable(run_dir, resume)
    return None if run_dir.is_empty() else run_dir.read()


def wait_for_record(run_dir: RunDir) -> RunRecord:
    """Return run.json once the main process has written all that the others read.

    Raises RunError after an hour.
    """
    deadline = time.monotonic() + TOKENIZER_SECONDS
    while not run_dir.tokenizer.exists():
        if time.monotonic() > deadline:
            cause = "the first process has not written this file within an hour"
            fix = (
                "read what the first process has printed, which may have been refused;"
                f" {SHARE_FOLDER}"
            )
            raise RunError.of(cause, fix, str(run_dir.tokenizer.absolute()))
        time.sleep(0.2)
    return run_dir.read()


def check_continuable(run_dir: RunDir) -> None:
    """Raise RunError if a finished run has no checkpoints, or counts in a sweep."""
    path = str(run_dir.path)
    if not list_checkpoints(run_dir.checkpoints):
        message = (
            "this run has finished, and its checkpoints are not here: packs and averages have none"
        )
        raise RunError.of(message, NEW_RUN, path)
    if is_trial_run(run_dir):
        message = (
            "this run is a trial of a sweep, whose leaderboard would change if it were trained on"
        )
        fix = f"copy the folder, and resume the copy by its recipe.yaml; or {NEW_RUN}"
        raise RunError.of(message, fix, path)


@contextmanager
def locked_run(claimed: ClaimedRun, resume: bool) -> Iterator[None]:
    """Lock the run folder against other trainings; only the main process writes, and locks.

    Raises FolderLocked if another process holds it, or has written since the run was claimed.
    """
    if not is_main_process():
        yield
        return
    run_dir = claimed.run_dir
    with locked(run_dir):
        check_writable(run_dir, resume)
        if claimed.record and run_dir.read() != claimed.record:
            message = "another training has been writing into this folder"
            raise FolderLocked.of(message, f"repeat the command with {RESUME}", str(run_dir.path))
        yield


def _record_of_recipe(recipe: Recipe) -> RunRecord | None:
    """Return run.json of the run whose recipe.yaml this recipe is; None of any other recipe."""
    run = RunDir.of_recipe(recipe.file)
    return None if run is None else run.read()
