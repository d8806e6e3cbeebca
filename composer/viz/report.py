"""HTML report of a run: scores, learning curves, translations, attention maps, memory use and the
architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from composer import evaluation
from composer.data.pairs import TARGET, Pairs, available_splits
from composer.data.round_trips import lost_references
from composer.data.sources import DataSource, generate_pairs
from composer.errors import DataError, RecipeError, RunError, one_line_error
from composer.fingerprint import read_verified
from composer.formatting import format_number
from composer.inference.answers import has_text
from composer.inference.lines import Line
from composer.inference.run import Run, open_run
from composer.model.features import feature_settings
from composer.recipe.cache import SHORT_HASH
from composer.recipe.data_sections import TableColumn
from composer.recipe.metrics import METRICS, SAMPLE, is_exact, references_of
from composer.recipe.recipe import Recipe, load
from composer.run_dir import (
    RunDir,
    checkpoint_step,
    find_run,
    is_locked,
    list_checkpoints,
    read_metrics,
    utc_now,
)
from composer.runs.record import RunRecord
from composer.viz.alignments import Alignment, alignments, pictures
from composer.viz.architecture import Drawing, draw
from composer.viz.media import example
from composer.viz.page import (
    Rows,
    accuracy_chart,
    bleu_chart,
    check_can_overwrite,
    figure_html,
    learning_charts,
    learning_curves,
    render,
    write_document,
)
from composer.viz.report_figures import check_folder, write_figures

NUM_EXAMPLES, NUM_DRAWN = 10, 3
"""Sentences that are translated, and whose pictures are shown."""
MAX_WORDS = 25
"""Words beyond which a sentence is not chosen for a picture."""
FINAL = "the final weights"
Say = Callable[[str], None]


class Sentence(NamedTuple):
    """What the encoders read of a line, or how a text begins; its references; and what the model
    wrote.
    """

    texts: Line
    references: Sequence[str | None]
    translation: str


ScoredSentence = tuple[float, Sentence]
Translated = tuple[list[Sentence], list[ScoredSentence], Sequence[Mapping[str, Any]]]
"""Sentences with their translations, the worst of them, and the scores by source length."""
ComparedTexts = list[tuple[str, str | Markup, bool]]
"""The texts of a sentence: label, text, or an image or a sound, and whether it equals the
reference.
"""


class Source(NamedTuple):
    """What the report translates and shows: the run, its open weights, the split, and why something
    is missing.
    """

    run_dir: RunDir
    recipe: Recipe
    record: RunRecord
    rows: Rows
    run: Run | None
    weights: str
    split: str
    notes: list[str]
    scores: dict[str, Any]


def report(
    run: str | PathLike[str],
    split: str | None = None,
    data: str | Path | None = None,
    sentences: Sequence[str] = (),
    output: str | Path | None = None,
    say: Say = lambda text: None,
    checkpoint: str | int | None = None,
    figures: str | Path | None = None,
) -> Path:
    """Write the HTML report of a run, finished or not, and return its file.

    Args:
        run: The run folder.
        split: The split to translate; by default `test`, else `val`.
        data: Folder of the data files; by default the one of the training.
        sentences: Source lines whose alignments are shown; by default a few of the split.
        output: The file; by default `report.html` in the run folder.
        say: Receives progress messages.
        checkpoint: `last`, `best` or a step; by default the final weights, or the last checkpoint
            before the end.
        figures: A new folder for the architecture, the learning curves and the alignments as SVG,
            PNG and PDF.

    Raises:
        RunError: If the folder is no run, or the report cannot be written.
        RecipeError: If the run's recipe is not valid.
        DataError: If files that were asked for are missing or not valid.
    """
    run_dir = RunDir(find_run(run))
    record = read_verified(run_dir)
    file = Path(output) if output else run_dir.path / "report.html"
    check_can_overwrite(file, "report")
    if figures is not None:
        check_folder(Path(figures))
    recipe = load(run_dir.recipe)
    if split is not None and split not in available_splits(recipe):
        raise evaluation.missing_split(recipe, split)
    opened, weights = open_weights(run_dir, checkpoint)
    default = next((name for name in ("test", "val") if name in available_splits(recipe)), "")
    notes = [] if opened else [f"No translations and no alignments: {weights}."]
    rows = read_metrics(run_dir.metrics)
    scores = dict(record.scores) if weights == FINAL else last_validation(rows, opened)
    source = Source(run_dir, recipe, record, rows, opened, weights, split or default, notes, scores)
    translated = translate_split(source, split, Path(data) if data is not None else None, say)
    if sentences and source.run is None:
        raise RunError.of(
            f"`--sentence` needs weights, and {source.weights}", "leave it out", str(run_dir.path)
        )
    shown: Sequence[Alignment] = []
    if source.run is not None:
        shown = alignments(
            source.run, sentences or choose_sentences(source.run, translated[0]), "--sentence"
        )
    for note in source.notes:
        say(note)
    if figures is not None:
        files = write_figures(
            Path(figures), draw_model(source), learning_charts(source.rows), shown
        )
        say(f"wrote {len(files)} files of figures to {figures}")
    return write_document(file, "report", page(source, translated, shown))


def open_weights(run_dir: RunDir, checkpoint: str | int | None) -> tuple[Run | None, str]:
    """Return the run and which weights it has, the final or a checkpoint's, or None and why there
    are none.
    """
    if checkpoint is None and not run_dir.weights.exists():
        if not list_checkpoints(run_dir.checkpoints):
            return None, "the run has neither final weights nor a checkpoint"
        try:
            run = open_run(run_dir.path, checkpoint="last")
        except (
            RunError,
            OSError,
        ) as error:  # a training that goes on may have replaced it by a newer one
            return None, f"its last checkpoint cannot be read: {one_line_error(error)}"
    else:
        run = open_run(run_dir.path, checkpoint=checkpoint)
    return (
        run,
        f"the checkpoint after {checkpoint_step(run.checkpoint):,} steps"
        if run.checkpoint
        else FINAL,
    )


def last_validation(rows: Rows, run: Run | None) -> dict[str, object]:
    """Return the row of the last validation; of an opened checkpoint, the last one until then."""
    step = checkpoint_step(run.checkpoint) if run and run.checkpoint else None
    validations = [
        row for row in rows if "val/loss" in row and (step is None or row["step"] <= step)
    ]
    return dict(validations[-1]) if validations else {}


def translate_split(source: Source, split: str | None, data: Path | None, say: Say) -> Translated:
    """Return sentences with their translations, the worst, and the scores by source length: known
    or new ones.

    A model without encoders gets the first half of each line, and continues it. split, data: the
    user's options; only then are missing files an error.
    """
    run = source.run
    pairs = open_split(source, run, split, data) if run is not None else None
    if run is None or pairs is None:
        return [], [], []
    is_measured = source.weights == FINAL and data is None
    known = source.record.by_length.get(source.split) if is_measured else None
    sides = run.recipe.sources
    recorded = source.run_dir.hypotheses(source.split)
    recorded_outputs = sides and is_measured
    outputs = (
        evaluation.read_hypotheses(recorded, [pairs.sides[TARGET], *pairs.references])
        if recorded_outputs
        else []
    )
    # the length of a question says nothing about its story
    measure = bool(sides) and known is None and not run.recipe.data.babi
    count = len(pairs) if measure or outputs else min(NUM_EXAMPLES, len(pairs))
    references = [list(lines[:count]) for lines in (pairs.sides[TARGET], *pairs.references)]
    lines = (
        evaluation.source_texts(run.recipe, pairs, count)
        if sides
        else [first_half(line) for line in references[0]]
    )
    if (
        sides
        and count == len(pairs)
        and (lost := lost_references(run.tokenizers, references).describe())
    ):
        source.notes.append(f"Of {source.split}, {lost}.")
    outputs = outputs or [best.text for best in evaluation.decode_lines(run, lines, say)]
    samples = list(map(Sentence, lines, [*zip(*references, strict=True)], outputs))
    worst = worst_samples(samples) if sides and count > NUM_EXAMPLES else []
    if not measure:
        return samples, worst, known or []
    metrics = evaluation.run_metrics(run, references[0])
    for name, score in metrics.scores(outputs, references).items():
        source.scores.setdefault(f"{source.split}/{name}", score)
    tables = evaluation.scores_by_length(
        run.recipe, metrics, [line[0] for line in lines], outputs, references
    )
    return samples, worst, next(iter(tables.values()), [])


def first_half(text: str) -> Line:
    """Return the first half of a text's words, as the beginning that a language model continues."""
    words = text.split(" ")
    return (" ".join(words[: (len(words) + 1) // 2]),)


def worst_samples(samples: Sequence[Sentence]) -> list[ScoredSentence]:
    """Return the sentences of the lowest chrF with it, without those that equal a reference, or
    have none.
    """
    scorer = METRICS["chrf"].scorer()
    rows = [(sample, references_of(sample.references)) for sample in samples]
    wrong = [(sample, of) for sample, of in rows if of and not is_exact(sample.translation, of)]
    scored = [(scorer.sentence_score(sample.translation, of).score, sample) for sample, of in wrong]
    return sorted(scored, key=lambda row: row[0])[:NUM_EXAMPLES]


def open_split(source: Source, run: Run, split: str | None, data: Path | None) -> Pairs | None:
    """Return the texts of the split; None, and a note on the page, if they are missing and were not
    asked for.
    """
    if not source.split:
        source.notes.append(
            "No translations of data: the recipe has neither a test nor a validation split."
        )
        return None
    try:
        if source.split == "train":
            return evaluation.read_split(run, "train", data)[0]
        return DataSource(run.recipe, run.folders(data)).pairs(source.split)
    except DataError as error:
        if data is not None or split is not None:
            raise
        messages = "; ".join(dict.fromkeys(fault.message for fault in error.faults))
        source.notes.append(
            f"No translations of data: {messages}. Pass the folder of the files with `--data DIR`."
        )
        return None


def choose_sentences(run: Run, samples: Sequence[Sentence]) -> list[Line]:
    """Return a few sentences for pictures: the first that are neither empty nor long.

    Without encoders these are whole lines. A task whose test is longer than its training has short
    ones in `val`.
    """
    lines = [
        sample.texts if run.recipe.sources else reference_texts(sample)
        for sample in samples[:NUM_EXAMPLES]
    ]
    lines = [line for line in lines if has_text(line)]
    if lines and not any(map(is_short, lines)) and run.recipe.data.generate:
        pairs = generate_pairs(run.recipe, "val")
        texts = [pairs.sides[side][:NUM_EXAMPLES] for side in run.recipe.sources or [TARGET]]
        lines = [*zip(*texts, strict=True), *lines]
    return (list(filter(is_short, lines)) or lines)[:NUM_DRAWN]


def reference_texts(sample: Sentence) -> Line:
    """Return the first reference of a line, "" where it has none."""
    return tuple(references_of(sample.references)[:1]) or ("",)


def is_short(line: Line) -> bool:
    """Return whether a line's picture can be read at a glance."""
    return 0 < sum(len(text.split()) for text in line) <= MAX_WORDS


def page(source: Source, translated: Translated, shown: Sequence[Alignment]) -> str:
    """Return the page."""
    recipe, record = source.recipe, source.record
    samples, worst, by_length = translated
    sides = recipe.sources
    sentences = [(alignment, pictures(alignment, number)) for number, alignment in enumerate(shown)]
    has_films, has_memories = any(one.films for one in shown), any(one.memories for one in shown)
    has_maps = any(one.attentions for one in shown) or not (has_films or has_memories)
    bleu, accuracy = bleu_chart(source.split, by_length), accuracy_chart(source.split, by_length)
    counts = [row["lines"] for row in by_length]
    # and could not write how it ended
    was_killed = record.status == "running" and is_locked(source.run_dir) is False
    sections = [
        ("curves", "Learning curves", learning_curves(source.rows)),
        ("length", "BLEU by source length", bleu and figure_html(*bleu)),
        ("accuracy", "Accuracy by source length", accuracy and figure_html(*accuracy)),
        ("samples", "Translations" if sides else "Continuations", samples),
        ("alignments", "Alignments", sentences if has_maps else []),
        ("films", "Film strips", sentences if has_films else []),
        ("memories", "Memory", sentences if has_memories else []),
        ("architecture", "Architecture", architecture(source)),
        ("recipe", "Recipe", source.run_dir.recipe.read_text(encoding="utf-8")),
    ]
    return render(
        "report.html",
        title=f"{recipe.name}: report",
        name=recipe.name,
        status="killed, or running on another machine" if was_killed else record.status,
        facts={name: value for name, value in facts(source).items() if value},
        scores=score_table(source),
        hints=hints(source),
        source=source,
        sections=[(name, heading, content) for name, heading, content in sections if content],
        has_source=bool(sides),
        num_examples=NUM_EXAMPLES,
        worst=worst,
        compare_sample=partial(
            compare_sample, columns={side: feature_settings(recipe.data, side) for side in sides}
        ),
        shown_kinds=list(dict.fromkeys(memory.kind for one in shown for memory in one.memories)),
        has_sounds=any(medium.hop for one in shown for medium in one.media.values()),
        counts=" to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
        if counts
        else "",
        versions=record.versions,
        now=to_minute(utc_now()),
    )


def hints(source: Source) -> list[str]:
    """Return what to try next, after a finished training on data that is not generated."""
    record = source.record
    if not record.is_finished or source.recipe.data.generate:
        return []
    sizes, unknown = (
        record.data.pairs if source.recipe.sources else {},
        record.data.val_unknown or 0.0,
    )
    return evaluation.training_hints(
        source.rows, sizes, record.epochs or 0, source.recipe.training, unknown
    )


def facts(source: Source) -> dict[str, str]:
    """Return what run.json says about the run, as text; of a run that goes on, what its last rows
    say.
    """
    record = source.record
    last = {key: value for row in source.rows for key, value in row.items()}
    spent = last.get("step"), last.get("epoch"), last.get("minutes")
    if record.is_finished and record.steps is not None:
        spent = record.steps, record.epochs, record.minutes
    git, seed = record.git, source.recipe.training.seed if record.seed is None else record.seed
    changes = ", with changes" if git and git.dirty else ""
    sizes = (f"{side} {format_number(size)}" for side, size in record.vocabularies.items())
    return {
        "parameters": format_number(record.parameters),
        "seed": format_number(seed),
        "steps": format_number(spent[0]),
        "epochs": format_number(spent[1]),
        "minutes of computing": format_number(spent[2]),
        "training pairs": format_number(record.data.train_pairs_used),
        "vocabulary": ", ".join(sizes),
        "weights on this page": source.weights if source.run else "",
        "started": to_minute(record.started_at),
        "ended": to_minute(record.ended_at),
        "commit of the recipe's repository": f"{git.commit[:SHORT_HASH]}{changes}" if git else "",
    }


def to_minute(time: str | None) -> str:
    """Return a time of run.json without its seconds."""
    return time[:16].replace("T", " ") + " UTC" if time else ""


SPLIT_TITLES = {"val": "validation", SAMPLE: "a sample of it"}
"""What parts of the data are called in the table of scores; others by their names."""


def score_table(source: Source) -> dict[str, object]:
    """Return the splits that have scores, and the label, the scores and the meaning of each metric."""
    scores = {
        name: value for name, value in source.scores.items() if isinstance(value, int | float)
    }
    splits = [
        "val",
        SAMPLE,
        *(name for name in available_splits(source.recipe) if name not in ("train", "val")),
    ]
    columns = [split for split in splits if any(f"{split}/{name}" in scores for name in METRICS)]
    rows = []
    for name, metric in METRICS.items():
        values = [scores.get(f"{split}/{name}") for split in columns]
        if any(value is not None for value in values):
            cells = ["" if value is None else metric.format(value) for value in values]
            rows.append((metric.label, cells, metric.meaning))
    return {"splits": [SPLIT_TITLES.get(split, split) for split in columns], "rows": rows}


def compare_sample(sample: Sentence, columns: Mapping[str, TableColumn | None]) -> ComparedTexts:
    """Return the sources, the reference and the translation of a sentence.

    columns: The sources by name, with their settings where they are no texts.
    """
    inputs = [
        (name, example(text, columns.get(name)))
        for name, text in zip([*columns] or ["beginning"], sample.texts, strict=True)
    ]
    output, (reference,) = sample.translation, reference_texts(sample)
    is_right = is_exact(output, sample.references)
    outputs = [
        ("reference", reference, False),
        ("translation" if columns else "continuation", output, is_right),
    ]
    return [*((name, text, False) for name, text in inputs), *outputs]


def architecture(source: Source) -> dict[str, str] | Markup:
    """Return the diagrams of the model with the run's vocabularies, or why it cannot be built here."""
    try:
        return draw_model(source).folded()
    except RecipeError as error:  # a block of a plug-in may be missing on this machine
        return Markup('<p class="soft">It cannot be shown here: {}.</p>').format(
            error.faults[0].message
        )


def draw_model(source: Source) -> Drawing:
    """Return the diagram of the model with the run's vocabularies. Raises RecipeError if it cannot
    be built here.
    """
    return draw(source.recipe, vocabularies=source.record.vocabularies or None)
