"""Accuracy by length of generated tasks, several runs side by side: a Markdown table for each task, and a chart.

    python benchmarks/accuracy.py RUN [RUN ...] [--lengths 200 400] [--lines 100] [--chart F.html]

A cell is the share of lines without any error, and behind it, where that is not all, the share of words in place; of
vectors of bits also what an answer costs in bits, the true answer so far being given. A length is what the task's
`test_lengths` count (symbols, digits). The lengths of a run's own test are in its run.json; others are asked now, each
of LINES lines, and kept in accuracy.json beside it. Runs of one recipe stand together.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_write
from composer.data.tasks import TASKS
from composer.errors import ComposerError
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir

KEPT = "accuracy.json"
COLORS = ("#1c5fcf", "#c2410c", "#15803d", "#7c3aed", "#b45309", "#0e7490", "#be185d", "#4d5562")


class Share(NamedTuple):
    """What is right at a length: of so many lines, the share without any error, and the share of words in place.

    cut: a sentence where answers were cut at their maximum length. What a run keeps of its own test has none.
    bits: what an answer costs where it is of vectors of bits.
    """

    lines: int
    exact: float
    placed: float
    cut: str = ""
    bits: float | None = None


class Row(NamedTuple):
    """A run: which task it was trained for, up to which length, and what is right at each; None where half-run."""

    name: str
    recipe: str
    seed: int
    task: str
    longest: int
    lengths: tuple[int, ...]
    shares: Mapping[int, Share] | None


def row(run: Path, further: Sequence[int] = (), lines: int = 100) -> Row:
    """What a run came to. Ends the program where there is no length to tell of."""
    folder = RunDir(run)
    record, recipe = folder.read(), load(folder.recipe)
    task, settings = task_of(recipe)
    lengths = (*(settings["test_lengths"] or ()), *further)
    if not lengths:
        raise SystemExit(f"the test of {run} has no `test_lengths`: ask for some with --lengths")
    shares = None
    if record["status"] == "finished":
        own = own_shares(record, task, settings)
        shares = own | asked(folder, task, [length for length in further if length not in own], lines)
    return Row(named(run), record["name"], record["seed"], task, settings["max_length"], lengths, shares)


def task_of(recipe: Recipe) -> tuple[str, Mapping[str, Any]]:
    """The word and the settings of a task that can be tested at lengths. Ends the program where there is none."""
    for task, settings in (recipe.dataset.get("generate") or {}).items():
        if "test_lengths" in settings:
            return task, settings
    raise SystemExit(f"{recipe.file} generates no task that has `test_lengths`")


def named(run: Path) -> str:
    """The folder's name; of one seed of several, also the name of the folder of all."""
    name = run.resolve().name
    return f"{run.resolve().parent.name}/{name}" if name.startswith("seed-") else name


# ------------------------------------------------------------------------------------------- what is right


def own_shares(record: Mapping[str, Any], task: str, settings: Mapping[str, Any]) -> dict[int, Share]:
    """What a finished run has kept of its own test."""
    kept = {each["tokens"]: share_of(each) for each in record["by_length"].get("test", ()) if "exact_match" in each}
    words = {length: words_of(task, settings, length) for length in settings["test_lengths"] or ()}
    return {length: kept[count] for length, count in words.items() if count in kept}


def words_of(task: str, settings: Mapping[str, Any], length: int) -> int:
    """How many words a source of this length has: two numbers of k digits and their sign are 2 k + 1."""
    return len(TASKS[task]("test", **{**settings, "test_lengths": [length], "test": 1}).source[0].split())


def share_of(told: Mapping[str, Any], cut: str = "") -> Share:
    return Share(told["lines"], told["exact_match"], told["positional_accuracy"], cut, told.get("bits"))


def asked(folder: RunDir, task: str, lengths: Iterable[int], lines: int) -> dict[int, Share]:
    """What is right at further lengths: kept from an earlier call of the same training, else measured and kept."""
    found = {}
    for length in lengths:
        kept, key = known(folder), f"{length}/{lines}"
        if key not in kept["asked"]:
            kept["asked"][key] = measured(folder.path, task, length, lines)._asdict()
            atomic_write(folder.path / KEPT, (json.dumps(kept, indent=2) + "\n").encode())
        found[length] = Share(**kept["asked"][key])
    return found


def known(folder: RunDir) -> dict[str, Any]:
    """What was asked of the run since it ended: with other weights all is asked anew."""
    ended, file = folder.read().get("ended_at"), folder.path / KEPT
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return kept if kept.get("ended") == ended else {"ended": ended, "asked": {}}


def measured(run: Path, task: str, length: int, lines: int) -> Share:
    from composer.evaluation.evaluate import evaluate

    print(f"{named(run)}: {lines} lines of length {length}", file=sys.stderr)
    place = f"data.generate.{task}"
    scores = evaluate(run, overrides=[f"{place}.test_lengths=[{length}]", f"{place}.test={lines}"])
    return share_of(scores["test/accuracy_by_length"][0], scores.get("test/truncated", ""))


# ------------------------------------------------------------------------------------------- tables


def together(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each task: recipes as they first come, each with its seeds in order."""
    recipes = list(dict.fromkeys(each.recipe for each in rows))
    ordered = sorted(rows, key=lambda each: (recipes.index(each.recipe), each.seed))
    return {task: [each for each in ordered if each.task == task] for task in dict.fromkeys(each.task for each in rows)}


def table(task: str, rows: Sequence[Row]) -> str:
    """One line for each run, one column for each length."""
    lengths = sorted({length for each in rows for length in each.lengths})
    lines = [f"| {task} at length | " + " | ".join(title(length, rows) for length in lengths) + " |"]
    lines.append("|---" * (len(lengths) + 1) + "|")
    lines += [f"| {each.name} | " + " | ".join(cell(each, length) for length in lengths) + " |" for each in rows]
    return "\n".join([*lines, *cuts(rows)])


def title(length: int, rows: Sequence[Row]) -> str:
    """A length, and how many lines its shares are of, where that is known."""
    counts = sorted({each.shares[length].lines for each in rows if each.shares and length in each.shares})
    return f"{length} ({' or '.join(f'{count:,}' for count in counts)} lines)" if counts else str(length)


def cell(found: Row, length: int) -> str:
    if found.shares is None:
        return "half-run"
    if length not in found.shares:
        return "not asked"
    share = found.shares[length]
    bits = "" if share.bits is None else f", {share.bits:.2g} bits" if share.bits < 100 else f", {share.bits:.0f} bits"
    return percent(share.exact) + ("" if share.exact == 1 else f" ({percent(share.placed)})") + bits


def percent(share: float) -> str:
    """Rounded down, so that 100 % and 0 % are told only of all and of nothing."""
    return f"{share:.0%}".replace("%", " %") if share in (0, 1) else f"{math.floor(1000 * share + 1e-9) / 10:.1f} %"


def cuts(rows: Sequence[Row]) -> list[str]:
    """A paragraph for each cell whose answers were cut."""
    told = [(each.name, length, share.cut) for each in rows for length, share in (each.shares or {}).items()]
    return [f"\n{name} at {length}: {cut}." for name, length, cut in told if cut]


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
    """Add the lines of one task, and how long the training pairs were."""
    lengths = sorted({length for row in rows for length in row.lengths})
    figure.update_xaxes(tickvals=lengths, ticktext=[str(length) for length in lengths], col=column)
    recipes = list(dict.fromkeys(row.recipe for row in rows))
    step = min(0.04, 0.4 / len(rows))
    for number, row in enumerate(rows):
        points = sorted((row.shares or {}).items())
        kind = recipes.index(row.recipe)
        # lines of the same values are a little apart, so that each can be seen
        shift = 2 ** (step * (number - (len(rows) - 1) / 2))
        figure.add_scatter(
            x=[length * shift for length, _ in points],
            y=[100 * share.exact for _, share in points],
            line={"color": COLORS[kind % len(COLORS)]},
            marker={"symbol": kind % 10},
            name=label(row.recipe, rows),
            legendgroup=f"{column} {row.recipe}",
            showlegend=row is next(other for other in rows if other.recipe == row.recipe),
            row=1,
            col=column,
        )
    # last, since Plotly draws no line across a chart that is still empty
    for longest in sorted({row.longest for row in rows}):
        figure.add_vline(x=longest, line={"dash": "dot", "color": "gray"}, col=column)
        # on a logarithmic axis Plotly wants the position of an annotation as a logarithm, that of a line as it is
        text = f"trained up to {longest}"
        figure.add_annotation(x=math.log10(longest), y=-1, text=text, showarrow=False, row=1, col=column)


def label(recipe: str, rows: Sequence[Row]) -> str:
    """A recipe, and how many runs its lines are of; the half-run ones have none."""
    runs = [each.shares for each in rows if each.recipe == recipe]
    half = runs.count(None)
    if len(runs) == 1:
        return f"{recipe} (half-run)" if half else recipe
    return f"{recipe} ({len(runs)} seeds" + (f", {half} of them half-run)" if half else ")")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--lengths", type=int, nargs="+", default=(), help="lengths beside those of the runs' tests")
    parser.add_argument("--lines", type=int, default=100, help="test lines of each of these lengths")
    parser.add_argument("--chart", type=Path, help="write the chart to this HTML file")
    told = parser.parse_args()
    try:
        tasks = together([row(run, told.lengths, told.lines) for run in told.runs])
    except ComposerError as error:
        raise SystemExit(str(error)) from error
    print("\n\n".join(table(task, rows) for task, rows in tasks.items()))
    if told.chart:
        draw(tasks, told.chart)


if __name__ == "__main__":
    main()
