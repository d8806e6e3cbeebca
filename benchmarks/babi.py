"""Test errors of the bAbI tasks: of every restart, and of the one that learned its training questions best.

    python benchmarks/babi.py FOLDER [FOLDER ...] [--data DIR] [--paper NAME]

Every finished run below the folders is told, recipe by recipe, in a Markdown table with a line for each task. Of each
task the run with the lowest error on its own training questions is chosen, of equal ones that with the lowest training
loss; the test decides nothing. Runs of several tasks at once are chosen as one. What has been measured is kept in
babi.json beside the run. The published mean errors are those of Sukhbaatar et al. 2015 (1,000 questions a task).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_write
from composer.errors import ComposerError
from composer.recipe.recipe import load
from composer.run_dir import RunDir

KEPT = "babi.json"
FAILED = 5.0
"""A task has failed where its error is larger than so many percent."""
TASKS = range(1, 21)

PUBLISHED = {
    "bag_of_words": 25.1,
    "position_encoding": 20.3,
    "linear_start": 16.3,
    "end_to_end": 13.9,
    "joint": 12.4,
    "layer_wise": 15.2,
    "memory_network": 6.7,
}
"""Mean errors over the twenty tasks in percent, by the recipe: trained on each task with a bag of words, with position
encoding (PE), with PE and linear start (LS), with PE, LS and random noise (RN); on all tasks at once with PE, LS and
RN, and so with layer-wise tying; and on each task a memory network that is told the supporting facts."""


class Run(NamedTuple):
    """A restart: its errors in percent on its training questions and on the test of each of its tasks.

    test is None where the run has not finished.
    """

    name: str
    recipe: str
    seed: int
    tasks: tuple[int, ...]
    train: float
    loss: float
    test: Mapping[int, float] | None


def runs_in(folders: Iterable[Path], data: Path | None = None) -> list[Run]:
    """Every run of bAbI tasks below the folders, in the order of their seeds."""
    records = sorted({path.resolve() for folder in folders for path in folder.rglob("run.json")})
    found = [run for path in records if (run := run_of(RunDir(path.parent), data))]
    return sorted(found, key=lambda each: (each.recipe, each.tasks, each.seed, each.name))


def run_of(folder: RunDir, data: Path | None) -> Run | None:
    """A run with its errors; None where it is not of bAbI tasks."""
    record, recipe = folder.read(), load(folder.recipe)
    told = recipe.dataset.get("babi")
    if not told:
        return None
    tasks = tuple(dict.fromkeys(told["tasks"]))
    begun = f"{folder.path.parent.name}/{folder.path.name}", record["name"], record.get("seed", 0), tasks
    if record["status"] != "finished":
        return Run(*begun, 100.0, float("inf"), None)
    kept = known(folder, record, data)
    return Run(*begun, kept["train"], kept["loss"], {task: kept["test"][str(task)] for task in tasks})


# ------------------------------------------------------------------------------------------- what is measured


def known(folder: RunDir, record: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """What was measured of the run since it ended, or is now and kept."""
    file = folder.path / KEPT
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not kept or kept.get("ended") != record.get("ended_at"):
        kept = {"ended": record.get("ended_at"), **measured(folder.path, data)}
        atomic_write(file, (json.dumps(kept, indent=2) + "\n").encode())
    return kept


def measured(path: Path, data: Path | None) -> dict[str, Any]:
    """The errors of a run, as `evaluate` finds them."""
    from composer.evaluation.evaluate import evaluate
    from composer.inference.run import open_run

    print(f"measuring {path}", file=sys.stderr)
    run = open_run(path)
    train = evaluate(run, "train", data)
    test = {}
    for task in dict.fromkeys(run.recipe.dataset["babi"]["tasks"]):
        scores = evaluate(open_run(path, [f"data.babi.tasks=[{task}]"]), "test", data)
        test[str(task)] = error(scores["test/exact_match"])
    return {"train": error(train["train/exact_match"]), "loss": train["train/loss"], "test": test}


def error(right: float) -> float:
    """In percent, what is wrong."""
    return round(100 * (1 - right), 6)


# ------------------------------------------------------------------------------------------- what is told


def chosen(runs: Sequence[Run]) -> Run | None:
    """The finished run that learned its training questions best."""
    return min((each for each in runs if each.test is not None), key=lambda each: (each.train, each.loss), default=None)


def table(runs: Sequence[Run], paper: str) -> str:
    """One line for each task of one recipe's runs, and what they come to."""
    tasks = sorted({task for each in runs for task in each.tasks})
    head = ["task", "test error, %", "training error, %", "test errors of all restarts, %"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    best: dict[int, float] = {}
    for task in tasks:
        there = [each for each in runs if task in each.tasks]
        found = chosen(there)
        if found is not None and found.test is not None:
            best[task] = found.test[task]
        lines.append("| " + " | ".join(cells(task, there, found)) + " |")
    return "\n".join([*lines, "", *sums(list(best.values()), paper)])


def cells(task: int, runs: Sequence[Run], best: Run | None) -> list[str]:
    all_of = ", ".join("half-run" if each.test is None else f"{each.test[task]:.1f}" for each in runs)
    test = f"{best.test[task]:.1f}" if best and best.test else "half-run"
    return [str(task), test, f"{best.train:.1f}" if best else "half-run", all_of]


def sums(errors: Sequence[float], paper: str) -> list[str]:
    """The mean over the tasks and how many failed, and what was published of all twenty."""
    if not errors:
        return []
    over = f"{failed(errors)} failed (above {FAILED:g} %)"
    return [
        f"- measured: mean error {mean(errors):.1f} % of {len(errors)} tasks, {over}",
        f"- published ({paper}): mean error {PUBLISHED[paper]} % of {len(TASKS)} tasks",
    ]


def paper_of(recipe: str) -> str:
    """Which published error stands below a recipe of this name: `babi-linear-start` is `linear_start`."""
    name = recipe.removeprefix("babi-").replace("-", "_")
    return name if name in PUBLISHED else "end_to_end"


def mean(errors: Sequence[float]) -> float:
    return sum(errors) / len(errors)


def failed(errors: Iterable[float]) -> int:
    return sum(each > FAILED for each in errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--data", type=Path, help="where the tasks' files are; without it, where the runs found them")
    parser.add_argument(
        "--paper", choices=list(PUBLISHED), help="the published error; without it, by the recipe's name"
    )
    told = parser.parse_args()
    try:
        runs = runs_in(told.folders, told.data)
    except ComposerError as error:
        raise SystemExit(str(error)) from error
    if not runs:
        raise SystemExit("no run of bAbI tasks is in these folders")
    for recipe in dict.fromkeys(each.recipe for each in runs):
        paper = told.paper or paper_of(recipe)
        print(f"{recipe}\n\n{table([each for each in runs if each.recipe == recipe], paper)}\n")


if __name__ == "__main__":
    main()
