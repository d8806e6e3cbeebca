"""Accuracy by length of generated tasks, several runs side by side: a Markdown table for each task,
and a chart.

    python -m benchmarks.accuracy RUN [RUN ...] [--lengths 200 400] [--lines 100] [--chart F.html]

A cell is the exact match and, in brackets where that is below 100 %, the token accuracy by
position; for outputs made of bits also the bits per answer with teacher forcing. Lengths are
counted as in the task's `test_lengths` (symbols, digits). Those of a run's own test are read from
its run.json; others are measured on LINES lines each and cached in accuracy.json beside it. Runs of
one recipe are listed together.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_write
from composer.data.tasks import SequenceTask
from composer.errors import ComposerError
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.runs.record import RunRecord

CACHE_FILE = "accuracy.json"
COLORS = ("#1c5fcf", "#c2410c", "#15803d", "#7c3aed", "#b45309", "#0e7490", "#be185d", "#4d5562")


class Accuracy(NamedTuple):
    """Accuracy at one length: number of lines, exact match, and token accuracy by position.

    truncated: A sentence if answers were truncated; "" for a run's own test, which does not record
    it.
    bits: Bits per answer, for outputs made of bits.
    """

    lines: int
    exact: float
    positional: float
    truncated: str = ""
    bits: float | None = None


class Row(NamedTuple):
    """A run: its task, the longest training length, and the accuracy at each length; None if it has
    not finished.
    """

    name: str
    recipe: str
    seed: int
    task: str
    longest: int
    lengths: tuple[int, ...]
    accuracies: Mapping[int, Accuracy] | None


def read_run(run: Path, more_lengths: Sequence[int] = (), lines: int = 100) -> Row:
    """Return a run's accuracies. Exit if there is no length to test."""
    folder = RunDir(run)
    record, recipe = folder.read(), load(folder.recipe)
    task = task_of(recipe)
    lengths = (*(task.test_lengths or ()), *more_lengths)
    if not lengths:
        raise SystemExit(f"the test of {run} has no `test_lengths`: name some with --lengths")
    accuracies = None
    if record.is_finished:
        recorded = recorded_accuracies(record, task)
        missing = [length for length in more_lengths if length not in recorded]
        accuracies = recorded | measure_lengths(folder, task.word, missing, lines)
    return Row(
        run_label(run), record.name, record.seed, task.word, task.max_length, lengths, accuracies
    )


def task_of(recipe: Recipe) -> SequenceTask:
    """Return the task of a recipe, one with `test_lengths`. Exit if the recipe generates none."""
    if isinstance(recipe.data.generate, SequenceTask):
        return recipe.data.generate
    raise SystemExit(f"{recipe.file} generates no task that has `test_lengths`")


def run_label(run: Path) -> str:
    """Return the folder's name; for one seed of several, with the name of the parent folder."""
    name = run.resolve().name
    return f"{run.resolve().parent.name}/{name}" if name.startswith("seed-") else name


# ------------------------------------------------------------------------------------------- what
# is right


def recorded_accuracies(record: RunRecord, task: SequenceTask) -> dict[int, Accuracy]:
    """Return the accuracies that a finished run recorded in its own test."""
    entries = [entry for entry in record.by_length.get("test", ()) if "exact_match" in entry]
    accuracies = {entry["words"]: to_accuracy(entry) for entry in entries}
    word_counts = {length: source_words(task, length) for length in task.test_lengths or ()}
    return {
        length: accuracies[count] for length, count in word_counts.items() if count in accuracies
    }


def source_words(task: SequenceTask, length: int) -> int:
    """Return the words of a source of this length: two numbers of k digits and their sign are 2 k +
    1.
    """
    return len(replace(task, test_lengths=(length,), test=1).generate("test").source[0].split())


def to_accuracy(scores: Mapping[str, Any], truncated: str = "") -> Accuracy:
    exact, positional = scores["exact_match"], scores["positional_accuracy"]
    return Accuracy(scores["lines"], exact, positional, truncated, scores.get("bits"))


def measure_lengths(
    folder: RunDir, task: str, lengths: Iterable[int], lines: int
) -> dict[int, Accuracy]:
    """Return the accuracies at more lengths, from the cache or measured and cached."""
    accuracies = {}
    for length in lengths:
        cache, key = read_cache(folder), f"{length}/{lines}"
        if key not in cache["measured"]:
            cache["measured"][key] = measure(folder.path, task, length, lines)._asdict()
            atomic_write(folder.path / CACHE_FILE, (json.dumps(cache, indent=2) + "\n").encode())
        accuracies[length] = Accuracy(**cache["measured"][key])
    return accuracies


def read_cache(folder: RunDir) -> dict[str, Any]:
    """Return the measurements cached since the run ended; none if it has been trained further."""
    ended, path = folder.read().ended_at, folder.path / CACHE_FILE
    cache = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return cache if cache.get("ended") == ended else {"ended": ended, "measured": {}}


def measure(run: Path, task: str, length: int, lines: int) -> Accuracy:
    from composer.evaluation.scores import evaluate

    print(f"{run_label(run)}: {lines} lines of length {length}", file=sys.stderr)
    prefix = f"data.generate.{task}"
    scores = evaluate(
        run, overrides=[f"{prefix}.test_lengths=[{length}]", f"{prefix}.test={lines}"]
    )
    return to_accuracy(scores["test/accuracy_by_length"][0], scores.get("test/truncated", ""))


# ------------------------------------------------------------------------------------------- tables


def group_by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the rows by task: recipes in order of appearance, each with its seeds in order."""
    recipes = list(dict.fromkeys(row.recipe for row in rows))
    ordered = sorted(rows, key=lambda row: (recipes.index(row.recipe), row.seed))
    return {
        task: [row for row in ordered if row.task == task]
        for task in dict.fromkeys(row.task for row in rows)
    }


def table(task: str, rows: Sequence[Row]) -> str:
    """Return a table with a line per run and a column per length."""
    lengths = sorted({length for row in rows for length in row.lengths})
    lines = [
        f"| {task} at length | "
        + " | ".join(column_title(length, rows) for length in lengths)
        + " |"
    ]
    lines.append("|---" * (len(lengths) + 1) + "|")
    lines += [
        f"| {row.name} | " + " | ".join(format_cell(row, length) for length in lengths) + " |"
        for row in rows
    ]
    return "\n".join([*lines, *truncation_notes(rows)])


def column_title(length: int, rows: Sequence[Row]) -> str:
    """Return a length, with the number of lines measured where that is known."""
    counts = sorted(
        {
            row.accuracies[length].lines
            for row in rows
            if row.accuracies and length in row.accuracies
        }
    )
    return (
        f"{length} ({' or '.join(f'{count:,}' for count in counts)} lines)"
        if counts
        else str(length)
    )


def format_cell(row: Row, length: int) -> str:
    if row.accuracies is None:
        return "unfinished"
    if length not in row.accuracies:
        return "not measured"
    accuracy = row.accuracies[length]
    text = format_percent(accuracy.exact)
    if accuracy.exact < 1:
        text += f" ({format_percent(accuracy.positional)})"
    if accuracy.bits is not None:
        text += (
            f", {accuracy.bits:.2g} bits" if accuracy.bits < 100 else f", {accuracy.bits:.0f} bits"
        )
    return text


def format_percent(share: float) -> str:
    """Round down, so that only exactly all is 100 % and only exactly none is 0 %."""
    return (
        f"{share:.0%}".replace("%", " %")
        if share in (0, 1)
        else f"{math.floor(1000 * share + 1e-9) / 10:.1f} %"
    )


def truncation_notes(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph for each cell with truncated answers."""
    cells = [
        (row.name, length, accuracy)
        for row in rows
        for length, accuracy in (row.accuracies or {}).items()
    ]
    return [
        f"\n{name} at {length}: {accuracy.truncated}."
        for name, length, accuracy in cells
        if accuracy.truncated
    ]


# ------------------------------------------------------------------------------------------- chart


def draw(tasks: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Write an HTML page: a chart for each task, a line for each run, a colour for each recipe."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=len(tasks), shared_yaxes=True, subplot_titles=list(tasks))
    for column, rows in enumerate(tasks.values(), start=1):
        add_task(figure, rows, column)
    figure.update_xaxes(type="log", title="length")
    figure.update_yaxes(range=(-3, 103), title="lines without any error, %", col=1)
    figure.write_html(path)


def add_task(figure: Any, rows: Sequence[Row], column: int) -> None:
    """Add the lines of one task, and the longest training length."""
    lengths = sorted({length for row in rows for length in row.lengths})
    figure.update_xaxes(tickvals=lengths, ticktext=[str(length) for length in lengths], col=column)
    recipes = list(dict.fromkeys(row.recipe for row in rows))
    step = min(0.04, 0.4 / len(rows))
    for number, row in enumerate(rows):
        points = sorted((row.accuracies or {}).items())
        kind = recipes.index(row.recipe)
        # lines of the same values are a little apart, so that each can be seen
        shift = 2 ** (step * (number - (len(rows) - 1) / 2))
        figure.add_scatter(
            x=[length * shift for length, _ in points],
            y=[100 * accuracy.exact for _, accuracy in points],
            line={"color": COLORS[kind % len(COLORS)]},
            marker={"symbol": kind % 10},
            name=legend_label(row.recipe, rows),
            legendgroup=f"{column} {row.recipe}",
            showlegend=row is next(other for other in rows if other.recipe == row.recipe),
            row=1,
            col=column,
        )
    # last, since Plotly draws no line across a chart that is still empty
    for longest in sorted({row.longest for row in rows}):
        figure.add_vline(x=longest, line={"dash": "dot", "color": "gray"}, col=column)
        # on a logarithmic axis Plotly wants the position of an annotation as a logarithm, that of a
        # line as it is
        text = f"trained up to {longest}"
        figure.add_annotation(
            x=math.log10(longest), y=-1, text=text, showarrow=False, row=1, col=column
        )


def legend_label(recipe: str, rows: Sequence[Row]) -> str:
    """Return a recipe with its number of runs, and how many of them have not finished."""
    runs = [row.accuracies for row in rows if row.recipe == recipe]
    unfinished = runs.count(None)
    if len(runs) == 1:
        return f"{recipe} (unfinished)" if unfinished else recipe
    return f"{recipe} ({len(runs)} seeds" + (
        f", {unfinished} of them unfinished)" if unfinished else ")"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=(),
        help="lengths to measure besides those of the tests",
    )
    parser.add_argument("--lines", type=int, default=100, help="test lines per length")
    parser.add_argument("--chart", type=Path, help="write the chart to this HTML file")
    options = parser.parse_args()
    try:
        tasks = group_by_task(
            [read_run(run, options.lengths, options.lines) for run in options.runs]
        )
    except ComposerError as error:
        raise SystemExit(str(error)) from error
    print("\n\n".join(table(task, rows) for task, rows in tasks.items()))
    if options.chart:
        draw(tasks, options.chart)


if __name__ == "__main__":
    main()
