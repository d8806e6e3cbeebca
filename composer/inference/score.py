"""`score`: how probable given lines are to a model, and which of two sentences it prefers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from composer.data.documents import JSON, PARQUET
from composer.data.encoding import MAX_TOKENS
from composer.data.pairs import TARGET, file_options
from composer.errors import DataError, Fault, RunError
from composer.inference.line_streams import BATCH_LINES, STDIN, open_input, read_columns
from composer.inference.lines import Score, split_line, write_note
from composer.inference.run import Run, open_run

GOOD, BAD = "sentence_good", "sentence_bad"
PARADIGMS = ("field", "linguistics_term", "UID")
"""Properties of a pair in BLiMP, beside its sentences (Warstadt et al. 2020)."""
TIE = 1e-6
"""Relative difference up to which two log-probabilities are equal: float32 sums are as inexact."""


def score(
    run: Run | str | Path,
    lines: Sequence[str],
    targets: Sequence[str] | None = None,
    checkpoint: str | int | None = None,
) -> list[Score]:
    """Return the log-probabilities of lines of a language model, or of targets: see `Run.score`.

    Raises RunError and DataError.
    """
    return open_run(run, checkpoint=checkpoint).score(lines, targets)


def score_files(
    run: Run | str | Path,
    files: Sequence[Path] = (),
    sources: Sequence[Path] = (),
    target: Path | None = None,
    checkpoint: str | int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each line of files, or of stdin, and at the end one of all lines.

    A line is a text of a language model, or a source, a tab and its target; `sources` and `target`
    have each side in a file of its own. Raises RunError and DataError; what is before a line at
    fault has been scored.
    """
    opened = open_run(run, checkpoint=checkpoint)
    sides = opened.recipe.sources
    if (target or sources) and (files or target is None or len(sources) != len(sides)):
        raise side_files_error(opened)
    for file in (*files, *sources, *filter(None, [target])):
        refuse_columns(file)
    groups: list[list[Path | None]] = [[*sources, target]] if target else [[file] for file in files]
    longest = max(MAX_TOKENS, opened.recipe.data.max_length or 0)
    lines, tokens, total = 0, 0, 0.0
    for group in groups or [[None]]:
        for name, (*read, targets) in read_rows(group, [*sides, TARGET]):
            sources_read = [*zip(*read, strict=True)]
            scores = opened.score(sources_read, targets) if sides else opened.score(targets)
            for text, result in zip(targets, scores, strict=True):
                count = len(result.tokens)
                lines, tokens, total = lines + 1, tokens + count, total + result.total
                if count > longest:
                    shown = f"only the first {longest:,} tokens of `{text[:30]}...` are scored"
                    write_note(f"{name}: {shown}")
                yield {**summarise(result.total, count), "text": text}
    yield {**summarise(total, tokens), "lines": lines}


def side_files_error(run: Run) -> RunError:
    """Return the error of files of sides that do not fit a run's encoders."""
    path, sides = run.run_dir.path, run.recipe.sources
    if not sides:
        fix = f"write `seqcomposer score {path} lines.txt`"
        return RunError.of("this model has no source", fix, str(path))
    message = (
        f"texts in files of their own are a `--source` for each encoder, {', '.join(sides)},"
        " and a `--target`"
    )
    fix = f"write, for example, `{file_options(run.recipe)}`, and no other file"
    return RunError.of(message, fix, str(path))


def refuse_columns(file: Path) -> None:
    """Raise RunError for a file whose name says that its texts are in columns, and no lines."""
    if file.suffix in (PARQUET, *JSON):
        kind = "Parquet" if file.suffix == PARQUET else "JSON"
        fix = (
            "write its texts into a file of plain lines; minimal pairs are read with"
            " `--minimal-pairs`"
        )
        raise RunError.of(f"this file is {kind}, and lines of text are scored", fix, str(file))


def summarise(total: float, tokens: int) -> dict[str, float]:
    """Return the printed values of tokens with this total log-probability."""
    perplexity = math.exp(min(-total / max(1, tokens), 700.0))  # exp(710) is no float any more
    return {"log_probability": total, "tokens": tokens, "perplexity": perplexity}


def read_rows(
    group: Sequence[Path | None], sides: Sequence[str]
) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the columns of some lines at a time, with their file.

    They are in one file with tabs, or in a file for each side.

    None is stdin, whose lines are taken as they come. Raises RunError and DataError.
    """
    names, count = [str(file or STDIN) for file in group], 0
    with ExitStack() as files:
        for columns in read_columns(
            [open_input(file, files) for file in group], names, BATCH_LINES
        ):
            if len(group) == 1:
                lines = enumerate(columns[0], start=count + 1)
                rows = [split_line(line, sides, number, names[0]) for number, line in lines]
                columns = [[] for _ in sides]
                if rows:
                    columns = [list(column) for column in zip(*rows, strict=True)]
            yield names[0], columns
            count += len(columns[0])
    if not count:
        raise RunError.of("there is no line to score", "name a file with lines of text", names[0])


def minimal_pairs(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Compare the sentences of pairs: return the `accuracy` of all, and by each paradigm.

    A row has `sentence_good` and `sentence_bad`, as of BLiMP, and perhaps its `field`,
    `linguistics_term` and `UID`. Two that are equally probable, such as those that differ in
    unknown words alone, count as wrong. Raises RunError.
    """
    if run.recipe.sources:
        raise RunError.of(
            "minimal pairs are for language models, and this model has an encoder",
            "score translations",
        )
    texts = []
    for row in rows:
        texts += [row[GOOD], row[BAD]]
    totals = text_scores(run, texts)
    results: list[bool] = []
    by_paradigm: dict[str, dict[str, list[bool]]] = {}
    for row in rows:
        good, bad = totals[row[GOOD]], totals[row[BAD]]
        is_right = good > bad and not math.isclose(good, bad, rel_tol=TIE)
        results.append(is_right)
        for key in PARADIGMS:
            if key in row:
                by_value = by_paradigm.setdefault(key, {})
                by_value.setdefault(str(row[key]), []).append(is_right)
    scores: dict[str, object] = {**accuracy(results)}
    for key in PARADIGMS:
        if key in by_paradigm:
            scores[f"by_{key}"] = {value: accuracy(own) for value, own in by_paradigm[key].items()}
    return scores


def text_scores(run: Run, texts: Iterable[str]) -> dict[str, float]:
    """Return the log-probability of each text; texts with the same ids have the very same."""
    distinct = [*dict.fromkeys(texts)]
    ids = [tuple(row) for row in run.tokenizers.encode(TARGET, distinct)]
    text_of_ids = dict(zip(ids, distinct, strict=True))
    totals = {}
    for row, result in zip(text_of_ids, run.score([*text_of_ids.values()]), strict=True):
        totals[row] = result.total
    return {text: totals[row] for text, row in zip(distinct, ids, strict=True)}


def accuracy(results: Sequence[bool]) -> dict[str, float]:
    """Return the number of pairs, and the share that is right."""
    share = sum(results) / len(results) if results else math.nan
    return {"pairs": len(results), "accuracy": share}


def pair_fault(name: str, number: int, line: str) -> Fault:
    """Return the fault of a line that is no pair of sentences."""
    message = f"expected a JSON object with `{GOOD}` and `{BAD}`"
    fix = f'write `{{"{GOOD}": "...", "{BAD}": "..."}}`, as BLiMP has it'
    return Fault(name, number, 1, "pair", "", message, fix, line[:200])


def read_pairs(files: Sequence[Path]) -> list[dict[str, object]]:
    """Return the pairs of files of JSON lines, or of stdin.

    Raises DataError with every bad line.
    """
    pairs: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for file in files or (None,):
        number = 0
        for name, (chunk,) in read_rows([file], [TARGET]):
            for line in chunk:
                number += 1
                try:
                    row = json.loads(line)
                    pairs.append({**row, GOOD: str(row[GOOD]), BAD: str(row[BAD])})
                except (ValueError, KeyError, TypeError):
                    faults.append(pair_fault(name, number, line))
    if faults:
        raise DataError(faults)
    return pairs
