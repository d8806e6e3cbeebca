"""Set up a training in this process: data, module, callback, Lightning's Trainer; then run
directory and loggers.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from blocks.core.fixes import Fix, Remove, write
from composer.atomic_io import atomic_write
from composer.checks.block_values import values
from composer.checks.planner import Plan, at_sizes
from composer.checks.problem import faults
from composer.data.sampler import ResumableBatchSampler
from composer.data.sources import DataSource, is_endless
from composer.data.tokenizer_cache import cached_tokenizers
from composer.errors import RecipeError, RunError, one_line_error
from composer.fingerprint import (
    check_checkpoint,
    has_current_fingerprints,
    initial_weights,
    known_changes,
    lines_sha256,
    make_fingerprints,
)
from composer.inference.run import open_run
from composer.model.machine import runs_on_cpu
from composer.model.parameter_paths import count_frozen
from composer.model.weights import count_parameters
from composer.recipe.earlier_versions import TRAINING_CHANGES, changes_since
from composer.recipe.fingerprints import FINGERPRINT_VERSION
from composer.recipe.metrics import TextMetrics
from composer.recipe.recipe import Recipe
from composer.recipe.registry import CPU_REFUSES_16
from composer.run_dir import (
    RESUME,
    RunDir,
    checkpoint_history,
    checkpoint_step,
    latest_checkpoint,
    read_metrics,
    utc_now,
)
from composer.runs.record import (
    Budget,
    ChosenMetrics,
    FingerprintParts,
    Fingerprints,
    RecordedData,
    RunRecord,
    Transferred,
)
from composer.training.budget import budget_of, replace_budget
from composer.training.callback import SHARE_FOLDER, TrainingLoopCallback
from composer.training.checkpointing import AtomicCheckpointIO, weight_averages
from composer.training.datamodule import Curriculum, RecipeDataModule
from composer.training.distributed import (
    cluster_environment,
    exit_with_launcher,
    external_launcher,
    launched_world,
)
from composer.training.lightning import (
    Callback,
    Checkpoint,
    DDPStrategy,
    Logger,
    MisconfigurationException,
    ProgressBar,
    Strategy,
    Trainer,
    seed_everything,
)
from composer.training.loggers import JsonLinesWriter, MetricsLogger, ProgressDisplay
from composer.training.module import Seq2SeqModule
from composer.training.reproduce import (
    ReproducedRun,
    environment_differences,
    reproduced_steps,
    with_environment,
)
from composer.training.resume import (
    Transfer,
    check_same_data,
    existing_tokenizers,
    file_budget,
    transfer_weights,
)
from composer.training.sharding import ShardedStrategy
from composer.training.validation_decoder import training_metrics, validation_decoder
from composer.training.wandb_logger import WandbLogger, run_config, run_tags, wandb_mode
from composer.viz.architecture import Drawing, draw_plan

TOKENIZER_SECONDS = 3600.0
"""Seconds that a process waits for the main one to have trained the tokenizer."""


@dataclass(frozen=True)
class TrainingSetup:
    """The parts of one training in this process.

    `record` is the run.json that was there, None for a new run; `checkpoint` is what to resume
    from; `start_from` is the run whose weights this one starts from, `transfer` what it takes of
    them; `original` is the run that it reproduces; `budgets` are in order; `metrics` are those of
    decoded texts. `plan` is that of the model, None in all processes but the main one.
    """

    source: DataSource
    run_dir: RunDir
    record: RunRecord | None
    display: ProgressDisplay
    data: RecipeDataModule
    module: Seq2SeqModule
    loop: TrainingLoopCallback
    trainer: Trainer
    start_from: Path | None
    checkpoint: Path | None
    original: ReproducedRun | None
    budgets: tuple[Budget, ...]
    transfer: Transfer | None
    metrics: TextMetrics | None
    plan: Plan | None

    @property
    def recipe(self) -> Recipe:
        """Return the recipe that is trained."""
        return self.source.recipe

    @cached_property
    def drawing(self) -> Drawing:
        """The architecture, with the sizes of the vocabularies."""
        assert self.plan is not None  # in the main process
        return draw_plan(self.recipe, at_sizes(self.plan, self.recipe, self.data.tokenizers.sizes))


def setup(
    source: DataSource,
    run_dir: RunDir,
    record: RunRecord | None,
    start_from: Path | None,
    display: ProgressDisplay,
    original: ReproducedRun | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    finish: bool = False,
    planned: Plan | None = None,
) -> TrainingSetup:
    """Return data, module, callback and Trainer of a training; write nothing.

    finish: Whether it takes no further step. planned: Of the recipe; only the main process needs
    it.

    Raises DataError if the data cannot be trained on, RunError if data, tokenizer or checkpoint are
    not those that the run was begun with, RecipeError if Lightning refuses the configuration.
    """
    recipe = source.recipe
    display.say(f"{recipe.name}: reading the data")
    tokenizers = (
        original.tokenizers(source) if original and not run_dir.tokenizer.exists() else None
    )
    tokenizers = (
        tokenizers or existing_tokenizers(recipe, run_dir, start_from) or cached_tokenizers(source)
    )
    data = RecipeDataModule(recipe, source, tokenizers)
    if record and run_dir.tokenizer.exists():
        check_same_data(source, data.data, record, run_dir)
    checkpoint = latest_checkpoint(run_dir.checkpoints, display.say)
    if checkpoint is not None:
        check_checkpoint(recipe, data.tokenizers, checkpoint)
    elif any(run_dir.checkpoints.glob("step-*.ckpt")):
        display.say("no checkpoint is intact: the training begins again from its first step")
    if checkpoint is None and finish:
        message = "nothing of this training has been saved yet, so there is nothing to finish with"
        fix = (
            f"continue it with {RESUME}; where its loss has diverged, begin a new run with a"
            " smaller learning rate"
        )
        raise RunError.of(message, fix, str(run_dir.path))
    recorded = record or (original.record if original else None)
    budgets = plan_budgets(recipe, recorded, record is not None, checkpoint, finish)

    training = recipe.training
    seed_everything(training.seed, verbose=False)
    transfer = None
    if start_from is None:
        module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
    else:
        module = Seq2SeqModule(recipe.dump(), data.tokenizers.text, (recipe, data.tokenizers))
        if checkpoint is None:
            # its random weights must not move the stream of the training
            with torch.random.fork_rng(devices=[]):
                other = open_run(start_from)
            transfer = transfer_weights(recipe, data.tokenizers, module.model, other)
            for line in transfer.describe():
                display.say(line)
    prepare_model(module, display.say)

    settings = None if recipe.window else training.curriculum  # all windows are equally long
    curriculum = Curriculum(settings, training.seed) if settings else None
    data.plan_batches(module.model, training.accumulate, curriculum)
    assert data.batches is not None
    # without `validate_every` Lightning validates where an iteration of the sampler ends: after
    # every epoch
    data.resumable = ResumableBatchSampler(data.batches, by_epoch=not training.validate_every)
    metrics = training_metrics(recipe, data.data.splits)
    decoder = validation_decoder(recipe, data.data, metrics)
    if metrics and metrics.left_out:
        display.say(metrics.left_out)
    loop = TrainingLoopCallback(
        recipe, data.resumable, run_dir.checkpoints, curriculum, decoder, budgets
    )
    loop.reproduced_steps = steps_to_repeat(record, original)
    trainer = build_trainer(recipe, [*weight_averages(recipe), loop, *callbacks], loggers)
    parts = (source, run_dir, record, display, data, module, loop, trainer)
    return TrainingSetup(
        *parts, start_from, checkpoint, original, budgets, transfer, metrics, planned
    )


def steps_to_repeat(record: RunRecord | None, original: ReproducedRun | None) -> Mapping[int, int]:
    """Return the steps that the minutes of the reproduced run made, of a training that begins or
    resumes.
    """
    if record and record.reproduces:
        return reproduced_steps(RunDir(Path(record.reproduces.run)))
    return reproduced_steps(original.run_dir) if original else {}


def prepare_model(module: Seq2SeqModule, say: Callable[[str], None]) -> None:
    """Compile the model, if its recipe says so. Raises RecipeError where a foreign block gives NaN
    or reads ahead.
    """
    if errors := [*faults(module.recipe, values(module.model))]:
        raise RecipeError(errors)
    if module.recipe.training.compile:
        module.compile_model(say)


def plan_budgets(
    recipe: Recipe,
    record: RunRecord | None,
    is_resumed: bool,
    checkpoint: Path | None,
    finish: bool,
) -> tuple[Budget, ...]:
    """Return the budgets of a training, in order: those that run.json records, and the recipe's if
    that is another.

    record: run.json of the run that is resumed, or else of the one that is reproduced, which
    followed the same budgets.
    """
    new = budget_of(recipe.training)
    budgets = record.budgets if record and record.budgets else (new,)
    is_new = replace(budgets[-1], until_step=None, validated=False) != new
    if not is_resumed or not (is_new or finish):
        return budgets
    step, history = 0, []
    if checkpoint is not None:
        step, history = checkpoint_step(checkpoint) or 0, checkpoint_history(checkpoint)
    validated = bool(history) and history[-1]["step"] == step
    if finish:  # another budget of the recipe is none that anything was trained with
        return (*budgets[:-1], replace(budgets[-1], until_step=step, validated=validated))
    return tuple(replace_budget(budgets, new, step, validated))


def start_logging(training: TrainingSetup) -> MetricsLogger:
    """Write what a run directory holds from its first moment, and open the log of metrics."""
    run_dir, recipe, data, say = (
        training.run_dir,
        training.recipe,
        training.data,
        training.display.say,
    )
    record = start_record(training)
    run_dir.write(record)
    run_dir.checkpoints.mkdir(exist_ok=True)
    atomic_write(run_dir.recipe, recipe.dump().encode())
    if not run_dir.tokenizer.exists():
        data.tokenizers.save(run_dir.tokenizer)
    settings = recipe.logging.wandb
    wandb = WandbLogger(
        wandb_mode(settings), settings, run_dir.path, recipe.name, record.wandb_id, say
    )
    if wandb.trouble:
        say(f"Weights & Biases could not start: {wandb.trouble}")
    last_step = checkpoint_step(training.checkpoint) if training.checkpoint else 0
    is_extended = any(budget.until_step == last_step for budget in training.budgets[:-1])
    writer = JsonLinesWriter(run_dir.metrics, last_step, is_extended)
    rows = [*read_metrics(run_dir.metrics)]
    if wandb.is_on:
        if training.record:
            wandb.resume(run_dir.path, rows)
        wandb.describe(
            run_dir.recipe,
            run_config(recipe, record),
            run_tags(recipe),
            picture_of(training),
        )
        for row in rows:  # a killed training has not written the last ones
            wandb.write(row)
    for note in data.data.notes:
        say(note)
    known = known_changes(training.record) if training.record else TRAINING_CHANGES
    for change in changes_since(recipe.canonical, known):
        say(f"this run began with an earlier version; since then, {change}")
    if reproduces := record.reproduces:
        say(f"reproduces {reproduces.run}")
        for difference in reproduces.differs:
            say(f"differs from it: {difference}")
    sizes = ", ".join(f"{side} {size:,}" for side, size in record.vocabularies.items())
    noun = "pairs" if recipe.sources else "texts"
    pairs = (
        f"{len(data.train):,} training"
        f" {noun}{', new ones in every epoch' if is_endless(recipe) else ''}"
    )
    frozen = (
        f", {count:,} of them frozen"
        if (count := count_frozen(recipe, training.module.model))
        else ""
    )
    say(f"{record.parameters:,} parameters{frozen}; {pairs}; vocabulary: {sizes}")
    return MetricsLogger(writer, wandb, training.display)


def picture_of(training: TrainingSetup) -> str:
    """Return the architecture as SVG; "" where it cannot be drawn, for which no training ends."""
    try:
        return training.drawing.svg()
    except Exception as error:
        training.display.say(
            f"no picture of the architecture for Weights & Biases: {one_line_error(error)}"
        )
        return ""


def start_record(training: TrainingSetup) -> RunRecord:
    """Return run.json for a training that begins or resumes, perhaps with other code or on another
    machine.
    """
    if training.record is None or not training.run_dir.tokenizer.exists():
        return fresh_record(training)
    return resumed_record(training, training.record)


def fresh_record(training: TrainingSetup) -> RunRecord:
    """Return run.json for a training that begins."""
    recipe, data, module = training.recipe, training.data, training.module
    pairs, train, val = data.data.pairs, data.data.train, data.data.val
    weights = initial_weights(RunDir(training.start_from)) if training.start_from else None
    transfer, metrics = training.transfer, training.metrics
    chosen = None  # by the data, where the recipe names none
    if metrics and recipe.evaluation.metrics is None:
        chosen = ChosenMetrics(metrics.names, metrics.bleu_tokenizer, metrics.left_out)
    record = RunRecord(
        name=recipe.name,
        status="running",
        canonical=recipe.canonical,
        budgets=training.budgets,
        recipe_budget=file_budget(recipe),
        seed=recipe.training.seed,
        started_at=utc_now(),
        start_from=str(training.start_from) if training.start_from else None,
        initial_weights=weights,
        transferred=Transferred(transfer.taken, transfer.new) if transfer else None,
        data=RecordedData(
            folders=data_folders(training),
            pairs={split: len(rows) for split, rows in pairs.items()},
            train_pairs_used=len(data.train),
            sha256=train.sha256 if train else None,
            val_sha256=val.sha256 if val else None,
            val_unknown=round(val.unknown_share(), 4) if val else None,
        ),
        metrics=chosen,
        recipe_sha256=recipe_sha256(recipe),
        tokenizer_sha256=data.tokenizers.sha256,
        vocabularies=data.tokenizers.sizes,
        parameters=count_parameters(module.model),
        wandb_id=secrets.token_hex(4),
    )
    record = with_fingerprints(
        with_environment(record, recipe, training.trainer), training, TRAINING_CHANGES
    )
    if training.original:
        return replace(
            record, reproduces=training.original.comparison_record(recipe, data.data, record)
        )
    return record


def resumed_record(training: TrainingSetup, before: RunRecord) -> RunRecord:
    """Return run.json for a training that resumes: with what has changed since it began, and its
    new budget.
    """
    recipe, known = training.recipe, known_changes(before)
    record = replace(
        with_environment(before, recipe, training.trainer),
        status="running",
        ended_at=None,
        finished_early=False,
        canonical=recipe.canonical,
        recipe_sha256=recipe_sha256(recipe),
        data=replace(before.data, folders=data_folders(training)),  # the data may have moved
    )
    since = [f"other code: {change}" for change in changes_since(recipe.canonical, known)]
    changes = dict.fromkeys(
        [*before.resumed_with, *since, *environment_differences(before, record)]
    )
    record = replace(record, resumed_with=tuple(changes))
    if recipe.file.resolve() != training.run_dir.recipe.resolve():  # whose budget is the run's own
        record = replace(record, recipe_budget=file_budget(recipe))
    has_same_budgets = not before.budgets or training.budgets == before.budgets
    if has_same_budgets and has_current_fingerprints(before):
        return record
    reproduces = record.reproduces if has_same_budgets else None
    record = replace(record, budgets=training.budgets, reproduces=reproduces)
    return with_fingerprints(record, training, known)


def with_fingerprints(
    record: RunRecord, training: TrainingSetup, changes: Iterable[str]
) -> RunRecord:
    """Return run.json with the fingerprints of a training. changes: the TRAINING_CHANGES with which
    it began.
    """
    recipe, count = training.recipe, training.trainer.world_size
    draws = training.plan is not None and training.plan.draws_random_numbers
    lines = lines_sha256(recipe, training.data.data.pairs)
    parts = FingerprintParts(lines, count if draws else 1, tuple(changes))
    prints = make_fingerprints(recipe, parts, record.initial_weights, record.budgets)
    made = Fingerprints(
        model=prints["model"],
        data=prints["data"],
        run=prints["run"],
        recipe=prints["recipe"],
        version=FINGERPRINT_VERSION,
    )
    return replace(record, fingerprints=made, fingerprint_parts=parts)


def recipe_sha256(recipe: Recipe) -> str:
    """Return the SHA-256 of a run's recipe.yaml."""
    return hashlib.sha256(recipe.dump().encode()).hexdigest()


def data_folders(training: TrainingSetup) -> tuple[str, ...]:
    """Return where the data of a training are looked up."""
    return tuple(str(folder) for folder in training.source.folders)


def wait_for_record(run_dir: RunDir) -> RunRecord:
    """Return run.json once the main process has written all that the others read. Raises RunError
    after an hour.
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


def build_trainer(
    recipe: Recipe, callbacks: Sequence[Callback] = (), loggers: Sequence[Logger] = ()
) -> Trainer:
    """Return the Trainer that `trainer:` and `training:` of a recipe describe.

    Raises RecipeError if Lightning refuses the combination, at the place in the recipe that it most
    likely means.
    """
    training, every = recipe.training, recipe.training.validate_every
    precision = str(training.precision)  # `bf16` and `16` are short forms
    # what Lightning does not read here
    own = ("enable_progress_bar", "log_every_n_steps", "timeout_minutes")
    chosen = recipe.trainer.as_data()
    arguments = {
        key: value for key, value in chosen.items() if value is not None and key not in own
    }
    exit_with_launcher()
    try:
        machine = resolve_devices(recipe)
        arguments |= machine | {
            "strategy": make_strategy(machine, timedelta(minutes=recipe.trainer.timeout_minutes)),
            "plugins": [AtomicCheckpointIO(), cluster_environment()],
            "callbacks": [*callbacks],
            "logger": [*loggers] or False,
            # Lightning's own would be added to those that the caller gives: nothing is written
            # twice
            "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
            "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
            "enable_autolog_hparams": False,
            "num_sanity_val_steps": 0,
            "max_epochs": -1,  # the loop's budget ends the training
            "precision": {"bf16": "bf16-mixed", "16": "16-mixed"}.get(precision, precision),
            "accumulate_grad_batches": training.accumulate,
            # every so many batches; or at the end of an epoch, and then the batch sampler ends with
            # each
            "val_check_interval": every * training.accumulate if every else 1.0,
            "check_val_every_n_epoch": None if every else 1,
            # the batch sampler splits batches over devices itself
            "use_distributed_sampler": False,
        }
        return Trainer(**arguments)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        message = " ".join(str(error).split())
        places = {key: ("trainer", key) for key in chosen}
        places |= dict.fromkeys(["gpu", "XLA", "xla"], ("trainer", "accelerator"))
        places["recision"] = ("training", "precision")
        path = next((path for word, path in places.items() if word in message), ("trainer",))
        cause = f"Lightning refuses this configuration: {message}"
        fix = Fix("change it, or remove it", Remove(path) if len(path) > 1 else None)
        raise RecipeError([recipe.fault("trainer", path, cause, fix)]) from error


def resolve_devices(recipe: Recipe) -> dict[str, object]:
    """Return accelerator, devices per machine, machines and strategy, with every `auto` of the
    recipe resolved.

    Under a launcher (torchrun, srun) devices and machines are what it started. Otherwise a CPU gets
    one process, whose threads already use the whole machine, and a notebook one device. Raises
    RecipeError if the recipe contradicts the launcher, asks a notebook for several devices, or a
    CPU for `16-mixed`.
    """
    chosen = recipe.trainer.as_data()
    machine = {key: chosen[key] for key in ("accelerator", "devices", "num_nodes", "strategy")}
    on_cpu = runs_on_cpu(machine["accelerator"])
    if external_launcher():
        for key, started in zip(("devices", "num_nodes"), launched_world(), strict=True):
            if machine[key] == "auto":
                machine[key] = started
            elif num_devices(machine[key]) != started:
                noun = "processes on each machine" if key == "devices" else "machines"
                message = (
                    f"{external_launcher()} has started {started} {noun}, and `{key}` is"
                    f" {machine[key]}"
                )
                path = ("trainer", key)
                raise RecipeError(
                    [
                        recipe.fault(
                            "trainer", path, message, write(path, "auto", ", or start as many")
                        )
                    ]
                )
    elif on_cpu and machine["devices"] == "auto":
        machine |= {"accelerator": "cpu", "devices": 1}
    machine["num_nodes"] = 1 if machine["num_nodes"] == "auto" else machine["num_nodes"]
    # a notebook and a console cannot be started again
    if hasattr(sys, "ps1") and machine["accelerator"] != "tpu":
        machine["devices"] = 1 if machine["devices"] == "auto" else machine["devices"]
        if num_processes(machine) > 1:
            message = (
                "several devices need a process each, and a notebook or a console cannot be started"
                " again"
            )
            path = ("trainer", "devices")
            fix = write(path, 1, ", or train by `seqcomposer train` or a script")
            raise RecipeError([recipe.fault("trainer", path, message, fix)])
    # a TPU's processes are Lightning's own matter
    if (
        machine["strategy"] == "auto"
        and machine["accelerator"] not in ("mps", "tpu")
        and num_processes(machine) > 1
    ):
        machine["strategy"] = "ddp"
    if str(recipe.training.precision) == "16-mixed" and on_cpu:
        # Lightning would train in bf16-mixed, and call it 16-mixed
        message, fix = CPU_REFUSES_16
        message = f"{message}, and there is no GPU"
        raise RecipeError([recipe.fault("value", ("training", "precision"), message, fix)])
    return machine


def num_devices(devices: Any) -> int:
    """Return how many devices `trainer.devices` asks for; 0 for all."""
    return len(devices) if isinstance(devices, list) else 0 if devices == "auto" else devices


def num_processes(machine: Mapping[str, Any]) -> int:
    """Return how many processes train together on the resolved machines, one for each device."""
    # one of a Mac, and of a machine that plans for others' GPUs
    all_devices = max(1, torch.cuda.device_count())
    return machine["num_nodes"] * (num_devices(machine["devices"]) or all_devices)


def make_strategy(machine: Mapping[str, object], timeout: timedelta) -> Strategy | str:
    """Return Lightning's strategy; a process that waits for another longer than `timeout` ends."""
    if machine["strategy"] == "fsdp":
        return ShardedStrategy(
            num_processes(machine), 1, save_distributed_checkpoint=False, timeout=timeout
        )
    return DDPStrategy(timeout=timeout) if machine["strategy"] == "ddp" else "auto"


def silence_lightning() -> None:
    """Silence the tips and warnings of Lightning; its errors and the profiler's table stay."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning.profilers").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", module="pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
