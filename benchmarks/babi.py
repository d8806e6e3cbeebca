"""bAbI test errors, of every restart and of the restart with the lowest training error.

    python -m benchmarks.babi FOLDER [FOLDER ...] [--data DIR] [--paper NAME]

Prints a Markdown table per recipe, with a line for each task, of all finished runs below the
folders. For each task the run with the lowest error on its own training questions is selected, of
equal ones that with the lowest training loss;
the test set is not used. A run of several tasks is selected for all of them. Measurements are
cached in babi.json beside the run. The published mean errors are those of Sukhbaatar et al. 2015
(1,000 questions per task).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_write
from composer.errors import ComposerError
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.runs.record import RunRecord

CACHE_FILE = "babi.json"
FAILED = 5.0
"""A task with a larger error, in percent, counts as failed."""
TASKS = range(1, 21)

PUBLISHED: Mapping[str, float | None] = {
    "bag_of_words": 25.1,
    "position_encoding": 20.3,
    "linear_start": 16.3,
    "end_to_end": 13.9,
    "joint": 12.4,
    "layer_wise": 15.2,
    "memory_network": 6.7,
    "dynamic_memory_network": None,
}
"""Mean errors over the twenty tasks in percent, by the recipe: trained on each task with a bag of
words, with position
encoding (PE), with PE and linear start (LS), with PE, LS and random noise (RN); on all tasks at
once with PE, LS and RN, the same with layer-wise tying; and on each task, a memory network and a
dynamic memory network, both supervised with supporting facts; None where the figure is not at
hand."""


class Run(NamedTuple):
    """A restart: its errors in percent on its training questions and on the test set of each of its
    tasks.

    test is None if the run has not finished.
    """

    name: str
    recipe: str
    seed: int
    tasks: tuple[int, ...]
    train: float
    loss: float
    test: Mapping[int, float] | None


def find_runs(folders: Iterable[Path], data: Path | None = None) -> list[Run]:
    """Return every bAbI run below the folders, sorted by recipe, tasks and seed."""
    records = sorted({path.resolve() for folder in folders for path in folder.rglob("run.json")})
    runs = [run for path in records if (run := read_run(RunDir(path.parent), data))]
    return sorted(runs, key=lambda run: (run.recipe, run.tasks, run.seed, run.name))


def read_run(folder: RunDir, data: Path | None) -> Run | None:
    """Return a run with its errors, or None if it is not of bAbI tasks."""
    record, recipe = folder.read(), load(folder.recipe)
    babi = recipe.data.babi
    if not babi:
        return None
    tasks = tuple(dict.fromkeys(babi.tasks))
    common = f"{folder.path.parent.name}/{folder.path.name}", record.name, record.seed, tasks
    if not record.is_finished:
        return Run(*common, 100.0, float("inf"), None)
    errors = read_or_measure(folder, record, data)
    return Run(
        *common,
        errors["train"],
        errors["loss"],
        {task: errors["test"][str(task)] for task in tasks},
    )


# -------------------------------------------------------------------------------------------
# measurement


def read_or_measure(folder: RunDir, record: RunRecord, data: Path | None) -> dict[str, Any]:
    """Return the measurements of a finished run, from the cache or measured now."""
    path = folder.path / CACHE_FILE
    cache: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not cache or cache.get("ended") != record.ended_at:
        cache = {"ended": record.ended_at, **measure(folder.path, data)}
        atomic_write(path, (json.dumps(cache, indent=2) + "\n").encode())
    return cache


def measure(path: Path, data: Path | None) -> dict[str, Any]:
    """Measure the errors of a run with `evaluate`."""
    from composer.evaluation.scores import evaluate
    from composer.inference.run import open_run

    print(f"measuring {path}", file=sys.stderr)
    run = open_run(path)
    train = evaluate(run, "train", data)
    test = {}
    for task in dict.fromkeys(run.recipe.data.babi.tasks):
        scores = evaluate(open_run(path, [f"data.babi.tasks=[{task}]"]), "test", data)
        test[str(task)] = error_percent(scores["test/exact_match"])
    return {
        "train": error_percent(train["train/exact_match"]),
        "loss": train["train/loss"],
        "test": test,
    }


def error_percent(right: float) -> float:
    """Return the error in percent."""
    return round(100 * (1 - right), 6)


# ------------------------------------------------------------------------------------------- tables


def select_run(runs: Sequence[Run]) -> Run | None:
    """Return the finished run with the lowest training error."""
    return min(
        (run for run in runs if run.test is not None),
        key=lambda run: (run.train, run.loss),
        default=None,
    )


def table(runs: Sequence[Run], paper: str) -> str:
    """Return a table of one recipe's runs with a line per task, and its summary."""
    tasks = sorted({task for run in runs for task in run.tasks})
    head = ["task", "test error, %", "training error, %", "test errors of all restarts, %"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    best: dict[int, float] = {}
    for task in tasks:
        restarts = [run for run in runs if task in run.tasks]
        selected = select_run(restarts)
        if selected is not None and selected.test is not None:
            best[task] = selected.test[task]
        lines.append("| " + " | ".join(row_cells(task, restarts, selected)) + " |")
    return "\n".join([*lines, "", *summary_lines(list(best.values()), paper)])


def row_cells(task: int, runs: Sequence[Run], best: Run | None) -> list[str]:
    all_restarts = ", ".join(
        "unfinished" if run.test is None else f"{run.test[task]:.1f}" for run in runs
    )
    test = f"{best.test[task]:.1f}" if best and best.test else "unfinished"
    return [str(task), test, f"{best.train:.1f}" if best else "unfinished", all_restarts]


def summary_lines(errors: Sequence[float], paper: str) -> list[str]:
    """Return the mean error and the number of failed tasks, measured and published."""
    if not errors:
        return []
    over = f"{sum(error > FAILED for error in errors)} failed (above {FAILED:g} %)"
    measured = (
        f"- measured: mean error {statistics.fmean(errors):.1f} % of {len(errors)} tasks, {over}"
    )
    published = f"- published ({paper}): mean error {PUBLISHED[paper]} % of {len(TASKS)} tasks"
    return [measured, *([published] if PUBLISHED[paper] else [])]


def published_name(recipe: str) -> str:
    """Return the published result for a recipe's name: `babi-linear-start` is `linear_start`."""
    name = recipe.removeprefix("babi-").replace("-", "_")
    return name if name in PUBLISHED else "end_to_end"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of the tasks' files; by default the one that each run used",
    )
    parser.add_argument(
        "--paper",
        choices=list(PUBLISHED),
        help="published result to compare with; by default by the recipe's name",
    )
    options = parser.parse_args()
    try:
        runs = find_runs(options.folders, options.data)
    except ComposerError as error:
        raise SystemExit(str(error)) from error
    if not runs:
        raise SystemExit("there is no bAbI run in these folders")
    for recipe in dict.fromkeys(run.recipe for run in runs):
        paper = options.paper or published_name(recipe)
        print(f"{recipe}\n\n{table([run for run in runs if run.recipe == recipe], paper)}\n")


if __name__ == "__main__":
    main()
