"""What can be found out about a run: in its folder, and by translating with its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from composer.data.sources import TARGET, Pairs, available_splits, check_files, open_pairs, source_names
from composer.errors import DataError, RunError
from composer.evaluation.evaluate import accuracy_by_length, bleu_by_length, missing_split
from composer.inference.run import Run, Sample, decoding_settings, open_run, open_untrained, translate_lines
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, checkpoint_weights, latest_checkpoint, read_metrics
from composer.viz.attention_maps import Alignment, alignments

SHOWN = 10
"""Sentences of the data that are shown with their translations."""
DRAWN = 3
"""Sentences of the data whose alignments are drawn, where none is asked for."""
WORDS = 25
"""Words of a sentence that is chosen for a picture, at most."""
TOGETHER = 200
"""Lines that are translated between two signs of life."""
Say = Callable[[str], None]


class Asked(NamedTuple):
    """What a user asks of a report. Without a split it is the test part, or else the validation part."""

    split: str | None = None
    data: Path | None = None
    sentences: Sequence[str] = ()


@dataclass(frozen=True)
class Findings:
    """All that stands on the page. `weights` says which ones translated, "" where there are none.

    `log` has translations made in training, by step. `notes` say what is not on the page, and why.
    """

    recipe: Recipe
    text: str
    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    log: Mapping[int, Sequence[Sample]]
    weights: str
    split: str
    examples: Sequence[Sample]
    by_length: Sequence[Mapping[str, Any]]
    alignments: Sequence[Alignment]
    notes: Sequence[str]


def find(folder: RunDir, asked: Asked, say: Say) -> Findings:
    """Looks into a run's folder and translates. Raises RunError and RecipeError, and DataError for what was asked."""
    record = folder.read()
    recipe = load(folder.recipe)
    split = split_of(recipe, asked.split)
    run, weights = with_weights(folder)
    notes: list[str] = []
    examples: list[Sample] = []
    lengths: Sequence[Mapping[str, Any]] = []
    if run is None:
        notes.append(f"No translations and no alignments: {weights}.")
        if asked.sentences:
            raise RunError.of(f"`--sentence` needs weights, and {weights}", "leave it out", str(folder.path))
    elif pairs := pairs_of(run, split, asked, notes):
        known = record.get("by_length", {}).get(split) if weights == FINAL and asked.data is None else None
        examples, lengths = translated(run, pairs, known, say)
    return Findings(
        recipe=recipe,
        text=folder.recipe.read_text(encoding="utf-8"),
        record=record,
        rows=read_metrics(folder.metrics),
        log=logged_samples(folder.path),
        weights=weights if run else "",
        split=split,
        examples=examples,
        by_length=lengths,
        alignments=alignments(run, asked.sentences or chosen(run, examples), "--sentence") if run else [],
        notes=notes,
    )


# ------------------------------------------------------------------------------------------- weights and data

FINAL = "the final weights"


def with_weights(folder: RunDir) -> tuple[Run | None, str]:
    """The run with its final weights or those of its last checkpoint, and which these are; or why there is none."""
    if folder.weights.exists():
        return open_run(folder.path), FINAL
    last = latest_checkpoint(folder.checkpoints, lambda text: None)
    if last is None:
        return None, "the run has neither final weights nor a checkpoint"
    run = open_untrained(folder.path)
    try:
        run.model.load_state_dict(checkpoint_weights(last))
    except (RunError, OSError):  # a training that goes on has put a newer one in its place
        return None, "its checkpoint was removed while it was read"
    return run, f"the checkpoint after {int(last.stem.removeprefix('step-')):,} steps"


def split_of(recipe: Recipe, asked: str | None) -> str:
    """The part of the data that is translated, "" where there is none. Raises RunError where what is asked is not."""
    there = available_splits(recipe)
    if asked is not None and asked not in there:
        raise missing_split(recipe, asked)
    return asked or next((each for each in ("test", "val") if each in there), "")


def pairs_of(run: Run, split: str, asked: Asked, notes: list[str]) -> Pairs | None:
    """The texts of a split; None, and a note, where they are not there. Raises DataError where they were asked for."""
    if not split:
        notes.append("No translations of data: the recipe has neither a test part nor a validation part.")
        return None
    folders = run.folders(asked.data)
    try:
        if faults := check_files(run.recipe, folders):
            raise DataError(faults)
        return open_pairs(run.recipe, split, folders)
    except DataError as error:
        if asked.data is not None or asked.split is not None:
            raise
        told = "; ".join(dict.fromkeys(fault.message for fault in error.faults))
        notes.append(f"No translations of data: {told}. `--data DIR` says where the files are.")
        return None


# ------------------------------------------------------------------------------------------- translations


def translated(
    run: Run, pairs: Pairs, known: Sequence[Mapping[str, Any]] | None, say: Say
) -> tuple[list[Sample], Sequence[Mapping[str, Any]]]:
    """The first sentences with their translations, and BLEU or accuracy by source length, unless that is known.

    A model without encoders is given the first half of each line, and goes on from there. How long a question is says
    nothing of its story, so answers about stories are not measured by it.
    """
    read = source_names(run.recipe)
    measures = bool(read) and known is None and not run.recipe.dataset.get("babi")
    count = len(pairs) if measures else min(SHOWN, len(pairs))
    references = list(pairs.sides[TARGET][:count])
    texts = [list(pairs.sides[side][:count]) for side in read]
    lines = ["\t".join(row) for row in zip(*texts, strict=True)] if read else [half(line) for line in references]
    written = translations_of(run, lines, say)
    samples = [Sample(*row) for row in zip(lines[:SHOWN], references[:SHOWN], written[:SHOWN], strict=True)]
    if not measures:
        return samples, known or []
    measured = accuracy_by_length if run.recipe.dataset.get("generate") else bleu_by_length
    return samples, measured(texts[0], written, references)


def translations_of(run: Run, lines: Sequence[str], say: Say) -> list[str]:
    """The best translation of each line, with a sign of life now and then."""
    found: list[str] = []
    for at in range(0, len(lines), TOGETHER):
        part = translate_lines([run], lines[at : at + TOGETHER], decoding_settings(run.recipe), first=at)
        found += [best.text for best, *_ in part]
        if len(lines) > TOGETHER:
            say(f"translated {len(found):,} of {len(lines):,} sentences")
    return found


def half(line: str) -> str:
    """The first half of a line's words, the larger one."""
    words = line.split(" ")
    return " ".join(words[: (len(words) + 1) // 2])


def chosen(run: Run, examples: Sequence[Sample]) -> list[str]:
    """Sentences for pictures: the first that are neither empty nor long. Without encoders, whole lines are read.

    A task whose test is longer than its training has short ones in its validation part.
    """
    lines = [sample.source if source_names(run.recipe) else sample.reference for sample in examples]
    full = [line for line in lines if line.strip()]
    if (
        full
        and not any(map(is_short, full))
        and run.recipe.dataset.get("generate")
        and "val" in available_splits(run.recipe)
    ):
        pairs = open_pairs(run.recipe, "val", [])
        read = [pairs.sides[side][:SHOWN] for side in source_names(run.recipe) or [TARGET]]
        full = ["\t".join(row) for row in zip(*read, strict=True)] + full
    return ([line for line in full if is_short(line)] or full)[:DRAWN]


def is_short(line: str) -> bool:
    """Whether a picture of a line can be taken in at a glance."""
    return 0 < len(line.split()) <= WORDS


def logged_samples(folder: Path) -> dict[int, list[Sample]]:
    """Return the translations that a run has logged into its folder for W&B, by step. Contacts no server."""
    samples: dict[int, list[Sample]] = {}
    for path in sorted(folder.glob("wandb/*run-*/files/media/table/samples_*.table.json")):
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            rows = [(int(step), Sample(*map(str, texts))) for step, *texts in table["data"]]
        except (OSError, ValueError, KeyError, TypeError):  # cut off, or written by something else
            continue
        for step in dict.fromkeys(step for step, _ in rows):
            samples[step] = [sample for at, sample in rows if at == step]
    return dict(sorted(samples.items()))
