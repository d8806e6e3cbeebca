"""HTML report of a run: scores, learning curves, translations, pictures and the architecture."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from markupsafe import Markup

from composer.atomic_io import parse_json, read_text
from composer.data.pairs import available_splits
from composer.errors import RecipeError, RunError, one_line_error
from composer.evaluation.hints import training_hints
from composer.evaluation.scores import (
    missing_split,
)
from composer.fingerprint import read_verified
from composer.formatting import format_number
from composer.inference.run import Run, open_run
from composer.metrics.references import is_exact
from composer.metrics.table import METRICS, SAMPLE
from composer.model.features import feature_settings
from composer.recipe.cache import SHORT_HASH
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
    Chart,
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
from composer.viz.report_lines import (
    FINAL,
    NUM_EXAMPLES,
    DecodedSplit,
    Say,
    Sentence,
    Source,
    choose_sentences,
    decode_split,
)


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
    splits = available_splits(recipe)
    if split is not None and split not in splits:
        raise missing_split(recipe, split)
    default_split = next((name for name in ("test", "val") if name in splits), "")
    source = open_source(run_dir, record, split or default_split, checkpoint)
    decoded = decode_split(source, split, Path(data) if data is not None else None, say)
    shown = draw_sentences(source, decoded, sentences)
    for note in source.notes:
        say(note)
    if figures is not None:
        drawing = draw_model(source, recipe)
        files = write_figures(Path(figures), drawing, learning_charts(source.rows), shown)
        say(f"wrote {len(files)} files of figures to {figures}")
    return write_document(file, "report", page(source, recipe, decoded, shown))


def open_source(
    run_dir: RunDir, record: RunRecord, split: str, checkpoint: str | int | None
) -> Source:
    """Return a run with its weights, and the scores that are known of these."""
    run, weights = open_weights(run_dir, checkpoint)
    notes = [] if run else [f"No translations and no alignments: {weights}."]
    rows = read_metrics(run_dir.metrics)
    scores = dict(record.scores) if weights == FINAL else last_validation(rows, run)
    return Source(run_dir, record, rows, run, weights, split, notes, scores)


def open_weights(run_dir: RunDir, checkpoint: str | int | None) -> tuple[Run | None, str]:
    """Return the run and the name of its weights; without any None, and the reason."""
    if checkpoint is None and not run_dir.weights.exists():
        if not list_checkpoints(run_dir.checkpoints):
            return None, "the run has neither final weights nor a checkpoint"
        try:
            run = open_run(run_dir.path, checkpoint="last")
        except (RunError, OSError) as error:  # a running training may have replaced it
            return None, f"its last checkpoint cannot be read: {one_line_error(error)}"
    else:
        run = open_run(run_dir.path, checkpoint=checkpoint)
    if run.checkpoint:
        return run, f"the checkpoint after {checkpoint_step(run.checkpoint):,} steps"
    return run, FINAL


def last_validation(rows: Rows, run: Run | None) -> dict[str, object]:
    """Return the row of the last validation, for an opened checkpoint the last one before it."""
    validations = [row for row in rows if "val/loss" in row]
    if run and run.checkpoint:
        step = checkpoint_step(run.checkpoint)
        validations = [row for row in validations if row["step"] <= step]
    return dict(validations[-1]) if validations else {}


def draw_sentences(
    source: Source, decoded: DecodedSplit, sentences: Sequence[str]
) -> Sequence[Alignment]:
    """Return the pictures of the given sentences, or of a few of the split. Raises RunError."""
    if source.run is not None:
        lines = sentences or choose_sentences(source.run, decoded.sentences)
        return alignments(source.run, lines, "--sentence")
    if sentences:
        message = f"`--sentence` needs weights, and {source.weights}"
        raise RunError.of(message, "leave it out", str(source.run_dir.path))
    return []


@dataclass(frozen=True)
class Section:
    """A section of the page; the template has a macro of the same `id` for its content."""

    id: str
    heading: str
    content: Any

    @property
    def is_empty(self) -> bool:
        return not self.content


def page(source: Source, recipe: Recipe, decoded: DecodedSplit, shown: Sequence[Alignment]) -> str:
    """Return the page."""
    point = trial_point(source.run_dir)
    title = point or recipe.name
    return render(
        "report.html",
        title=f"{title}: report",
        heading_text=title,
        trial=recipe.name if point else "",
        status=status(source),
        facts=facts(source, recipe),
        scores=score_table(source.scores, recipe),
        hints=hints(source, recipe),
        source=source,
        is_language_model=not recipe.sources,
        sections=[it for it in sections(source, recipe, decoded, shown) if not it.is_empty],
        now=to_minute(utc_now()),
    )


def trial_point(run_dir: RunDir) -> str:
    """Return the axis values of a sweep's trial, `arch=gru, width=256`; "" for any other run."""
    file = run_dir.path.parent / "trial.json"
    try:
        point = dict(parse_json(read_text(file))["point"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return ", ".join(f"{axis}={value}" for axis, value in point.items())


def status(source: Source) -> str:
    """Return the status of the run; a killed training could not write how it ended."""
    if source.record.status == "running" and is_locked(source.run_dir) is False:
        return "killed, or running on another machine"
    return source.record.status


def sections(
    source: Source, recipe: Recipe, decoded: DecodedSplit, shown: Sequence[Alignment]
) -> Iterator[Section]:
    """Yield all sections of the page, empty ones too."""
    bleu = bleu_chart(source.split, decoded.by_length)
    accuracy = accuracy_chart(source.split, decoded.by_length)
    yield Section("curves", "Learning curves", LearningCurves.of(source.rows))
    yield Section("length", "BLEU by source length", ScoresByLength.of(bleu, decoded))
    yield Section("accuracy", "Accuracy by source length", ScoresByLength.of(accuracy, decoded))
    heading = "Translations" if recipe.sources else "Continuations"
    yield Section("samples", heading, [*sample_lists(source, recipe, decoded)])
    sentences = [
        DrawnSentence(alignment, number) for number, alignment in enumerate(shown, start=1)
    ]
    films = [it for it in sentences if it.alignment.films]
    memories = [it for it in sentences if it.alignment.memories]
    has_maps = any(alignment.attentions for alignment in shown)
    has_maps = has_maps or not (films or memories)
    yield Section("alignments", "Alignments", sentences if has_maps else [])
    yield Section("films", "Film strips", films)
    yield Section("memories", "Memory", memories)
    yield Section("architecture", "Architecture", architecture(source, recipe))
    yield Section("recipe", "Recipe", source.run_dir.recipe.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class LearningCurves:
    """Charts, and the epoch and the minutes at each step that has both: [step, epoch, minutes]."""

    charts: Sequence[Markup]
    clock: Sequence[Sequence[float]]

    @classmethod
    def of(cls, rows: Rows) -> LearningCurves | None:
        """Return the charts of metrics.jsonl, None if nothing was logged."""
        charts = learning_curves(rows)
        timed = [row for row in rows if {"step", "epoch", "minutes"} <= row.keys()]
        clock = [[row["step"], row["epoch"], row["minutes"]] for row in timed]
        return cls(charts, clock) if charts else None


@dataclass(frozen=True)
class ScoresByLength:
    """A chart of scores by source length, and the number of sentences of each length."""

    chart: Markup
    counts: str

    @classmethod
    def of(cls, chart: Chart | None, decoded: DecodedSplit) -> ScoresByLength | None:
        """Return a chart with its counts, None without a chart."""
        if chart is None:
            return None
        counts = [row["lines"] for row in decoded.by_length]
        ends = sorted({min(counts), max(counts)})
        return cls(figure_html(*chart), " to ".join(f"{count:,}" for count in ends))


@dataclass(frozen=True)
class ShownText:
    """One text of a sentence, or its image or sound, under its name."""

    name: str
    text: str | Markup
    is_right: bool = False


@dataclass(frozen=True)
class Sample:
    """The texts of a sentence, and chrF where it was chosen by it."""

    texts: Sequence[ShownText]
    chrf: float | None = None


@dataclass(frozen=True)
class SampleList:
    """Sentences under a heading."""

    heading: str
    samples: Sequence[Sample]


def sample_lists(source: Source, recipe: Recipe, decoded: DecodedSplit) -> Iterator[SampleList]:
    """Yield the worst sentences and the first ones."""
    if decoded.worst:
        worst = [Sample(shown_texts(recipe, it), chrf) for it, chrf in decoded.worst]
        count = f"{len(worst)} of {len(decoded.sentences):,}"
        yield SampleList(f"The worst {count} lines of {source.split}, by chrF", worst)
    if decoded.sentences:
        first = [Sample(shown_texts(recipe, it)) for it in decoded.sentences[:NUM_EXAMPLES]]
        yield SampleList(f"The first {len(first)} lines of {source.split}", first)


def shown_texts(recipe: Recipe, sentence: Sentence) -> list[ShownText]:
    """Return the sources, the reference and the translation of a sentence."""
    columns = {side: feature_settings(recipe.data, side) for side in recipe.sources}
    texts = []
    for name, text in zip([*columns] or ["beginning"], sentence.texts, strict=True):
        texts.append(ShownText(name, example(text, columns.get(name))))
    texts.append(ShownText("reference", sentence.reference))
    is_right = is_exact(sentence.translation, sentence.references)
    name = "translation" if columns else "continuation"
    return [*texts, ShownText(name, sentence.translation, is_right)]


class DrawnSentence:
    """A sentence with its pictures, which its first section on the page offers as files."""

    def __init__(self, alignment: Alignment, number: int) -> None:
        self.alignment = alignment
        self.number = number
        self.pictures = pictures(alignment, number)

    @property
    def kinds(self) -> list[str]:
        """The kinds of memory that it shows, each with an explanation of its own."""
        return [memory.kind for memory in self.alignment.memories]

    @property
    def has_sound(self) -> bool:
        return any(medium.hop for medium in self.alignment.media.values())

    @property
    def svg_uri(self) -> str:
        """All its pictures as the data URI of an SVG file; "" without any."""
        if not (self.alignment.attentions or self.alignment.films or self.alignment.memories):
            return ""
        svg = self.alignment.svg().encode()
        return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def hints(source: Source, recipe: Recipe) -> list[str]:
    """Return suggestions after a finished training on data that is not generated."""
    record = source.record
    if not record.is_finished or recipe.data.generate:
        return []
    sizes = record.data.pairs if recipe.sources else {}
    unknown = record.data.val_unknown or 0.0
    return training_hints(source.rows, sizes, record.epochs or 0, recipe.training, unknown)


def facts(source: Source, recipe: Recipe) -> dict[str, str]:
    """Return the facts of run.json as text; for a running training those of its last rows."""
    record = source.record
    last: dict[str, Any] = {}
    for row in source.rows:
        last.update(row)
    spent = last.get("step"), last.get("epoch"), last.get("minutes")
    if record.is_finished and record.steps is not None:
        spent = record.steps, record.epochs, record.minutes
    git = record.git
    changes = ", with changes" if git and git.dirty else ""
    sizes = (f"{side} {format_number(size)}" for side, size in record.vocabularies.items())
    values = {
        "parameters": format_number(record.parameters),
        "seed": format_number(recipe.training.seed if record.seed is None else record.seed),
        "steps": format_number(spent[0]),
        "epochs": format_number(spent[1]),
        "minutes of computing": format_number(spent[2]),
        "training pairs" if recipe.sources else "training texts": format_number(
            record.data.train_pairs_used
        ),
        "vocabulary": ", ".join(sizes),
        "weights on this page": source.weights if source.run else "",
        "started": to_minute(record.started_at),
        "ended": to_minute(record.ended_at),
        "commit of the recipe's repository": f"{git.commit[:SHORT_HASH]}{changes}" if git else "",
    }
    return {name: value for name, value in values.items() if value}


def to_minute(time: str | None) -> str:
    """Return a time of run.json without its seconds."""
    return time[:16].replace("T", " ") + " UTC" if time else ""


SPLIT_TITLES = {"val": "validation", SAMPLE: "a sample of it"}
"""Names of splits in the table of scores; others have their own."""


@dataclass(frozen=True)
class Score:
    """A row of the table of scores, with a value for each split."""

    label: str
    values: Sequence[str]
    meaning: str


@dataclass(frozen=True)
class ScoreTable:
    """The scores of all splits that have any."""

    splits: Sequence[str]
    rows: Sequence[Score]


def score_table(known: Mapping[str, object], recipe: Recipe) -> ScoreTable:
    """Return the table of the scores that are known, with what each metric means."""
    scores = {key: score for key, score in known.items() if isinstance(score, int | float)}
    others = [name for name in available_splits(recipe) if name not in ("train", "val")]
    splits = [split for split in ("val", SAMPLE, *others) if has_scores(scores, split)]
    rows = []
    for name, metric in METRICS.items():
        values = [scores.get(f"{split}/{name}") for split in splits]
        if any(value is not None for value in values):
            cells = ["" if value is None else metric.format(value) for value in values]
            rows.append(Score(metric.label, cells, metric.meaning))
    return ScoreTable([SPLIT_TITLES.get(split, split) for split in splits], rows)


def has_scores(scores: Mapping[str, float], split: str) -> bool:
    """True if a metric is known of a split."""
    return any(f"{split}/{name}" in scores for name in METRICS)


def architecture(source: Source, recipe: Recipe) -> dict[str, str] | Markup:
    """Return the diagrams of the model, or the reason why it cannot be built here."""
    try:
        return draw_model(source, recipe).folded()
    except RecipeError as error:  # a block of a plug-in may be missing on this machine
        note = Markup('<p class="soft">It cannot be shown here: {}.</p>')
        return note.format(error.faults[0].message)


def draw_model(source: Source, recipe: Recipe) -> Drawing:
    """Return the diagram of the model with the run's vocabularies. Raises RecipeError."""
    return draw(recipe, vocabularies=source.record.vocabularies or None)
