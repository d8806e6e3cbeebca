"""The sentences of a report: lines of a split with their translations, and lines for pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.data.pairs import TARGET, Pairs
from composer.data.round_trips import lost_references
from composer.data.sources import DataSource, generate_pairs
from composer.errors import DataError
from composer.evaluation.by_length import scores_by_length
from composer.evaluation.hypotheses import read_hypotheses
from composer.evaluation.scores import decode_lines, read_split, run_metrics, source_texts
from composer.inference.answers import has_text
from composer.inference.lines import Line
from composer.inference.run import Run
from composer.metrics.references import is_exact, references_of
from composer.metrics.table import METRICS
from composer.run_dir import RunDir
from composer.runs.record import RunRecord
from composer.viz.page import Rows

NUM_EXAMPLES, NUM_DRAWN = 10, 3
"""Sentences that are translated, and those whose pictures are shown."""
MAX_WORDS = 25
"""Words beyond which a sentence is not chosen for a picture."""
FINAL = "the final weights"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """What a report is made of: a run, its open weights, a split, and notes on what is missing.

    `run` is None without weights; `weights` then says why there are none, and else which they are.
    """

    run_dir: RunDir
    record: RunRecord
    rows: Rows
    run: Run | None
    weights: str
    split: str
    notes: list[str]
    scores: dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A line for the encoders, or a text's beginning; its references and the model's output."""

    texts: Line
    references: Sequence[str | None]
    translation: str

    @property
    def reference(self) -> str:
        """The first reference, "" if there is none."""
        return (references_of(self.references) or [""])[0]


@dataclass(frozen=True)
class DecodedSplit:
    """Sentences with their translations, the worst of them with chrF, and scores by length."""

    sentences: Sequence[Sentence] = ()
    worst: Sequence[tuple[Sentence, float]] = ()
    by_length: Sequence[Mapping[str, Any]] = ()


def decode_split(source: Source, split: str | None, data: Path | None, say: Say) -> DecodedSplit:
    """Return a split with translations, those of the training if there are any.

    split, data: The user's options; only with them missing files are an error.
    """
    run = source.run
    pairs = open_split(source, run, split, data) if run is not None else None
    if run is None or pairs is None:
        return DecodedSplit()
    if not run.recipe.sources:
        return DecodedSplit(continue_texts(run, pairs, say))
    is_measured = source.weights == FINAL and data is None
    outputs: list[str] = []
    by_length: Sequence[Mapping[str, Any]] | None = None
    if is_measured:
        file = source.run_dir.hypotheses(source.split)
        outputs = read_hypotheses(file, [pairs.sides[TARGET], *pairs.references])
        by_length = source.record.by_length.get(source.split)
    # the length of a question says nothing about its story
    measure = by_length is None and not run.recipe.data.babi
    count = len(pairs) if measure or outputs else min(NUM_EXAMPLES, len(pairs))
    references = first_references(pairs, count)
    lines = source_texts(run.recipe, pairs, count)
    if count == len(pairs):
        lost = lost_references(run.tokenizers, references).describe()
        source.notes.extend([f"Of {source.split}, {lost}."] if lost else [])
    outputs = outputs or [best.text for best in decode_lines(run, lines, say)]
    sentences = list(map(Sentence, lines, zip(*references, strict=True), outputs))
    worst = worst_sentences(sentences) if count > NUM_EXAMPLES else []
    if measure:
        by_length = measure_outputs(source, run, lines, outputs, references)
    return DecodedSplit(sentences, worst, by_length or [])


def first_references(pairs: Pairs, count: int) -> list[list[str]]:
    """Return the columns of references of the first lines."""
    return [list(column[:count]) for column in (pairs.sides[TARGET], *pairs.references)]


def continue_texts(run: Run, pairs: Pairs, say: Say) -> list[Sentence]:
    """Return the first texts, with what a language model writes after the first half of each."""
    references = first_references(pairs, min(NUM_EXAMPLES, len(pairs)))
    beginnings = [first_half(text) for text in references[0]]
    outputs = [best.text for best in decode_lines(run, beginnings, say)]
    return list(map(Sentence, beginnings, zip(*references, strict=True), outputs))


def measure_outputs(
    source: Source,
    run: Run,
    lines: Sequence[Line],
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
) -> Sequence[Mapping[str, Any]]:
    """Return scores of outputs by source length, and add those of all to the report's scores."""
    metrics = run_metrics(run, references[0])
    for name, score in metrics.scores(outputs, references).items():
        source.scores.setdefault(f"{source.split}/{name}", score)
    first_sources = [line[0] for line in lines]
    tables = scores_by_length(run.recipe, metrics, first_sources, outputs, references)
    return next(iter(tables.values()), [])


def first_half(text: str) -> Line:
    """Return the first half of a text's words."""
    words = text.split(" ")
    return (" ".join(words[: (len(words) + 1) // 2]),)


def worst_sentences(sentences: Sequence[Sentence]) -> list[tuple[Sentence, float]]:
    """Return the sentences of the lowest chrF, without right ones and those without reference."""
    scorer = METRICS["chrf"].scorer()
    scored = []
    for sentence in sentences:
        references = references_of(sentence.references)
        if references and not is_exact(sentence.translation, references):
            chrf = scorer.sentence_score(sentence.translation, references).score
            scored.append((sentence, chrf))
    return sorted(scored, key=lambda row: row[1])[:NUM_EXAMPLES]


def open_split(source: Source, run: Run, split: str | None, data: Path | None) -> Pairs | None:
    """Return the texts of the split.

    None, with a note on the page, if they are missing and were not asked for.
    """
    if not source.split:
        source.notes.append(
            "No translations of data: the recipe has neither a test nor a validation split."
        )
        return None
    try:
        if source.split == "train":
            return read_split(run, "train", data)[0]
        return DataSource(run.recipe, run.folders(data)).pairs(source.split)
    except DataError as error:
        if data is not None or split is not None:
            raise
        messages = "; ".join(dict.fromkeys(fault.message for fault in error.faults))
        source.notes.append(
            f"No translations of data: {messages}. Pass the folder of the files with `--data DIR`."
        )
        return None


def choose_sentences(run: Run, sentences: Sequence[Sentence]) -> list[Line]:
    """Return a few lines for pictures: the first that are neither empty nor long.

    A language model gets whole texts. A task whose test is longer than its training has short lines
    in `val`.
    """
    lines = list(filter(has_text, lines_to_draw(run, sentences[:NUM_EXAMPLES])))
    if lines and not any(map(is_short, lines)) and run.recipe.data.generate:
        pairs = generate_pairs(run.recipe, "val")
        texts = [pairs.sides[side][:NUM_EXAMPLES] for side in run.recipe.sources or [TARGET]]
        lines = [*zip(*texts, strict=True), *lines]
    return (list(filter(is_short, lines)) or lines)[:NUM_DRAWN]


def lines_to_draw(run: Run, sentences: Sequence[Sentence]) -> Iterator[Line]:
    """Yield the sources of sentences, or the references for a model without encoders."""
    for sentence in sentences:
        yield sentence.texts if run.recipe.sources else (sentence.reference,)


def is_short(line: Line) -> bool:
    """True if a line's picture can be read at a glance."""
    return 0 < sum(len(text.split()) for text in line) <= MAX_WORDS
