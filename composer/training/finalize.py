"""What a training came to: which weights are kept, how good they are, and where everything lies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.data.sources import TARGET, Pairs, source_names
from composer.errors import one_line_error
from composer.evaluation.evaluate import bleu_by_length, evaluate, teacher_forced
from composer.evaluation.hints import training_hints
from composer.inference.run import Run, Sample, device_for
from composer.model.builder import build
from composer.model.weights import save_weights
from composer.run_dir import checkpoint_path, checkpoint_weights, list_checkpoints, utc_now
from composer.training import checkpointing
from composer.training.checkpointing import CheckpointManager, History
from composer.training.loggers import MetricsLogger
from composer.training.progress import format_scores
from composer.training.reproduce import compare_outcome
from composer.training.setup import TrainingSetup
from composer.viz.alignments import alignment_page, alignments

SHOWN = 3
"""Translations that are shown at the end."""
BY_LENGTH = ("test/accuracy_by_length", "test/bleu_by_source_length")
"""What a run keeps of its scores by length: the first of these that there is."""


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: its folder and its run.json."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores of the weights that were kept, by the names under which they are logged."""
        return self.record.get("scores", {})


def finalize(session: TrainingSetup, journal: MetricsLogger | None) -> TrainingResult:
    """Writes the final weights, measures them, and says where everything is."""
    folder, course = session.folder, session.course
    if journal is None:
        return TrainingResult(folder.path, {})
    course.keeper.prune(course.now.step, course.history)  # a run that was killed before it had could not
    how, paths = select_checkpoints(course.keeper, course.history, session.recipe.training["average_checkpoints"])
    run = load_final_weights(session, paths)
    journal.display.close()
    known = scores_known(session, paths)
    measured = test_scores(session, run)
    figures = {name: value for name, value in measured.items() if isinstance(value, float)}
    lengths = next(({"test": measured[name]} for name in BY_LENGTH if name in measured), {})
    new = ({} if known else validation_scores(session, run)) | figures
    if new:
        journal.write({"step": course.now.step, **new})
    record = folder.update(
        status="finished",
        weights=sha256_of_file(folder.weights),
        ended_at=utc_now(),
        minutes=round(course.clock.minutes(), 3),
        steps=course.now.step,
        epochs=round(course.order.epochs(), 3),
        checkpoints_used={"how": how, "checkpoints": [path.name for path in paths]},
        scores=known | new,
        by_length=lengths,
    )
    log_pictures(session, journal, run, [row for name in BY_LENGTH for row in measured.get(name, [])])
    print_summary(session, run, record)
    return TrainingResult(folder.path, compared(session, record))


def load_final_weights(session: TrainingSetup, paths: Sequence[Path]) -> Run:
    """The run with the weights of a checkpoint, or the average of several, which are written."""
    recipe, tokenizers = session.recipe, session.data.tokenizers
    model = build(recipe, {side: tokenizers.size(side) for side in tokenizers.sides})
    model.load_state_dict(checkpointing.average_weights(paths) if len(paths) > 1 else checkpoint_weights(paths[0]))
    save_weights(model, session.folder.weights)
    return Run(session.folder, recipe, tokenizers, model.eval().to(device_for(recipe)))


def compared(session: TrainingSetup, record: dict[str, Any]) -> dict[str, Any]:
    """run.json of a repeat, with whether its weights are those of the run that it repeats; of any other as it is."""
    if not record.get("repeat_of"):
        return record
    on_gpu = session.trainer.strategy.root_device.type != "cpu"
    same, told = compare_outcome(record["repeat_of"], session.recipe, session.folder.weights, on_gpu)
    session.display.say(told)
    return session.folder.update(repeat_of={**record["repeat_of"], "same": same, "message": told})


def select_checkpoints(keeper: CheckpointManager, history: History, average: int) -> tuple[str, list[Path]]:
    """Which checkpoints the final weights are made of, and how that is called: average, best or last."""
    there = set(list_checkpoints(keeper.folder))
    recent = [path for path in keeper.recent(history)[-average:] if path in there]
    if average > 1 and len(recent) > 1:
        return "average", recent
    best = keeper.best(history)
    if best in there:
        return "best", [best]
    return "last", [max(there)]


def scores_known(session: TrainingSetup, paths: Sequence[Path]) -> dict[str, float]:
    """The validation scores of these weights: nothing where they are an average."""
    for scores in session.course.history:
        if len(paths) == 1 and checkpoint_path(paths[0].parent, int(scores["step"])) == paths[0]:
            return {name: value for name, value in scores.items() if name != "step"}
    return {}


def validation_scores(session: TrainingSetup, run: Run) -> dict[str, float]:
    """The scores of these weights on the validation part, as they are measured in training."""
    if session.data.val is None:
        return {}
    told = {f"val/{name}": value for name, value in teacher_forced(run.model, session.data.val)[0].items()}
    return told | judged(session, run)[0]


def test_scores(session: TrainingSetup, run: Run) -> dict[str, Any]:
    """What `evaluate` says of the test part, decoded as the recipe says; nothing without such a part."""
    if session.data.test is None:
        return {}
    session.display.say("measuring on the test part")
    measured = evaluate(run, "test")
    if "test/truncated" in measured:
        session.display.say(f"test: {measured['test/truncated']}")
    return measured


def log_pictures(
    session: TrainingSetup, journal: MetricsLogger, run: Run, lengths: Sequence[Mapping[str, Any]]
) -> None:
    """Logs alignments, film strips, memories and scores by source length where W&B is on.

    The run has finished, whatever comes of them.
    """
    if not journal.wandb.is_on:
        return
    try:
        found = alignments(run, lines_shown(session))
        pages = [alignment_page(each) for each in found if each.attentions or each.films or each.memories]
        journal.wandb.pictures(session.course.now.step, pages, lengths or validation_by_length(session, run))
    except Exception as error:  # whatever a picture meets, a training does not end for it
        session.display.say(f"no pictures for Weights & Biases: {one_line_error(error)}")


def judged(session: TrainingSetup, run: Run) -> tuple[dict[str, float], list[Sample]]:
    """What is measured on translations in training, of these weights; nothing where nothing is translated."""
    judge = session.course.judge
    return judge.judge(run.model) if judge else ({}, [])


def validation_by_length(session: TrainingSetup, run: Run) -> list[dict[str, Any]]:
    """BLEU by source length of the sentences that are judged in training; nothing where there are none."""
    samples = judged(session, run)[1]
    if not samples:
        return []
    texts, references, written = zip(*samples, strict=True)
    return bleu_by_length(texts, written, references)


def print_summary(session: TrainingSetup, run: Run, record: Mapping[str, Any]) -> None:
    """Says what came out and where it is."""
    say = session.display.say
    say(
        f"{record['steps']:,} steps, {record['epochs']:.2f} epochs, {record['minutes']:.2f} minutes of computing, "
        "validations among them"
    )
    say(f"weights: {describe_weights(record['checkpoints_used'], session.course.keeper.metric)}")
    for split in ("val", "test"):
        if scores := format_scores({name: value for name, value in record["scores"].items() if name.startswith(split)}):
            say(f"{split}: {scores}")
    session.display.show(translated(session, run))
    if not session.recipe.dataset.get("generate"):
        for line in training_hints(session.course.history, record["data"]["pairs"], record["epochs"]):
            say(f"note: {line}")
    folder = shlex.quote(str(session.folder.path))
    say(f"everything is in {session.folder.path}; next:")
    say(f"    seqcomposer translate {folder}     # a line in, a line out; --input F --output F for files")
    say(f"    seqcomposer report {folder}        # curves, translations, alignments: one page for the browser")


def describe_weights(kept: Mapping[str, Any], metric: str) -> str:
    """Which weights were kept, and why these."""
    steps = ", ".join(f"{int(name.removesuffix('.ckpt').removeprefix('step-')):,}" for name in kept["checkpoints"])
    forms = {"average": f"the average of steps {steps}", "best": f"of step {steps}, the best by {metric}"}
    return forms.get(kept["how"], f"of step {steps}, the last")


def translated(session: TrainingSetup, run: Run) -> list[Sample]:
    """The first sentences of the test part, or else of the validation part, translated as the recipe says."""
    pairs = pairs_shown(session)
    if not pairs or not source_names(session.recipe):
        return []
    texts = lines_shown(session)
    found = run.translate(texts)
    return [Sample(text, pairs.sides[TARGET][row], found[row]) for row, text in enumerate(texts)]


def lines_shown(session: TrainingSetup) -> list[str]:
    """The first lines that the model reads of the test part, or else of the validation part."""
    pairs = pairs_shown(session)
    read = source_names(session.recipe) or [TARGET]
    if not pairs:
        return []
    return ["\t".join(pairs.sides[side][row] for side in read) for row in range(min(SHOWN, len(pairs)))]


def pairs_shown(session: TrainingSetup) -> Pairs | None:
    """The test part, or else the validation part."""
    return session.data.pairs.get("test") or session.data.pairs.get("val")
