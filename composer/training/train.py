"""Train a recipe: resolve the run directory, check, load data and model, fit, finalize."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.checks import budget, machine, samples
from composer.checks.budget import SHORTER_WARMUP, EpochSize, describe_long_warmup
from composer.checks.problem import faults
from composer.checks.read_data import ReadData
from composer.data.answer_limits import AnswerLimits
from composer.data.pairs import TARGET, available_splits
from composer.data.sources import DataSource, is_endless
from composer.errors import (
    RecipeError,
    RunError,
    RunFailed,
    one_line_error,
    os_error_hint,
    os_error_reason,
)
from composer.evaluation import evaluate_pairs, training_hints
from composer.fingerprint import read_verified
from composer.formatting import format_bytes
from composer.inference.lines import Line
from composer.inference.run import Run, Sample, as_begun, device_for
from composer.model.parameter_paths import count_frozen
from composer.model.weights import count_parameters, is_out_of_memory, save_weights
from composer.recipe.canonical_form import BUDGET_KEYS
from composer.recipe.metrics import format_scores
from composer.recipe.recipe import Recipe
from composer.recipe.registry import OWN
from composer.run_dir import (
    OTHER_RUN,
    RESUME,
    RunDir,
    check_writable,
    checkpoint_step,
    find_run,
    is_trial_run,
    list_checkpoints,
    locked,
    read_metrics,
    utc_now,
)
from composer.runs.record import RunRecord, UsedCheckpoints
from composer.training.budget import budget_of
from composer.training.checkpointing import average_weights, restore_error
from composer.training.distributed import (
    RESUME_HINT,
    TrainingEnded,
    TrainingInterrupted,
    is_main_process,
    training_processes,
)
from composer.training.lightning import Callback, Logger
from composer.training.loggers import SHOWN_SAMPLES, MetricsLogger, ProgressDisplay
from composer.training.preflight import check_model_and_data
from composer.training.process_state import restored_process
from composer.training.reproduce import compare_outcome, default_folder, find_original_run
from composer.training.resume import (
    NEW_RUN,
    check_same_recipe,
    keep_meaning,
    resolve_initial_run,
    resumed_recipe,
)
from composer.training.setup import (
    TrainingSetup,
    setup,
    silence_lightning,
    start_logging,
    wait_for_record,
)
from composer.training.wandb_logger import describe_mode, wandb_mode
from composer.viz.alignments import alignment_page, alignments


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
    resume, start_from = resume or finish, None if start_from is None else find_run(start_from)
    run_dir = RunDir(Path(run) if run else default_folder(recipe, start_from, resume))
    original = find_original_run(recipe, run_dir.path, start_from)
    display = ProgressDisplay(
        quiet=not is_main_process() or recipe.trainer.enable_progress_bar is False
    )
    if finish and not run_dir.record.exists():
        raise RunError.of(
            "there is no run to finish in this folder",
            f"name it with {OTHER_RUN}",
            str(run_dir.path),
        )
    if is_main_process():
        check_writable(run_dir, resume)
        record = None if run_dir.is_empty() else run_dir.read()
        if record:
            recipe = keep_meaning(recipe, run_dir, record)
            check_same_recipe(recipe, run_dir, record)
    else:
        record = wait_for_record(run_dir)
        recipe = keep_meaning(recipe, run_dir, record)
    if resume and record:
        recipe = as_begun(resumed_recipe(recipe, run_dir, record, finish, display.say), record)
    if record and record.is_finished and (finish or is_spent(recipe, record)):
        read_verified(run_dir)
        key = next(key for key in BUDGET_KEYS if recipe.training.limits[key] is not None)
        most = max(
            recipe.training.limits[key] or 0,
            *(budget.limits[key] or 0 for budget in record.budgets),
        )
        more = f"; a larger budget continues it, such as `--resume training.{key}={2 * most:.10g}`"
        is_stopped = recipe.training.early_stopping and not record.finished_early
        display.say(
            f"{run_dir.path} has already finished; there is nothing to"
            f" do{'' if is_stopped else more}"
        )
        return TrainingResult(run_dir.path, record)
    if record and record.is_finished:
        check_continuable(run_dir)

    known = record or begun_with(recipe) or RunRecord()
    folders = [] if data is not None else [*map(Path, known.data.folders)]
    folders += [path.resolve() for path in recipe.folders(data)]
    source = DataSource(recipe, list(dict.fromkeys(folders)))
    planned = None
    if is_main_process():
        planned, _ = check_model_and_data(source, sampled=False)
        for warning in planned.warnings:
            display.say(warning.render())
    display.say(describe_mode(wandb_mode(recipe.logging.wandb), run_dir.path))
    initial_run = resolve_initial_run(start_from, record, run_dir, original)
    training = setup(
        source, run_dir, record, initial_run, display, original, callbacks, loggers, finish, planned
    )
    check_budget_and_memory(training)

    with locked_run(run_dir, resume, record), recorded_failure(training):
        training.loop.logger = logger = start_logging(training) if is_main_process() else None
        fit(training)
        result = finalize(training, logger)
        if logger:
            logger.close(0)
        return result


def begun_with(recipe: Recipe) -> RunRecord | None:
    """Return run.json of the run whose recipe this is, perhaps with overrides; None of other
    recipes.
    """
    run = RunDir.of_recipe(recipe.file)
    return None if run is None else run.read()


def is_spent(recipe: Recipe, record: RunRecord) -> bool:
    """Return whether a finished run has nothing left of the recipe's budget; always if it is the
    budget of the run.
    """
    budget = budget_of(recipe.training)
    if record.budgets and replace(record.budgets[-1], until_step=None, validated=False) == budget:
        return True
    if record.steps is None or record.epochs is None:  # of an average nobody knows them
        return True
    return budget.spent(record.steps, record.epochs, record.minutes) >= 1.0


def check_continuable(run_dir: RunDir) -> None:
    """Raise RunError if a finished run cannot be trained on in its folder, or would change a
    sweep's leaderboard.
    """
    if not list_checkpoints(run_dir.checkpoints):
        message = (
            "this run has finished, and its checkpoints are not here: a pack and an average have"
            " none"
        )
        raise RunError.of(message, NEW_RUN, str(run_dir.path))
    if is_trial_run(run_dir):
        message = (
            "this run is a trial of a sweep, whose leaderboard would change if it were trained on"
        )
        fix = f"copy the folder, and resume the copy by its recipe.yaml; or {NEW_RUN}"
        raise RunError.of(message, fix, str(run_dir.path))


def check_budget_and_memory(training: TrainingSetup) -> None:
    """Print warnings of the budget, the machine and the data. Raise RecipeError if memory is too
    little.
    """
    recipe, data = training.recipe, training.data
    sizes = machine.Sizes(
        count_parameters(training.module.model), count_frozen(recipe, training.module.model)
    )
    problems = [*machine.memory(recipe, sizes), *machine.quota(recipe, sizes)]
    for rule in machine.RULES:
        problems += rule(recipe)
    if problems:
        raise RecipeError(faults(recipe, problems))
    epoch = None
    if data.batches is not None and not recipe.training.curriculum:
        epoch = EpochSize(
            data.batches.slices_in(0) / recipe.training.accumulate, not is_endless(recipe)
        )
    warnings = budget.warnings(recipe, epoch)
    for rule in machine.WARNINGS:
        warnings += faults(recipe, rule(recipe))
    if is_main_process():
        limits = AnswerLimits.of(training.module.model)
        warnings += samples.warnings(ReadData(training.source, limits, data.data))
    for warning in warnings:
        training.display.say(warning.render())


@contextmanager
def locked_run(run_dir: RunDir, resume: bool, record: RunRecord | None) -> Iterator[None]:
    """Lock the run directory against other trainings. The main process alone writes, so the others
    need no lock.

    Raises RunError if another process holds it, or has written since `record` was read.
    """
    if not is_main_process():
        yield
        return
    with locked(run_dir):
        check_writable(run_dir, resume)
        if record and run_dir.read() != record:
            message = "another training has been writing into this folder"
            raise RunError.of(message, f"repeat the command with {RESUME}", str(run_dir.path))
        yield


def fit(training: TrainingSetup) -> None:
    """Train with Lightning, from the last checkpoint if there is one."""
    trainer, signals = training.trainer, training.loop.signals
    if training.checkpoint:
        training.display.say(f"resuming from {training.checkpoint}")
    # Lightning starts a TPU's
    local = 1 if training.recipe.trainer.accelerator == "tpu" else trainer.num_devices
    try:
        with training_processes(local, trainer.num_nodes), suppress(TrainingEnded):
            trainer.fit(
                training.module,
                datamodule=training.data,
                ckpt_path=training.checkpoint,
                weights_only=True,
            )
    finally:
        signals.restore()


@contextmanager
def recorded_failure(training: TrainingSetup) -> Iterator[None]:
    """Record in run.json how a training that did not finish ended; explain interrupts, full disks
    and memory.
    """
    say = training.display.say
    try:
        yield
    except TrainingInterrupted as interrupt:
        if not is_main_process():
            # the main process says how it ended; this one must not look like a crash
            raise SystemExit(0) from None
        record_end(training, "interrupted")
        command = (
            f"the same command with `--resume --run {shlex.quote(str(training.run_dir.path))}`"
        )
        ends = "with `--finish` in place of `--resume` it ends with the best weights so far"
        say(
            f"stopped at step {training.loop.progress.step:,}, everything is saved; {command}"
            f" resumes it; {ends}"
        )
        if interrupt.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + interrupt.number) from None
    except (KeyboardInterrupt, SystemExit):
        record_end(training, "interrupted")
        raise
    except BaseException as error:
        record_end(training, "failed")
        if (explained := explain_failure(error, training)) is not None:
            raise explained from error
        raise


def record_end(training: TrainingSetup, status: str) -> None:
    """End the log of metrics and write the status into run.json, as far as the disk lets it."""
    if training.loop.logger is not None:
        training.loop.logger.close(1)
    if is_main_process():
        with suppress(OSError, RunError):
            record = training.run_dir.read()
            training.run_dir.write(replace(record, status=status, ended_at=utc_now()))


def explain_failure(error: BaseException, training: TrainingSetup) -> RunFailed | RunError | None:
    """Return an error of the machine, a full disk or too little memory, or of a checkpoint; None
    for any other.
    """
    path = str(training.run_dir.path)
    if isinstance(error, OSError):
        fix = f"{os_error_hint(error)}, or take another with {OTHER_RUN}; {RESUME_HINT}"
        return RunFailed.of(os_error_reason(error), fix, str(error.filename or path))
    if is_out_of_memory(error):
        budget, accumulate = (
            training.recipe.training.tokens_per_batch,
            training.recipe.training.accumulate,
        )
        batch = training.module.last_batch
        sides = {**batch.get("sources", {}), "target": batch.get("target_in")}
        shapes = [
            f"{side} {ids.shape[0]} x {ids.shape[1]}"
            for side, ids in sides.items()
            if ids is not None
        ]
        shape = ", ".join(shapes) or "unknown shape"
        cause = f"out of memory on a batch of {shape} with `tokens_per_batch` {budget}"
        same, smaller = (
            f"`training.accumulate={2 * accumulate}`",
            f"`training.tokens_per_batch={max(1, budget // 2)}`",
        )
        fix = (
            f"begin a new run with {same}, which computes the same updates in less memory, or with"
            f" {smaller}"
        )
        return RunFailed.of(
            cause, f"{fix}; `--from RUN` starts it from the weights of this one", path
        )
    return restore_error(error, training.checkpoint) if training.checkpoint else None


def finalize(training: TrainingSetup, logger: MetricsLogger | None) -> TrainingResult:
    """Write the final weights, evaluate them and finish run.json. Only the main process has a
    `logger`, and a record.

    Done again by a resumed run that was killed in here.
    """
    run_dir, loop, say = training.run_dir, training.loop, training.display.say
    if logger is None:
        return TrainingResult(run_dir.path, RunRecord())
    minutes = loop.clock.minutes()  # without what follows
    # a run that was killed before it had could not
    loop.checkpoints.prune(loop.progress.step, loop.history)
    how, paths = loop.checkpoints.select(loop.history)
    model = training.module.unsharded_model()
    model.load_state_dict(average_weights(paths))
    save_weights(model, run_dir.weights)
    record = replace(
        run_dir.read(), weights_sha256=sha256_of_file(run_dir.weights), hypotheses_sha256={}
    )
    run_dir.write(record)
    run = Run(
        run_dir,
        training.recipe,
        training.data.tokenizers,
        model.eval().to(device_for(training.recipe)),
    )
    logger.display.close()

    # an average has no validation yet
    rows = [row for row in loop.history if [int(row["step"])] == [*map(checkpoint_step, paths)]]
    known = {
        name: value for row in rows[:1] for name, value in row.items() if name.startswith("val/")
    }
    measured: dict[str, Any] = {}
    splits = splits_to_evaluate(training, known)
    for split in splits:
        say(f"evaluating on the {split} split")
        pairs, encoded = training.data.data.pairs[split], training.data.data.splits[split]
        measured |= evaluate_pairs(run, split, pairs, encoded, run_dir.hypotheses(split), say)
        if f"{split}/truncated" in measured:
            say(f"{split}: {measured[f'{split}/truncated']}")
    new = {
        name: value
        for name, value in measured.items()
        if isinstance(value, float) and name not in known
    }
    if new:
        logger.write({"step": loop.progress.step, **new})
    decoded = [run_dir.hypotheses(split) for split in splits]
    names = ("accuracy_by_length", "bleu_by_source_length")
    by_length = {
        split: [measured[key] for name in names if (key := f"{split}/{name}") in measured]
        for split in splits
    }
    record = replace(
        record,
        status="finished",
        ended_at=utc_now(),
        minutes=round(minutes, 3),
        steps=loop.progress.step,
        epochs=round(loop.sampler.epochs(), 3),
        planned_steps=loop.reproduced_steps or loop.planned_steps,
        checkpoints_used=UsedCheckpoints(how, tuple(path.name for path in paths)),
        scores={**new, **known},
        hypotheses_sha256={file.name: sha256_of_file(file) for file in decoded if file.is_file()},
        signatures={name: value for name, value in measured.items() if name.endswith("_signature")},
        by_length={split: tuple(tables[0]) for split, tables in by_length.items() if tables},
        finished_early=training.budgets[-1].until_step is not None,
    )
    run_dir.write(record)
    shown = by_length.get("test") or by_length.get("val") or []
    log_pictures(training, logger, run, [row for table in shown for row in table])
    log_model(training, logger)
    print_summary(training, run, record)
    if reproduces := record.reproduces:
        on_gpu = training.trainer.strategy.root_device.type != "cpu"
        same, message = compare_outcome(reproduces, training.recipe, run_dir.weights, on_gpu)
        say(message)
        record = replace(record, reproduces=replace(reproduces, same=same, message=message))
        run_dir.write(record)
    return TrainingResult(run_dir.path, record)


def splits_to_evaluate(training: TrainingSetup, known: Mapping[str, float]) -> list[str]:
    """Return the splits whose scores are not known yet; a training that decodes a sample knows only
    losses of `val`.
    """
    data, decoder = training.data.data, training.loop.decoder
    is_known = known and (decoder is None or decoder.part == "val" or not training.recipe.sources)
    return [
        split for split in data.splits if split != "train" and not (split == "val" and is_known)
    ]


def log_pictures(
    training: TrainingSetup,
    logger: MetricsLogger,
    run: Run,
    by_length: Sequence[Mapping[str, object]],
) -> None:
    """Log attention maps and scores by length to Weights & Biases, if it is on."""
    if not logger.wandb.is_on:
        return
    try:
        pictures = alignments(run, [line for line, _ in first_pairs(training)])
        pages = [
            alignment_page(one) for one in pictures if one.attentions or one.films or one.memories
        ]
        logger.wandb.pictures(training.loop.progress.step, pages, by_length)
    except Exception as error:  # the run has finished: no trouble with a picture may make it fail
        training.display.say(f"no pictures for Weights & Biases: {one_line_error(error)}")


def log_model(training: TrainingSetup, logger: MetricsLogger) -> None:
    """Log the final model to Weights & Biases as a pack, if it is on, and print what `pull` calls
    it.
    """
    run_dir, say = training.run_dir, training.display.say
    if not (logger.wandb.is_on and logger.wandb.logs_model):
        return
    # imported late, from above: only a run that ends is packed
    from composer.hub.pack import packed_temporarily

    try:
        with packed_temporarily(run_dir, training.recipe, "", training.drawing) as (
            manifest,
            folder,
        ):
            name = logger.wandb.model(folder, run_dir.weights)
    except Exception as error:  # the run has finished: no trouble with a pack may make it fail
        say(f"no model for Weights & Biases: {one_line_error(error)}")
        return
    if name and logger.wandb.mode == "online":
        say(
            f"the model went to Weights & Biases, {format_bytes(manifest.size)}: get it by"
            f" `seqcomposer pull {name}`"
        )


def print_summary(training: TrainingSetup, run: Run, record: RunRecord) -> None:
    """Print steps, weights, scores, samples, hints, and the commands to go on with."""
    say = training.display.say
    assert record.checkpoints_used is not None  # of what has finished
    assert record.steps is not None
    assert record.epochs is not None
    spent = (
        f"{record.steps:,} steps, {record.epochs:.2f} epochs, {record.minutes:.2f} minutes of"
        " computing"
    )
    say(f"{spent}, validations included")
    say(f"weights: {describe_weights(record.checkpoints_used, training.loop.checkpoints.metric)}")
    for split in available_splits(training.recipe):
        own = {
            name: value
            for name, value in record.scores.items()
            if value is not None and name.startswith(f"{split}/")
        }
        if split != "train" and own:
            say(f"{split}: {format_scores(own)}")
    # a language model continues a text, it does not translate one
    pairs = first_pairs(training) if training.recipe.sources else []
    outputs = run.translate([line for line, _ in pairs]) if pairs else []
    shown = [
        Sample("\t".join(line), target, text)
        for (line, target), text in zip(pairs, outputs, strict=True)
    ]
    training.display.show(shown)
    if not training.recipe.data.generate:
        sizes = record.data.pairs if training.recipe.sources else {}  # one text can be long
        rows, section = read_metrics(training.run_dir.metrics), training.recipe.training
        unknown = record.data.val_unknown or 0.0
        for hint in training_hints(rows, sizes, record.epochs, section, unknown):
            say(f"note: {hint}")
    # how many steps there are in a budget in minutes is known only now
    minutes = training.recipe.training.max_minutes
    if minutes is not None and (message := describe_long_warmup(training.recipe, record.steps)):
        say(f"note: {message}; {SHORTER_WARMUP}")
    folder = shlex.quote(str(training.run_dir.path))
    say(f"everything is in {training.run_dir.path}; next:")
    if any(word in OWN for word in record.plug_ins):  # a command is a process without these blocks
        say(
            f"    composer.open_run({str(training.run_dir.path)!r})     # .translate(lines),"
            " .evaluate(), .report()"
        )
        return
    if training.recipe.sources:
        say(
            f"    seqcomposer translate {folder}     # a line in, a line out; --input F --output F"
            " for files"
        )
    else:
        say(
            f"    seqcomposer generate {folder}      # text as it comes; --prompt TEXT,"
            " --temperature T, --samples N"
        )
    say(
        f"    seqcomposer report {folder}        # curves, outputs, attention: one page for the"
        " browser"
    )


def describe_weights(used: UsedCheckpoints, metric: str) -> str:
    """Return which checkpoints the final weights are made of, in words."""
    steps = ", ".join(f"{checkpoint_step(Path(name)):,}" for name in used.checkpoints)
    descriptions = {
        "average": f"the average of steps {steps}",
        "best": f"of step {steps}, the best by {metric}",
    }
    return descriptions.get(used.how, f"of step {steps}, the last")


def first_pairs(training: TrainingSetup) -> list[tuple[Line, str]]:
    """Return what the model reads and its target, of the first pairs of the test part, or else the
    validation part.
    """
    pairs = training.data.data.pairs
    part = pairs.get("test") or pairs.get("val")
    if not part:
        return []
    read = [part.sides[name][:SHOWN_SAMPLES] for name in training.recipe.sources or [TARGET]]
    return [*zip(zip(*read, strict=True), part.sides[TARGET][:SHOWN_SAMPLES], strict=True)]
