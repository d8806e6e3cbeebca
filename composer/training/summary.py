"""The last lines that a training prints: its scores, samples, hints, and commands to go on with."""

from __future__ import annotations

import shlex
from pathlib import Path

from composer.checks.budget import SHORTER_WARMUP, describe_long_warmup
from composer.data.pairs import TARGET, available_splits
from composer.evaluation.hints import training_hints
from composer.inference.lines import Line
from composer.inference.run import Run, Sample
from composer.metrics.table import format_scores
from composer.recipe.registry import OWN
from composer.run_dir import checkpoint_step, read_metrics
from composer.runs.record import RunRecord, UsedCheckpoints
from composer.training.loggers import SHOWN_SAMPLES
from composer.training.setup import TrainingSetup


def print_summary(training: TrainingSetup, run: Run, record: RunRecord) -> None:
    """Print steps, weights, scores, samples, hints, and the commands to go on with."""
    print_scores(training, record)
    training.display.show(decoded_samples(training, run))
    for hint in hints(training, record):
        training.display.say(f"note: {hint}")
    training.display.say(f"everything is in {training.run_dir.path}; next:")
    for command in next_commands(training, record):
        training.display.say(f"    {command}")


def print_scores(training: TrainingSetup, record: RunRecord) -> None:
    """Print what a training took, its final weights, and their scores on each split."""
    say = training.display.say
    assert record.checkpoints_used is not None  # of a finished run
    assert record.epochs is not None
    say(
        f"{record.steps:,} steps, {record.epochs:.2f} epochs, {record.minutes:.2f} minutes of"
        " computing, validations included"
    )
    say(f"weights: {describe_weights(record.checkpoints_used, training.loop.checkpoints.metric)}")
    measured = {name: value for name, value in record.scores.items() if value is not None}
    for split in available_splits(training.recipe):
        named = {name: value for name, value in measured.items() if name.startswith(f"{split}/")}
        if named and split != "train":
            say(f"{split}: {format_scores(named)}")


def describe_weights(used: UsedCheckpoints, metric: str) -> str:
    """Return in words which checkpoints the final weights are made of."""
    steps = ", ".join(f"{checkpoint_step(Path(name)):,}" for name in used.checkpoints)
    if used.how == "average":
        return f"the average of steps {steps}"
    if used.how == "best":
        return f"of step {steps}, the best by {metric}"
    return f"of step {steps}, the last"


def first_pairs(training: TrainingSetup) -> list[tuple[Line, str]]:
    """Return sources and targets of the first test pairs, or else validation pairs."""
    pairs = training.data.data.pairs
    part = pairs.get("test") or pairs.get("val")
    if not part:
        return []
    sides = [part.sides[name][:SHOWN_SAMPLES] for name in training.recipe.sources or [TARGET]]
    return [*zip(zip(*sides, strict=True), part.sides[TARGET][:SHOWN_SAMPLES], strict=True)]


def decoded_samples(training: TrainingSetup, run: Run) -> list[Sample]:
    """Return outputs for the first pairs; [] of a language model, which translates nothing."""
    pairs = first_pairs(training)
    if not training.recipe.sources or not pairs:
        return []
    outputs = run.translate([line for line, _ in pairs])
    samples = []
    for (line, target), output in zip(pairs, outputs, strict=True):
        samples.append(Sample("\t".join(line), target, output))
    return samples


def hints(training: TrainingSetup, record: RunRecord) -> list[str]:
    """Return in words how the next training could be better."""
    recipe, texts = training.recipe, []
    assert record.steps is not None
    assert record.epochs is not None
    if not recipe.data.generate:
        sizes = record.data.pairs if recipe.sources else {}  # one text can be long
        rows, unknown = read_metrics(training.run_dir.metrics), record.data.val_unknown or 0.0
        texts += training_hints(rows, sizes, record.epochs, recipe.training, unknown)
    # only now is it known how many steps the minutes make
    in_minutes = recipe.training.max_minutes is not None
    if in_minutes and (long_warmup := describe_long_warmup(recipe, record.steps)):
        texts.append(f"{long_warmup}; {SHORTER_WARMUP}")
    return texts


def next_commands(training: TrainingSetup, record: RunRecord) -> list[str]:
    """Return commands that use the run, with what they do."""
    path = training.run_dir.path
    if any(word in OWN for word in record.plug_ins):  # a command is a process without these blocks
        return [f"composer.open_run({str(path)!r})     # .translate(lines), .evaluate(), .report()"]
    folder = shlex.quote(str(path))
    use = (
        f"seqcomposer generate {folder}      # text as it comes; --prompt TEXT, --temperature T,"
        " --samples N"
    )
    if training.recipe.sources:
        use = (
            f"seqcomposer translate {folder}     # a line in, a line out; --input F --output F for"
            " files"
        )
    report = (
        f"seqcomposer report {folder}        # curves, outputs, attention: one page for the browser"
    )
    return [use, report]
