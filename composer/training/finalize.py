"""End of a training: final weights, their scores, run.json, and what Weights & Biases gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.errors import one_line_error
from composer.evaluation.scores import evaluate_pairs
from composer.formatting import format_bytes
from composer.inference.run import Run, device_for
from composer.model.weights import save_weights
from composer.run_dir import checkpoint_step, utc_now
from composer.runs.record import LengthRow, RunRecord, UsedCheckpoints
from composer.training.loggers import MetricsLogger
from composer.training.reproduce import compare_outcome
from composer.training.setup import TrainingSetup
from composer.training.summary import first_pairs, print_summary
from composer.training.weight_average import average_weights
from composer.viz.alignments import alignment_page, alignments

LENGTH_TABLES = ("accuracy_by_length", "bleu_by_source_length")
"""Tables of an evaluation that run.json may have, the first one there is."""


@dataclass(frozen=True)
class FinalScores:
    """Scores of the final weights on all splits but `train`.

    known: Those of the validation of the same weights.
    measured: Those of evaluations at the end of the training, as `evaluate_pairs` returns them.
    splits: The splits that were evaluated.
    """

    known: Mapping[str, float]
    measured: Mapping[str, Any]
    splits: Sequence[str]

    @property
    def new(self) -> dict[str, float]:
        """The numbers that no validation has measured."""
        scores = {name: value for name, value in self.measured.items() if isinstance(value, float)}
        return {name: value for name, value in scores.items() if name not in self.known}

    def tables(self, split: str) -> list[list[LengthRow]]:
        """Return the tables of scores by length of a split."""
        keys = [f"{split}/{name}" for name in LENGTH_TABLES]
        return [self.measured[key] for key in keys if key in self.measured]


def finalize(training: TrainingSetup) -> RunRecord:
    """Write the final weights, evaluate them and finish run.json, which is returned.

    Only the main process does so; the others return an empty record. A resumed run that was killed
    in here does it again.
    """
    logger = training.loop.logger
    if logger is None:
        return RunRecord()
    minutes = training.loop.clock.minutes()  # without the minutes that follow
    run, used = write_weights(training)
    logger.display.close()
    scores = evaluate_splits(training, run, used)
    if scores.new:
        logger.write({"step": training.loop.progress.step, **scores.new})
    record = finished_record(training, used, scores, minutes)
    training.run_dir.write(record)
    log_pictures(training, logger, run, scores)
    log_model(training, logger)
    print_summary(training, run, record)
    record = compare_with_original(training, record)
    logger.close(0)
    return record


def write_weights(training: TrainingSetup) -> tuple[Run, UsedCheckpoints]:
    """Write the final weights; return them as a run, and the checkpoints of which they are made."""
    run_dir, loop = training.run_dir, training.loop
    # a run that was killed at its last checkpoint has not pruned yet
    loop.checkpoints.prune(loop.progress.step, loop.history)
    how, paths = loop.checkpoints.select(loop.history)
    model = training.module.unsharded_model()
    model.load_state_dict(average_weights(paths))
    save_weights(model, run_dir.weights)
    weights = sha256_of_file(run_dir.weights)
    run_dir.write(replace(run_dir.read(), weights_sha256=weights, hypotheses_sha256={}))
    model = model.eval().to(device_for(training.recipe))
    run = Run(run_dir, training.recipe, training.data.tokenizers, model)
    return run, UsedCheckpoints(how, tuple(path.name for path in paths))


def evaluate_splits(training: TrainingSetup, run: Run, used: UsedCheckpoints) -> FinalScores:
    """Evaluate the final weights on every split whose scores are not known."""
    say, data = training.display.say, training.data.data
    known = validation_scores(training.loop.history, used)
    splits = splits_to_evaluate(training, known)
    measured: dict[str, Any] = {}
    for split in splits:
        say(f"evaluating on the {split} split")
        file = training.run_dir.hypotheses(split)
        measured |= evaluate_pairs(run, split, data.pairs[split], data.splits[split], file, say)
        if f"{split}/truncated" in measured:
            say(f"{split}: {measured[f'{split}/truncated']}")
    return FinalScores(known, measured, splits)


def validation_scores(
    history: Sequence[Mapping[str, float]], used: UsedCheckpoints
) -> dict[str, float]:
    """Return the scores of the validation of a checkpoint; {} for an average, which had none."""
    steps = [checkpoint_step(Path(name)) for name in used.checkpoints]
    for scores in history:
        if steps == [int(scores["step"])]:
            return {name: value for name, value in scores.items() if name.startswith("val/")}
    return {}


def splits_to_evaluate(training: TrainingSetup, known: Mapping[str, float]) -> list[str]:
    """Return the splits without known scores; with a sample only losses are known."""
    decoder = training.loop.decoder
    is_complete = decoder is None or decoder.part == "val" or not training.recipe.sources
    without = {"train", "val"} if known and is_complete else {"train"}
    return [split for split in training.data.data.splits if split not in without]


def finished_record(
    training: TrainingSetup, used: UsedCheckpoints, scores: FinalScores, minutes: float
) -> RunRecord:
    """Return run.json of a training that has finished."""
    loop, run_dir = training.loop, training.run_dir
    hypotheses, by_length = {}, {}
    for split in scores.splits:
        file, tables = run_dir.hypotheses(split), scores.tables(split)
        if file.is_file():
            hypotheses[file.name] = sha256_of_file(file)
        if tables:
            by_length[split] = tuple(tables[0])
    signatures = {
        name: text for name, text in scores.measured.items() if name.endswith("_signature")
    }
    return replace(
        run_dir.read(),
        status="finished",
        ended_at=utc_now(),
        minutes=round(minutes, 3),
        steps=loop.progress.step,
        epochs=round(loop.sampler.epochs(), 3),
        planned_steps=loop.reproduced_steps or loop.planned_steps,
        checkpoints_used=used,
        scores={**scores.new, **scores.known},
        hypotheses_sha256=hypotheses,
        signatures=signatures,
        by_length=by_length,
        finished_early=training.start.budgets[-1].until_step is not None,
    )


def log_pictures(
    training: TrainingSetup, logger: MetricsLogger, run: Run, scores: FinalScores
) -> None:
    """Log attention maps and scores by length to Weights & Biases, if it is on."""
    if not logger.wandb.is_on:
        return
    rows: list[LengthRow] = []
    for table in scores.tables("test") or scores.tables("val"):
        rows += table

    def log() -> None:
        lines = [line for line, _ in first_pairs(training)]
        pages = [
            alignment_page(picture) for picture in alignments(run, lines) if picture.has_pictures
        ]
        logger.wandb.pictures(training.loop.progress.step, pages, rows)

    try_to_log(training, "pictures", log)


def log_model(training: TrainingSetup, logger: MetricsLogger) -> None:
    """Log the final model to Weights & Biases as a pack, if it is on; print its name for `pull`."""
    run_dir = training.run_dir
    if not (logger.wandb.is_on and logger.wandb.logs_model):
        return
    # imported late, from above: only a run that ends is packed
    from composer.hub.pack import packed_temporarily

    def log() -> None:
        packed = packed_temporarily(run_dir, training.recipe, "", training.drawing)
        with packed as folder:
            name = logger.wandb.model(folder, run_dir.weights)
            size = format_bytes(sum(file.stat().st_size for file in folder.iterdir()))
        if name and logger.wandb.mode == "online":
            training.display.say(
                f"the model went to Weights & Biases, {size}: get it by `seqcomposer pull {name}`"
            )

    try_to_log(training, "model", log)


def try_to_log(training: TrainingSetup, noun: str, log: Callable[[], None]) -> None:
    """Log something to Weights & Biases; the run has finished, so trouble is only printed."""
    try:
        log()
    except Exception as error:
        training.display.say(f"no {noun} for Weights & Biases: {one_line_error(error)}")


def compare_with_original(training: TrainingSetup, record: RunRecord) -> RunRecord:
    """Return run.json of a reproduction with how its weights compare; write it, and say so."""
    reproduces, run_dir = record.reproduces, training.run_dir
    if reproduces is None:
        return record
    on_gpu = training.trainer.strategy.root_device.type != "cpu"
    same, message = compare_outcome(reproduces, training.recipe, run_dir.weights, on_gpu)
    training.display.say(message)
    record = replace(record, reproduces=replace(reproduces, same=same, message=message))
    run_dir.write(record)
    return record
