"""Train a recipe: claim the run folder, check, set up, fit, finalize."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from composer.checks.planner import Plan
from composer.data.sources import DataSource
from composer.errors import RecipeError
from composer.fingerprint import read_verified
from composer.recipe.recipe import Recipe
from composer.run_dir import START_FROM
from composer.runs.record import RunRecord
from composer.training.claim import ClaimedRun, choose_folder, claim_run, locked_run
from composer.training.devices import resolve_devices
from composer.training.distributed import TrainingEnded, is_main_process, training_process
from composer.training.failures import recorded_failure
from composer.training.finalize import finalize
from composer.training.launch import launch, processes_to_start
from composer.training.lightning import Callback, Logger
from composer.training.loggers import ProgressDisplay
from composer.training.preflight import check_built_training, check_machine, check_model_and_data
from composer.training.process_state import restored_process
from composer.training.setup import TrainingSetup, setup
from composer.training.start import start_logging
from composer.training.trainer import silence_lightning
from composer.training.wandb_logger import describe_mode, wandb_mode


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: its run directory and its run.json."""

    run_dir: Path
    record: RunRecord = field(repr=False)

    @property
    def scores(self) -> Mapping[str, float | None]:
        """Return the scores of the final weights, by the names under which they are logged."""
        return self.record.scores


@restored_process()
def train(
    recipe: Recipe,
    run: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    finish: bool = False,
) -> TrainingResult:
    """Train a loaded recipe, as `composer.train` says.

    Raises:
        KeyboardInterrupt, SystemExit: After SIGINT; after SIGTERM, with status 143.
    """
    silence_lightning()
    resume = resume or finish
    run_dir = choose_folder(recipe, run, start_from, resume)
    processes = processes_to_start(resolve_devices(recipe))
    display = open_display(recipe)
    # of several processes the first one says it
    say = display.say if processes == 1 else ProgressDisplay(quiet=True).say
    claimed = claim_run(recipe, run_dir, start_from, resume, finish, say)
    if claimed.has_nothing_left:
        return finished_result(claimed, display)
    check_adapted_run(claimed)
    source = claimed.open_source(data)
    plan = check_and_plan(source, say) if is_main_process() else None
    if processes > 1:
        check_machine(claimed.recipe)
        settings = (run_dir.path, data, resume, start_from, callbacks, loggers, finish)
        launch(partial(train, recipe, *settings), processes)
        return TrainingResult(run_dir.path, run_dir.read())
    display.say(describe_mode(wandb_mode(claimed.recipe.logging.wandb), claimed.run_dir.path))
    training = setup(claimed, source, display, plan, callbacks, loggers)
    for warning in check_built_training(training):
        display.say(warning.render())
    with locked_run(claimed, resume), recorded_failure(training):
        if is_main_process():
            training.loop.logger = start_logging(training)
        fit(training)
        return TrainingResult(claimed.run_dir.path, finalize(training))


def check_adapted_run(claimed: ClaimedRun) -> None:
    """Raise RecipeError for adapters beside random weights."""
    recipe = claimed.recipe
    if recipe.training.adapters and claimed.initial_run is None:
        message = "adapters are trained beside the weights of a run, and these would be random"
        fix = f"name the run with {START_FROM}"
        raise RecipeError([recipe.fault("missing", ("training", "adapters"), message, fix)])


def open_display(recipe: Recipe) -> ProgressDisplay:
    """Return the display of a training; only the main process shows something."""
    is_quiet = not is_main_process() or recipe.trainer.enable_progress_bar is False
    return ProgressDisplay(quiet=is_quiet)


def finished_result(claimed: ClaimedRun, display: ProgressDisplay) -> TrainingResult:
    """Return the result of a run that has nothing left to do. Raises RunError if it was changed."""
    assert claimed.record is not None
    read_verified(claimed.run_dir)
    display.say(claimed.describe_finished())
    return TrainingResult(claimed.run_dir.path, claimed.record)


def check_and_plan(source: DataSource, say: Callable[[str], None]) -> Plan:
    """Return the plan of the model, and say its warnings. Raises ComposerError."""
    plan, _ = check_model_and_data(source, sampled=False)
    for warning in plan.warnings:
        say(warning.render())
    return plan


def fit(training: TrainingSetup) -> None:
    """Train with Lightning, from the last checkpoint if there is one."""
    trainer, checkpoint = training.trainer, training.start.checkpoint
    if checkpoint:
        training.display.say(f"resuming from {checkpoint}")
    # Lightning starts a TPU's processes
    local = 1 if training.recipe.trainer.accelerator == "tpu" else trainer.num_devices
    try:
        with training_process(local), suppress(TrainingEnded):
            trainer.fit(
                training.module, datamodule=training.data, ckpt_path=checkpoint, weights_only=True
            )
    finally:
        training.loop.signals.restore()
