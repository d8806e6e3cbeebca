"""Finish a training: choose and write the final weights, evaluate them, record the scores, print a summary."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.data.sources import TARGET, source_names
from composer.errors import one_line_error
from composer.evaluation.evaluate import bleu_by_length, evaluate, teacher_forced
from composer.evaluation.hints import training_hints
from composer.inference.run import Run, Sample, device_for
from composer.model.weights import save_weights
from composer.run_dir import checkpoint_path, checkpoint_weights, list_checkpoints, utc_now
from composer.training.checkpointing import CheckpointManager, History, average_weights
from composer.training.distributed import Ranks
from composer.training.loggers import MetricsLogger
from composer.training.progress import format_scores
from composer.training.reproduce import compare_outcome
from composer.training.setup import TrainingSetup
from composer.viz.alignments import alignment_page, alignments

NUM_SAMPLES = 3
"""Translations that are shown at the end."""
BY_LENGTH = ("test/accuracy_by_length", "test/bleu_by_source_length")
"""Scores by length that a run may have; run.json keeps the first."""


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: its folder and its run.json."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        """Return the scores of the final weights, by the names under which they are logged."""
        return self.record.get("scores", {})


def finalize(training: TrainingSetup, logger: MetricsLogger | None) -> TrainingResult:
    """Write the final weights, evaluate them and finish run.json. Only the main process has a `logger`, and a record.

    Done again by a resumed run that was killed in here.
    """
    run_dir, loop, say = training.run_dir, training.loop, training.display.say
    if logger is None:
        return TrainingResult(run_dir.path, {})
    loop.checkpoints.prune(loop.progress.step, loop.history)  # a run that was killed before it had could not
    how, paths = select_checkpoints(loop.checkpoints, loop.history, training.recipe.training["average_checkpoints"])
    run = load_final_weights(training, paths)
    logger.display.close()

    known = recorded_scores(loop.history, paths)
    tested = test_scores(training, run)
    new = {} if known else validation_scores(training, run)
    new |= {name: value for name, value in tested.items() if isinstance(value, float)}
    if new:
        logger.write({"step": loop.progress.step, **new})
    tables = [tested[name] for name in BY_LENGTH if name in tested]
    record = run_dir.update(
        status="finished",
        weights=sha256_of_file(run_dir.weights),
        ended_at=utc_now(),
        minutes=round(loop.clock.minutes(), 3),
        steps=loop.progress.step,
        epochs=round(loop.sampler.epochs(), 3),
        checkpoints_used={"how": how, "checkpoints": [path.name for path in paths]},
        scores=known | new,
        by_length={"test": tables[0]} if tables else {},
    )
    log_pictures(training, logger, run, [row for table in tables for row in table])
    print_summary(training, run, record)
    if repeat_of := record.get("repeat_of"):
        on_gpu = training.trainer.strategy.root_device.type != "cpu"
        same, message = compare_outcome(repeat_of, training.recipe, run_dir.weights, on_gpu)
        say(message)
        record = run_dir.update(repeat_of={**repeat_of, "same": same, "message": message})
    return TrainingResult(run_dir.path, record)


def select_checkpoints(manager: CheckpointManager, history: History, average: int) -> tuple[str, list[Path]]:
    """Return which checkpoints the final weights are made of, and how: `average`, `best` or `last`."""
    existing = set(list_checkpoints(manager.folder))
    recent = [path for path in manager.recent(history)[-average:] if path in existing]
    if average > 1 and len(recent) > 1:
        return "average", recent
    best = manager.best(history)
    if best in existing:
        return "best", [best]
    return "last", [max(existing)]


def load_final_weights(training: TrainingSetup, paths: Sequence[Path]) -> Run:
    """Write the weights of a checkpoint, or the average of several, and return the run with them."""
    model = training.module.build_model()
    model.load_state_dict(average_weights(paths) if len(paths) > 1 else checkpoint_weights(paths[0]))
    save_weights(model, training.run_dir.weights)
    device = device_for(training.recipe)
    return Run(training.run_dir, training.recipe, training.data.tokenizers, model.eval().to(device))


def recorded_scores(history: History, paths: Sequence[Path]) -> dict[str, float]:
    """Return the validation scores of the one checkpoint in `paths`; empty for an average, which has none yet."""
    for scores in history:
        if [checkpoint_path(paths[0].parent, int(scores["step"]))] == list(paths):
            return {name: value for name, value in scores.items() if name != "step"}
    return {}


def validation_scores(training: TrainingSetup, run: Run) -> dict[str, float]:
    """Return the scores of a run's weights on the validation part, as they are measured in training."""
    if training.data.data.val is None:
        return {}
    scores, _ = teacher_forced(run.model, training.data.data.val)
    return {f"val/{name}": value for name, value in scores.items()} | decode_validation(training, run)[0]


def decode_validation(training: TrainingSetup, run: Run) -> tuple[dict[str, float], list[Sample]]:
    """Return what decoding the first validation sentences gives with these weights; empty without any."""
    decoder = training.loop.decoder
    return decoder.evaluate(run.model, Ranks()) if decoder else ({}, [])


def test_scores(training: TrainingSetup, run: Run) -> dict[str, Any]:
    """Return what `evaluate` returns for the test part, decoded as the recipe says; empty without one."""
    if training.data.data.test is None:
        return {}
    training.display.say("measuring on the test part")
    scores = evaluate(run, "test")
    if "test/truncated" in scores:
        training.display.say(f"test: {scores['test/truncated']}")
    return scores


def log_pictures(
    training: TrainingSetup, logger: MetricsLogger, run: Run, by_length: Sequence[Mapping[str, Any]]
) -> None:
    """Log attention maps and scores by length to Weights & Biases, if it is on."""
    if not logger.wandb.is_on:
        return
    try:
        pages = [
            alignment_page(alignment)
            for alignment in alignments(run, [line for line, _ in first_pairs(training)])
            if alignment.attentions or alignment.films or alignment.memories
        ]
        if not by_length and (samples := decode_validation(training, run)[1]):
            sources, references, outputs = zip(*samples, strict=True)
            by_length = bleu_by_length(sources, outputs, references)
        logger.wandb.pictures(training.loop.progress.step, pages, by_length)
    except Exception as error:  # the run has finished: no trouble with a picture may make it fail
        training.display.say(f"no pictures for Weights & Biases: {one_line_error(error)}")


def print_summary(training: TrainingSetup, run: Run, record: Mapping[str, Any]) -> None:
    """Print steps, weights, scores, samples, hints, and the commands to go on with."""
    say = training.display.say
    spent = f"{record['steps']:,} steps, {record['epochs']:.2f} epochs, {record['minutes']:.2f} minutes of computing"
    say(f"{spent}, validations among them")
    say(f"weights: {describe_weights(record['checkpoints_used'], training.loop.checkpoints.metric)}")
    for split in ("val", "test"):
        if scores := format_scores({name: value for name, value in record["scores"].items() if name.startswith(split)}):
            say(f"{split}: {scores}")
    # a language model continues a text, it does not translate one
    pairs = first_pairs(training) if source_names(training.recipe) else []
    outputs = run.translate([line for line, _ in pairs]) if pairs else []
    training.display.show([Sample(*pair, output) for pair, output in zip(pairs, outputs, strict=True)])
    if not training.recipe.dataset.get("generate"):
        for hint in training_hints(training.loop.history, record["data"]["pairs"], record["epochs"]):
            say(f"note: {hint}")
    folder = shlex.quote(str(training.run_dir.path))
    say(f"everything is in {training.run_dir.path}; next:")
    say(f"    seqcomposer translate {folder}     # a line in, a line out; --input F --output F for files")
    say(f"    seqcomposer report {folder}        # curves, translations, alignments: one page for the browser")


def describe_weights(used: Mapping[str, Any], metric: str) -> str:
    """Return which checkpoints the final weights are made of, in words."""
    steps = ", ".join(f"{int(name.removesuffix('.ckpt').removeprefix('step-')):,}" for name in used["checkpoints"])
    descriptions = {"average": f"the average of steps {steps}", "best": f"of step {steps}, the best by {metric}"}
    return descriptions.get(used["how"], f"of step {steps}, the last")


def first_pairs(training: TrainingSetup) -> list[tuple[str, str]]:
    """Return what the model reads and its target, of the first pairs of the test part, or else the validation part."""
    pairs = training.data.data.pairs
    part = pairs.get("test") or pairs.get("val")
    if not part:
        return []
    target = part.sides[TARGET]
    read = [part.sides[name] for name in source_names(training.recipe) or [TARGET]]
    return [("\t".join(side[row] for side in read), target[row]) for row in range(min(NUM_SAMPLES, len(target)))]
