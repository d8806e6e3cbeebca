"""Test errors of the bAbI tasks: of every restart, and of the one that learned its training questions best.

    python benchmarks/babi.py FOLDER [FOLDER ...] [--data DIR] [--paper NAME]

Every finished run below the folders is told, recipe by recipe, in a Markdown table with a line for each task. Of each
task the run with the lowest error on its own training questions is chosen, of equal ones that with the lowest training
loss; the test decides nothing. Runs of several tasks at once are chosen as one. What has been measured is kept in
babi.json beside the run. The published errors are those of Sukhbaatar et al. 2015 (1,000 questions a task).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer.errors import ComposerError
from composer.recipe import load
from composer.training.run_folder import RunFolder
from composer.training.whole import write_whole

KEPT = "babi.json"
FAILED = 5.0
"""A task has failed where its error is larger than so many percent."""
TASKS = range(1, 21)

PUBLISHED: dict[str, Sequence[float]] = {
    "bag_of_words": (0.6, 17.6, 71, 32, 18.3, 8.7, 23.5, 11.4, 21.1, 22.8, 4.1, 0.3, 10.5, 1.3, 24.3, 52, 45.4, 48.1,
                     89.7, 0.1),
    "position_encoding": (0.1, 21.6, 64.2, 3.8, 14.1, 7.9, 21.6, 12.6, 23.3, 17.4, 4.3, 0.3, 9.9, 1.8, 0, 52.1, 50.1,
                          13.6, 87.4, 0),
    "linear_start": (0.2, 12.8, 58.8, 11.6, 15.7, 8.7, 20.3, 12.7, 17, 18.6, 0, 0.1, 0.3, 2, 0, 1.6, 49, 10.1, 85.6, 0),
    "end_to_end": (0, 8.3, 40.3, 2.8, 13.1, 7.6, 17.3, 10, 13.2, 15.1, 0.9, 0.2, 0.4, 1.7, 0, 1.3, 51, 11.1, 82.8, 0),
    "joint": (0, 11.4, 21.9, 13.4, 14.4, 2.8, 18.3, 9.3, 1.9, 6.5, 0.3, 0.1, 0.2, 6.9, 0, 2.7, 40.4, 9.4, 88, 0),
    "layer_wise": (0.1, 18.8, 31.7, 17.5, 12.9, 2, 10.1, 6.1, 1.5, 2.6, 3.3, 0, 0.5, 2, 1.8, 51, 42.6, 9.2, 90.6, 0.2),
    "memory_network": (0, 0, 0, 0, 2, 0, 15, 9, 0, 2, 0, 0, 0, 1, 0, 0, 35, 5, 64, 0),
}  # fmt: skip
"""Errors in percent, task by task: trained on each task with a bag of words, with position encoding (PE), with PE and
linear start (LS), with PE, LS and random noise (RN); on all tasks at once with PE, LS and RN, and so with layer-wise
tying; and on each task a memory network that is told the supporting facts."""


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
    found = [run for path in records if (run := run_of(RunFolder(path.parent), data))]
    return sorted(found, key=lambda each: (each.recipe, each.tasks, each.seed, each.name))


def run_of(folder: RunFolder, data: Path | None) -> Run | None:
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


def known(folder: RunFolder, record: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """What was measured of the run since it ended, or is now and kept."""
    file = folder.path / KEPT
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not kept or kept.get("ended") != record.get("ended"):
        kept = {"ended": record.get("ended"), **measured(folder.path, data)}
        write_whole(file, (json.dumps(kept, indent=2) + "\n").encode())
    return kept


def measured(path: Path, data: Path | None) -> dict[str, Any]:
    """The errors of a run, as `evaluate` finds them."""
    from composer.evaluate import evaluate
    from composer.runs import open_run

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
    published = dict(zip(TASKS, PUBLISHED[paper], strict=True))
    tasks = sorted({task for each in runs for task in each.tasks})
    head = ["task", "test error, %", "training error, %", "test errors of all restarts, %", f"published ({paper})"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    best: dict[int, float] = {}
    for task in tasks:
        there = [each for each in runs if task in each.tasks]
        found = chosen(there)
        if found is not None and found.test is not None:
            best[task] = found.test[task]
        lines.append("| " + " | ".join(cells(task, there, found, published.get(task))) + " |")
    return "\n".join([*lines, "", *sums(best, published)])


def cells(task: int, runs: Sequence[Run], best: Run | None, published: float | None) -> list[str]:
    all_of = ", ".join("half-run" if each.test is None else f"{each.test[task]:.1f}" for each in runs)
    test = f"{best.test[task]:.1f}" if best and best.test else "half-run"
    train = f"{best.train:.1f}" if best else "half-run"
    return [str(task), test, train, all_of, "" if published is None else f"{published:.1f}"]


def sums(best: Mapping[int, float], published: Mapping[int, float]) -> list[str]:
    """The mean over the tasks and how many failed, of the runs and of what was published of the same tasks."""
    same = [published[task] for task in best if task in published]
    told = [("measured", list(best.values())), ("published, same tasks", same)]
    return [f"- {name}: mean error {mean(errors):.1f} % of {len(errors)} tasks, {failed(errors)} failed (above "
            f"{FAILED:g} %)" for name, errors in told if errors]  # fmt: skip


def paper_of(recipe: str) -> str:
    """Which published errors stand beside a recipe of this name: `babi-linear-start` is `linear_start`."""
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
        "--paper", choices=list(PUBLISHED), help="the published errors; without it, by the recipe's name"
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
