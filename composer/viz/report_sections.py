"""What stands on the page of a run, part by part."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from composer.data.sources import source_names
from composer.errors import RecipeError
from composer.evaluation.hints import training_hints
from composer.inference.run import Sample
from composer.recipe.cache import SHORT_HASH
from composer.recipe.metrics import METRICS
from composer.run_dir import recorded_vocabularies, utc_now
from composer.viz.architecture import draw
from composer.viz.attention_maps import Alignment
from composer.viz.charts import Bar, Curve, bar_chart, line_chart
from composer.viz.collect import Findings
from composer.viz.frames import spaced
from composer.viz.frames_html import LEGEND, strips
from composer.viz.heatmaps import sentence
from composer.viz.html import Markup, join, tag
from composer.viz.memory_html import seen, weightings
from composer.viz.page import heading, html_document


class Chart(NamedTuple):
    """A chart of learning curves: its title, what it shows of metrics.jsonl, whether its axis is logarithmic, and where
    that ends, if it is known."""

    title: str
    names: tuple[str, ...]
    logarithmic: bool = False
    high: float | None = None


OTHER_CHARTS = (
    Chart("Learning rate", ("train/learning_rate",)),
    Chart("Level of the curriculum", ("train/level",)),
    Chart("Training sequences with an error", ("train/sequence_error",), high=1.0),
)
"""Charts of what is logged beside the metrics."""
RIGHT = {"exact_match": "exact match", "positional_accuracy": "positional accuracy"}
"""What is told of every length of the source, and how it is called."""
FOLLOWED = 3
"""Sentences whose translations in the course of training are shown."""
MOMENTS = 6
"""How many of the validations they are shown at."""


def contents(found: Findings) -> str:
    """The whole page."""
    parts = {
        "curves": ("Learning curves", curves(found.rows)),
        "length": ("BLEU by source length", bleu_by_length(found)),
        "accuracy": ("Accuracy by source length", accuracy_by_length(found)),
        "samples": ("Translations" if source_names(found.recipe) else "Continuations", samples(found)),
        "alignments": ("Alignments", alignments(found.alignments)),
        "films": ("Mental image", films(found.alignments)),
        "memories": ("Memory", memories(found.alignments)),
        "training": ("In the course of training", course(found.log)),
        "architecture": ("Architecture", architecture(found)),
        "recipe": ("Recipe", recipe(found)),
    }
    there = {name: part for name, part in parts.items() if part[1]}
    links = (tag("a", {"href": f"#{name}"}, title) for name, (title, _) in there.items())
    head = tag("header", {}, *header(found), tag("nav", {}, *links), *notes(found.notes))
    sections = (tag("section", {"id": name}, tag("h2", {}, title), inner) for name, (title, inner) in there.items())
    version = found.record.get("versions", {}).get("seqcomposer")
    foot = tag("footer", {}, f"Written {moment(utc_now())} by seqcomposer report{f' {version}' if version else ''}.")
    return html_document(f"{found.recipe.name}: report", head, tag("main", {}, *sections), foot)


def notes(told: Iterable[str]) -> list[Markup]:
    """What is not on the page, and why."""
    return [tag("p", {"class": "note"}, note) for note in told]


# ------------------------------------------------------------------------------------------- the run


def header(found: Findings) -> list[Markup]:
    """The run's name, how it stands, and its scores."""
    status = str(found.record.get("status", "unknown"))
    state = tag("span", {"class": "status finished" if status == "finished" else "status"}, status)
    inner = [tag("h1", {}, found.recipe.name, state), facts(known(found))]
    return [*inner, scores(scores_of(found)), *advised(found)]


def advised(found: Findings) -> list[Markup]:
    """What the course of a finished training says, and what to try next; of a task nothing."""
    if found.record.get("status") != "finished" or found.recipe.dataset.get("generate"):
        return []
    told = training_hints(found.rows, found.record.get("data", {}).get("pairs", {}), found.record.get("epochs", 0))
    return [tag("p", {}, *with_code(f"{line}.")) for line in told]


def with_code(text: str) -> list[Markup | str]:
    """A text whose words between backticks are set as code."""
    return [tag("code", {}, part) if at % 2 else part for at, part in enumerate(text.split("`"))]


def facts(told: Mapping[str, str]) -> Markup:
    """Words and what they are of this run."""
    return tag(
        "dl",
        {"class": "facts"},
        *(tag("div", {}, tag("dt", {}, word), tag("dd", {}, what)) for word, what in told.items() if what),
    )


def known(found: Findings) -> dict[str, str]:
    """What run.json says of the run; of one that goes on, what its last row says."""
    record = found.record
    last = {**(found.rows[-1] if found.rows else {}), **{key: each for row in found.rows for key, each in row.items()}}
    data, kept = record.get("data", {}), record.get("checkpoints_used", {})
    steps = ", ".join(re.sub(r"\D*0*(\d+)\D*", r"\1", str(name)) for name in kept.get("checkpoints", ()))
    return {
        "parameters": counted(record.get("parameters")),
        "seed": counted(record.get("seed", found.recipe.training["seed"])),
        "steps": counted(record.get("steps", last.get("step"))),
        "epochs": counted(record.get("epochs", last.get("epoch"))),
        "minutes of computing": counted(record.get("minutes", last.get("minutes"))),
        "training pairs": counted(data.get("train_pairs_used")),
        "vocabulary": ", ".join(f"{side} {counted(size)}" for side, size in record.get("vocabularies", {}).items()),
        "weights kept": f"{kept['how']}, of step {steps}" if kept.get("how") else "",
        "weights on this page": found.weights,
        "started": moment(record.get("started_at")),
        "ended": moment(record.get("ended_at")),
        "commit": commit(record.get("git")),
    }


def moment(time: Any) -> str:
    """A time as run.json has it, to the minute."""
    return str(time)[:16].replace("T", " ") + " UTC" if time else ""


def commit(git: Mapping[str, Any] | None) -> str:
    """The state of the repository in which the run began."""
    return f"{str(git['commit'])[:SHORT_HASH]}{', with changes' if git.get('dirty') else ''}" if git else ""


def counted(value: Any) -> str:
    """A number as one reads it; nothing for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def scores_of(found: Findings) -> dict[str, float]:
    """The scores of the weights that were kept; of a run that has none yet, of its last validation."""
    told = found.record.get("scores")
    if not told:
        judged = [row for row in found.rows if "val/loss" in row]
        told = judged[-1] if judged else {}
    return {name: value for name, value in told.items() if isinstance(value, int | float) and "/" in name}


def scores(told: Mapping[str, float]) -> Markup:
    """Scores as a table, a column for each part of the data."""
    splits = [split for split in ("val", "test") if any(f"{split}/{name}" in told for name in METRICS)]
    if not splits:
        return Markup("")
    rows = [
        [metric.label, *(score(name, told.get(f"{split}/{name}")) for split in splits), metric.meaning]
        for name, metric in METRICS.items()
        if any(f"{split}/{name}" in told for split in splits)
    ]
    heads = [{"val": "validation", "test": "test"}[split] for split in splits]
    return table(["score", *heads, "what it says"], rows)


def score(name: str, value: float | None) -> str:
    """Write a score in the format of its metric; a missing one as nothing."""
    return "" if value is None else METRICS[name].format(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table with numbers in all columns but the first and the last, which is words."""
    kinds = [None, *("number" for _ in heads[2:]), "soft"]
    head = tag("tr", {}, *(tag("th", {"class": kind}, text) for kind, text in zip(kinds, heads, strict=True)))
    body = (
        tag("tr", {}, *(tag("td", {"class": kind}, text) for kind, text in zip(kinds, row, strict=True)))
        for row in rows
    )
    return tag("div", {"class": "scroll"}, tag("table", {}, tag("thead", {}, head), tag("tbody", {}, *body)))


# ------------------------------------------------------------------------------------------- curves and bars


def charts() -> list[Chart]:
    """Return the charts of learning curves: those of the metrics, then the others."""
    found: dict[str, Chart] = {}
    for name, metric in METRICS.items():
        title = metric.chart or metric.label
        names = (*(found[title].names if title in found else ()), *(["train/loss"] if name == "loss" else []))
        high = 1.0 if metric.highest == 1 else None
        found[title] = Chart(title, (*names, f"val/{name}"), metric.logarithmic, high)
    return [*found.values(), *OTHER_CHARTS]


def curves(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Every chart of which the run has logged something."""
    drawn = []
    for chart in charts():
        every = [Curve(name, points(rows, name, chart.logarithmic)) for name in chart.names]
        if found := [curve for curve in every if curve.points]:
            drawn.append(line_chart(chart.title, found, chart.logarithmic, high=chart.high))
    return tag("div", {"class": "charts"}, *drawn) if drawn else Markup("")


def points(
    rows: Sequence[Mapping[str, Any]], name: str, positive: bool, across: str = "step"
) -> list[tuple[float, float]]:
    """What was logged under a name, by step or what `across` says; without what is no number."""
    found = [(float(row[across]), row[name]) for row in rows if isinstance(row.get(name), int | float)]
    return [(step, float(value)) for step, value in found if math.isfinite(value) and (value > 0 or not positive)]


def bleu_by_length(found: Findings) -> Markup:
    """BLEU of short and of long sentences."""
    rows = [row for row in found.by_length if "bleu" in row]
    if not rows:
        return Markup("")
    bars = [Bar(str(row["words"]), float(row["bleu"]), f"n={row['lines']:,}") for row in rows]
    chart = bar_chart(f"BLEU on {found.split}, by words of the source", bars)
    about = "Below each bar stand the words of a source and how many sentences have so many; of few, BLEU says little."
    return join([tag("p", {"class": "soft"}, about), tag("div", {"class": "charts"}, chart)])


def accuracy_by_length(found: Findings) -> Markup:
    """How many answers are right, of short and of long sources."""
    rows = sorted((row for row in found.by_length if "exact_match" in row), key=lambda row: row["tokens"])
    if not rows:
        return Markup("")
    every = [Curve(called, points(rows, name, False, across="tokens")) for name, called in RIGHT.items()]
    drawn = [curve for curve in every if curve.points]
    chart = line_chart(f"Accuracy on {found.split}, by words of the source", drawn, across="length", low=0.0, high=1.0)
    lines = sorted({row["lines"] for row in rows})
    counted = " to ".join(f"{count:,}" for count in dict.fromkeys((lines[0], lines[-1])))
    about = "The share of answers without any fault (exact match), and of the words that stand where they should; "
    about += f"{counted} sentences of each length."
    return join([tag("p", {"class": "soft"}, about), tag("div", {"class": "charts"}, chart)])


# ------------------------------------------------------------------------------------------- sentences


def samples(found: Findings) -> Markup:
    """The first sentences of the data, each with what was asked for and what came."""
    if not found.examples:
        return Markup("")
    sides = source_names(found.recipe)
    about = f"The first sentences of {found.split}, by {found.weights}."
    about += "" if sides else " The model is given the first half of each and goes on from there."
    items = (tag("li", {}, sample(each, sides)) for each in found.examples)
    return join([tag("p", {"class": "soft"}, about), tag("ol", {"class": "samples"}, *items)])


def sample(one: Sample, sides: Sequence[str]) -> Markup:
    """One sentence: its source or sources, its reference and its translation."""
    read = one.source.split("\t") if len(sides) > 1 else [one.source]
    names = sides if len(sides) == len(read) else ["source"] if sides else ["beginning"]
    written = ("translation" if sides else "written", one.translation)
    return compared([*zip(names, read, strict=False)], one.reference, [written])


def compared(read: Sequence[tuple[str, str]], reference: str, written: Sequence[tuple[str, str]]) -> Markup:
    """Texts below each other, each with what it is; what is written as the reference has it is marked."""
    right = [text.strip() == reference.strip() for _, text in written]
    rows = [
        *((name, text, False) for name, text in read),
        ("reference", reference, False),
        *((name, text, same) for (name, text), same in zip(written, right, strict=True)),
    ]
    told = [
        part
        for name, text, same in rows
        for part in (tag("dt", {}, name), tag("dd", {"dir": "auto", "class": "same" if same else None}, text))
    ]
    return tag("dl", {"class": "sample"}, *told)


def alignments(found: Sequence[Alignment]) -> Markup:
    """The maps of every sentence, those of the first one open."""
    if not found or (any(each.films or each.memories for each in found) and not any(each.attentions for each in found)):
        return Markup("")
    about = (
        "A row is a token that is written or, in an encoder, one that reads; a column is a token that is read. The "
        "more a cell stands out, the larger its weight. Point at one to read it."
    )
    drawn = (pictured(each, sentence(each, at), at == 0) for at, each in enumerate(found))
    return join([tag("p", {"class": "soft"}, about), *drawn])


def films(found: Sequence[Alignment]) -> Markup:
    """The film strips of every sentence, those of the first one open."""
    if not any(each.films for each in found):
        return Markup("")
    drawn = (pictured(each, strips(each.films), at == 0) for at, each in enumerate(found))
    return join([tag("p", {"class": "soft"}, LEGEND), *drawn])


def memories(found: Sequence[Alignment]) -> Markup:
    """What the memories held for every sentence, those of the first one open."""
    abouts = seen([each for one in found for each in one.memories])
    if not abouts:
        return Markup("")
    drawn = (pictured(each, weightings(each.memories, at), at == 0) for at, each in enumerate(found))
    return join([*(tag("p", {"class": "soft"}, about) for about in abouts), *drawn])


def pictured(one: Alignment, drawn: Markup, is_open: bool) -> Markup:
    """A sentence, and pictures of it behind a disclosure."""
    note = [tag("p", {"class": "soft"}, f"Drawn: {one.note}.")] if one.note else []
    summary = tag("summary", {}, heading(one))
    return tag("details", {"class": "sentence", "open": "open" if is_open else None}, summary, *note, drawn)


def course(log: Mapping[int, Sequence[Sample]]) -> Markup:
    """How the translations of a few validation sentences have changed."""
    steps = spaced(list(log), MOMENTS)
    if not steps:
        return Markup("")
    drawn = [tag("p", {"class": "soft"}, "Validation sentences, translated greedily in the course of training.")]
    items = [follow(log, steps, place) for place in range(min(FOLLOWED, *(len(log[step]) for step in steps)))]
    return join([*drawn, tag("ol", {"class": "samples"}, *(tag("li", {}, item) for item in items))])


def follow(log: Mapping[int, Sequence[Sample]], steps: Sequence[int], place: int) -> Markup:
    """One sentence, and its translations after some steps."""
    one = log[steps[-1]][place]
    rows = [(f"step {step:,}", log[step][place].translation) for step in steps]
    return compared([("source", one.source)], one.reference, rows)


def architecture(found: Findings) -> Markup:
    """The model as a picture, with the vocabularies that the run has found; or why it cannot be built here."""
    try:
        drawn = draw(found.recipe, vocabularies=recorded_vocabularies(found.record))
    except RecipeError as error:
        return tag("p", {"class": "soft"}, f"It cannot be drawn here: {error.faults[0].message}.")
    return tag("div", {"class": "scroll"}, Markup(drawn.svg()))


def recipe(found: Findings) -> Markup:
    """The recipe as the run folder has it, and the versions of what ran it."""
    versions = ", ".join(f"{name} {version}" for name, version in found.record.get("versions", {}).items())
    shown = tag("details", {}, tag("summary", {}, "The recipe of this run"), tag("pre", {}, found.text))
    return join([shown, tag("p", {"class": "soft"}, versions)]) if versions else shown
