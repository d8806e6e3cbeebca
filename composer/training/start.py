"""Start of a training: first files of its run folder, its logs, and a line about model and data."""

from __future__ import annotations

from composer.atomic_io import atomic_write
from composer.data.sources import is_endless
from composer.errors import one_line_error
from composer.fingerprint import known_changes
from composer.model.adapters import count_frozen, describe_sizes
from composer.recipe.earlier_versions import TRAINING_CHANGES, changes_since
from composer.run_dir import checkpoint_step, read_metrics
from composer.runs.record import RunRecord
from composer.training.loggers import JsonLinesWriter, MetricsLogger
from composer.training.setup import TrainingSetup
from composer.training.start_record import start_record
from composer.training.wandb_logger import WandbLogger, run_config, run_tags, wandb_mode


def start_logging(training: TrainingSetup) -> MetricsLogger:
    """Write the first files of a run folder, and open the log of metrics."""
    record = start_record(training)
    write_run_folder(training, record)
    wandb = open_wandb(training, record)
    writer = open_metrics(training)
    if wandb.is_on:
        fill_wandb(training, record, wandb)
    announce(training, record)
    return MetricsLogger(writer, wandb, training.display)


def write_run_folder(training: TrainingSetup, record: RunRecord) -> None:
    """Write run.json, recipe.yaml and, if there is none, tokenizer.json."""
    run_dir = training.run_dir
    run_dir.write(record)
    run_dir.checkpoints.mkdir(exist_ok=True)
    atomic_write(run_dir.recipe, training.recipe.dump().encode())
    if not run_dir.tokenizer.exists():  # last: other processes wait for it
        training.data.tokenizers.save(run_dir.tokenizer)


def open_metrics(training: TrainingSetup) -> JsonLinesWriter:
    """Open metrics.jsonl behind the rows up to the checkpoint."""
    checkpoint = training.start.checkpoint
    step = checkpoint_step(checkpoint) if checkpoint else 0
    is_extended = any(budget.until_step == step for budget in training.start.budgets[:-1])
    return JsonLinesWriter(training.run_dir.metrics, step, is_extended)


def open_wandb(training: TrainingSetup, record: RunRecord) -> WandbLogger:
    """Start Weights & Biases as the recipe says."""
    settings, say = training.recipe.logging.wandb, training.display.say
    mode, folder = wandb_mode(settings), training.run_dir.path
    wandb = WandbLogger(mode, settings, folder, training.recipe.name, record.wandb_id, say)
    if wandb.trouble:
        say(f"Weights & Biases could not start: {wandb.trouble}")
    return wandb


def fill_wandb(training: TrainingSetup, record: RunRecord, wandb: WandbLogger) -> None:
    """Give Weights & Biases the recipe, a picture, and the rows that a resumed run has."""
    run_dir, rows = training.run_dir, read_metrics(training.run_dir.metrics)
    if training.run.record:
        wandb.resume(run_dir.path, rows)
    config, tags = run_config(training.recipe, record), run_tags(training.recipe)
    wandb.describe(run_dir.recipe, config, tags, picture_of(training))
    for row in rows:  # a killed training has not written the last ones
        wandb.write(row)


def picture_of(training: TrainingSetup) -> str:
    """Return the architecture as SVG; "" where it cannot be drawn, for which no training ends."""
    try:
        return training.drawing.svg()
    except Exception as error:
        training.display.say(
            f"no picture of the architecture for Weights & Biases: {one_line_error(error)}"
        )
        return ""


def announce(training: TrainingSetup, record: RunRecord) -> None:
    """Print notes about data and version, the reproduced run, and the sizes of model and data."""
    recipe, say = training.recipe, training.display.say
    for note in training.data.data.notes:
        say(note)
    before = training.run.record
    known = known_changes(before) if before else TRAINING_CHANGES
    for change in changes_since(recipe.canonical, known):
        say(f"this run began with an earlier version; since then, {change}")
    if record.reproduces:
        say(f"reproduces {record.reproduces.run}")
        for difference in record.reproduces.differs:
            say(f"differs from it: {difference}")
    sizes = ", ".join(f"{side} {size:,}" for side, size in record.vocabularies.items())
    pairs = f"{len(training.data.train):,} training {'pairs' if recipe.sources else 'texts'}"
    if is_endless(recipe):
        pairs += ", new ones in every epoch"
    frozen = ""
    if count := count_frozen(recipe, training.module.model):
        frozen = f", {count:,} of them frozen"
    say(f"{record.parameters:,} parameters{frozen}; {pairs}; vocabulary: {sizes}")
    for line in describe_sizes(training.plan.adapters if training.plan else {}):
        say(line)
