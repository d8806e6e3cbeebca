"""Set up a training in this process: open the data, build the model, the loop and the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from composer.checks.block_values import values
from composer.checks.planner import Plan, at_sizes
from composer.checks.problem import faults
from composer.checks.teacher import other_tokenizer
from composer.data.sampler import ResumableBatchSampler
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_cache import cached_tokenizers
from composer.errors import RecipeError, RunError
from composer.fingerprint import check_checkpoint, teacher_facts, teacher_run
from composer.inference.encoders import is_encoder, open_encoder
from composer.metrics.choice import TextMetrics
from composer.recipe.recipe import Recipe
from composer.run_dir import OTHER_RUN, RESUME, RunDir, latest_checkpoint
from composer.runs.record import Budget, TeacherRun
from composer.training.budget import plan_budgets, resumed_budgets
from composer.training.callback import TrainingLoopCallback
from composer.training.claim import ClaimedRun
from composer.training.datamodule import Curriculum, RecipeDataModule
from composer.training.distillation import open_frozen
from composer.training.lightning import Callback, Logger, Trainer, seed_everything
from composer.training.loggers import ProgressDisplay
from composer.training.module import Seq2SeqModule
from composer.training.reproduce import steps_to_repeat
from composer.training.resume import check_same_data, existing_tokenizers
from composer.training.trainer import build_trainer
from composer.training.transfer import Transfer, transfer_weights
from composer.training.validation_decoder import training_metrics, validation_decoder
from composer.training.weight_average import weight_averages
from composer.viz.architecture import Drawing, draw_plan


@dataclass(frozen=True)
class Start:
    """Where a training starts: a checkpoint to resume from, or weights of another run, or neither.

    budgets: All budgets of the run, in order.
    """

    checkpoint: Path | None
    transfer: Transfer | None
    budgets: tuple[Budget, ...]


@dataclass(frozen=True)
class TrainingSetup:
    """The parts of one training in this process.

    metrics: Those of decoded texts; None where nothing is decoded.
    plan: The plan of the model; only the main process has one.
    teacher: The run that a distilled model learns from.
    """

    run: ClaimedRun
    source: DataSource
    display: ProgressDisplay
    data: RecipeDataModule
    metrics: TextMetrics | None
    start: Start
    module: Seq2SeqModule
    loop: TrainingLoopCallback
    trainer: Trainer
    plan: Plan | None
    teacher: TeacherRun | None

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained."""
        return self.run.recipe

    @property
    def run_dir(self) -> RunDir:
        """The folder of the run."""
        return self.run.run_dir

    @cached_property
    def drawing(self) -> Drawing:
        """The architecture, with the sizes of the vocabularies."""
        assert self.plan is not None  # in the main process
        return draw_plan(self.recipe, at_sizes(self.plan, self.recipe, self.data.tokenizers.sizes))


def setup(
    run: ClaimedRun,
    source: DataSource,
    display: ProgressDisplay,
    plan: Plan | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> TrainingSetup:
    """Return data, module, loop and Trainer of a training; write nothing.

    Raises DataError if the data cannot be trained on, RunError if data, tokenizer or checkpoint are
    not those that the run was begun with, RecipeError if Lightning refuses the configuration.
    """
    recipe, say = run.recipe, display.say
    initial_run = run.initial_run
    say(f"{recipe.name}: reading the data")
    teacher = find_same_teacher(run, source)
    data = open_data(run, source, teacher)
    checkpoint = find_checkpoint(run, data.tokenizers, say)
    if run.record:
        budgets = resumed_budgets(recipe, run.record, checkpoint, run.finish)
    else:
        budgets = plan_budgets(recipe, run.original.record if run.original else None)

    seed_everything(recipe.training.seed, verbose=False)
    module = build_module(recipe, data.tokenizers, initial_run is not None)
    transfer = None
    if initial_run is not None and checkpoint is None:
        transfer = take_weights(module, data.tokenizers, initial_run, say)
    module.add_adapters()
    if teacher is not None:
        module.learn_from(open_frozen(Path(teacher.run)))
    check_block_values(module)
    if recipe.training.compile:
        module.compile_model(say)

    metrics = training_metrics(recipe, data.data.splits)
    loop = build_loop(run, data, module, metrics, budgets)
    if metrics and metrics.left_out:
        say(metrics.left_out)
    trainer = build_trainer(recipe, [*weight_averages(recipe), loop, *callbacks], loggers)
    start = Start(checkpoint, transfer, budgets)
    return TrainingSetup(
        run, source, display, data, metrics, start, module, loop, trainer, plan, teacher
    )


def find_same_teacher(run: ClaimedRun, source: DataSource) -> TeacherRun | None:
    """Return the teacher of a run. Raises RunError if a resumed run was begun with another."""
    teacher = teacher_run(run.recipe, source.folders)
    recorded = run.record.teacher if run.record else None
    if recorded and teacher_facts(teacher) != teacher_facts(recorded):
        message = "the teacher of this run is not there, or has other weights than when it began"
        fix = f"put it back as it was, {recorded.run}, or begin a new run with {OTHER_RUN}"
        raise RunError.of(message, fix, str(run.run_dir.path))
    return teacher


def open_data(
    run: ClaimedRun, source: DataSource, teacher: TeacherRun | None = None
) -> RecipeDataModule:
    """Read and encode the data. Raises RunError if a resumed run was begun with other data.

    The tokenizers are the run's own, or else those of the run that it reproduces, starts from or
    learns from. Raises RecipeError if they are not the teacher's.
    """
    recipe, run_dir = run.recipe, run.run_dir
    is_begun = run_dir.tokenizer.exists()
    tokenizers = None
    if run.original and not is_begun:
        tokenizers = run.original.tokenizers(source)
    tokenizers = tokenizers or existing_tokenizers(recipe, run_dir, run.initial_run)
    if tokenizers is None and teacher is not None:
        tokenizers = existing_tokenizers(recipe, run_dir, Path(teacher.run))
    data = RecipeDataModule(recipe, source, tokenizers or cached_tokenizers(source))
    if run.record and is_begun:
        check_same_data(source, data.data, run.record, run_dir)
    if teacher is not None:
        theirs = Tokenizers.load(RunDir(Path(teacher.run)).tokenizer)
        if not theirs.gives_ids_of(data.tokenizers):
            raise RecipeError([*faults(recipe, [other_tokenizer()])])
    return data


def find_checkpoint(
    run: ClaimedRun, tokenizers: Tokenizers, say: Callable[[str], None]
) -> Path | None:
    """Return the checkpoint to resume from; None to begin from the first step. Raises RunError."""
    folder = run.run_dir.checkpoints
    checkpoint = latest_checkpoint(folder, say)
    if checkpoint is not None:
        check_checkpoint(run.recipe, tokenizers, checkpoint)
    elif any(folder.glob("step-*.ckpt")):
        say("no checkpoint is intact: the training begins again from its first step")
    if checkpoint is None and run.finish:
        message = "nothing of this training has been saved yet, so there is nothing to finish with"
        fix = (
            f"continue it with {RESUME}; where its loss has diverged, begin a new run with a"
            " smaller learning rate"
        )
        raise RunError.of(message, fix, str(run.run_dir.path))
    return checkpoint


def build_module(recipe: Recipe, tokenizers: Tokenizers, has_weights: bool) -> Seq2SeqModule:
    """Return the module of a recipe, initialized unless it `has_weights` of another run."""
    if has_weights:
        return Seq2SeqModule(recipe.dump(), tokenizers.text, (recipe, tokenizers))
    return Seq2SeqModule.from_recipe(recipe, tokenizers)


def take_weights(
    module: Seq2SeqModule, tokenizers: Tokenizers, initial_run: Path, say: Callable[[str], None]
) -> Transfer:
    """Load the weights of another run into a module, and say which blocks start anew."""
    source = open_encoder(initial_run) if is_encoder(initial_run) else open_frozen(initial_run)
    recipe = module.recipe
    transfer = transfer_weights(recipe, tokenizers, module.model, source)
    for line in transfer.describe():
        say(line)
    if recipe.training.adapters and sum(transfer.new.values()):
        message = f"these blocks would stay random beside adapters: {', '.join(transfer.new)}"
        fix = "train them first, without `training.adapters`, and start from that run"
        raise RunError.of(message, fix, str(initial_run))
    return transfer


def check_block_values(module: Seq2SeqModule) -> None:
    """Raise RecipeError if a foreign block gives NaN or reads ahead."""
    if errors := [*faults(module.recipe, values(module.model))]:
        raise RecipeError(errors)


def build_loop(
    run: ClaimedRun,
    data: RecipeDataModule,
    module: Seq2SeqModule,
    metrics: TextMetrics | None,
    budgets: Sequence[Budget],
) -> TrainingLoopCallback:
    """Plan the batches of all epochs, and return the callback that decides what follows each."""
    recipe, training = run.recipe, run.recipe.training
    curriculum = None
    if training.curriculum and not recipe.window:  # all windows are equally long
        curriculum = Curriculum(training.curriculum, training.seed)
    data.plan_batches(module.model, training.accumulate, curriculum)
    assert data.batches is not None
    # without `validate_every` Lightning validates where the sampler ends: after every epoch
    data.resumable = ResumableBatchSampler(data.batches, by_epoch=not training.validate_every)
    decoder = validation_decoder(recipe, data.data, metrics)
    loop = TrainingLoopCallback(
        recipe, data.resumable, run.run_dir.checkpoints, curriculum, decoder, budgets
    )
    loop.reproduced_steps = steps_to_repeat(run.record, run.original)
    return loop
