"""`score`: how probable given lines are to a model, and which of two sentences it prefers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
"""What BLiMP says of a pair besides its sentences (Warstadt et al. 2020)."""
TIE = 1e-6
"""Relative difference up to which two log-probabilities are the same: sums of float32 are as
inexact.
"""


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
        path = opened.run_dir.path
        if not sides:
            raise RunError.of(
                "this model has no source", f"write `seqcomposer score {path} lines.txt`", str(path)
            )
        message = (
            f"texts in files of their own are a `--source` for each encoder, {', '.join(sides)},"
            " and a `--target`"
        )
        raise RunError.of(
            message,
            f"write, for example, `{file_options(opened.recipe)}`, and no other file",
            str(path),
        )
    for file in (*files, *sources, *filter(None, [target])):
        refuse_columns(file)
    groups: list[list[Path | None]] = (
        [[*sources, target]] if target else [[file] for file in files] or [[None]]
    )
    longest = max(MAX_TOKENS, opened.recipe.data.max_length or 0)
    lines, tokens, total = 0, 0, 0.0
    for place, columns in (row for group in groups for row in read_rows(group, [*sides, TARGET])):
        *read, targets = columns
        own = [*zip(*read, strict=True)]
        for text, result in zip(
            targets, opened.score(own, targets) if sides else opened.score(targets), strict=True
        ):
            lines, tokens, total = lines + 1, tokens + len(result.tokens), total + result.total
            if len(result.tokens) > longest:
                write_note(
                    f"{place}: only the first {longest:,} tokens of `{text[:30]}...` are scored"
                )
            yield {**summarise(result.total, len(result.tokens)), "text": text}
    yield {**summarise(total, tokens), "lines": lines}


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
                columns = [list(column) for column in zip(*rows, strict=True)] or [
                    [] for _ in sides
                ]
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
    texts = list(dict.fromkeys(row[key] for row in rows for key in (GOOD, BAD)))
    ids = [tuple(row) for row in run.tokenizers.encode(TARGET, texts)]
    # what has the same ids has the same score, to the last bit
    known = dict(zip(ids, texts, strict=True))
    totals = dict(
        zip(known, (result.total for result in run.score([*known.values()])), strict=True)
    )
    of_text = {text: totals[row] for text, row in zip(texts, ids, strict=True)}
    counts: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for row in rows:
        good, bad = of_text[row[GOOD]], of_text[row[BAD]]
        is_right = good > bad and not math.isclose(good, bad, rel_tol=TIE)
        for key in ("", *(key for key in PARADIGMS if key in row)):
            counts[key, str(row[key]) if key else ""].append(is_right)
    shares = {key: {"pairs": len(of), "accuracy": sum(of) / len(of)} for key, of in counts.items()}
    names = [key for key in PARADIGMS if any(of == key for of, _ in shares)]
    by_name = {
        f"by_{name}": {value: share for (of, value), share in shares.items() if of == name}
        for name in names
    }
    return {**shares.get(("", ""), {"pairs": 0, "accuracy": math.nan}), **by_name}


def read_pairs(files: Sequence[Path]) -> list[dict[str, object]]:
    """Return the pairs of files of JSON lines, or of stdin.

    Raises DataError with every bad line.
    """
    pairs: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for file in files or (None,):
        lines = [(name, line) for name, (chunk,) in read_rows([file], [TARGET]) for line in chunk]
        for number, (name, line) in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                pairs.append({**row, GOOD: str(row[GOOD]), BAD: str(row[BAD])})
            except (ValueError, KeyError, TypeError):
                message = f"this line is no JSON object with `{GOOD}` and `{BAD}`"
                fix = f'write `{{"{GOOD}": "...", "{BAD}": "..."}}`, as BLiMP has it'
                faults.append(Fault(name, number, 1, "pair", "", message, fix, line[:200]))
    if faults:
        raise DataError(faults)
    return pairs
