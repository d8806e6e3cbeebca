"""Collect the scores of finished runs of this repository's recipes in docs/results, for the docs.

    python -m benchmarks.results FOLDER ...

Looks for run folders in and below each FOLDER and adds their scores to docs/results/NAME.json, a
file for each recipes/NAME.yaml, which is never edited by hand. A run belongs to a recipe if name
and model agree; apart from that only the settings in `MAY_DIFFER` may differ, and are the overrides
of its command. Of runs with the same command the latest counts.

A file has the fingerprints of the recipe that was trained, and of each run its command, commit and
machine (null if nothing recorded it: of runs before 2026-11-30 the commit is the one that added
their scores), seed, budget, sizes, scores and versions. Results of a recipe that has changed since
are kept until a new run of it is collected. If FINGERPRINT_VERSION changes, so must the files.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import composer
from composer.errors import ComposerError
from composer.recipe.canonical_form import TRAINING_WITHOUT_EFFECT
from composer.recipe.fingerprints import FINGERPRINT_VERSION, fingerprints
from composer.recipe.recipe import Recipe

ROOT = Path(__file__).parents[1]
MAY_DIFFER = (
    "training.seed",
    "training.max_steps",
    "training.max_epochs",
    "training.max_minutes",
    "data.babi.tasks",
    "decoding",
)
"""A run that differs only in these belongs to the recipe: longer training, another seed or another
task.
"""
VERSIONS = ("seqcomposer", "python", "torch", "pytorch-lightning", "tokenizers", "sacrebleu")
MACHINE = ("platform", "cpu", "instructions", "device", "gpus", "threads", "processes")
Record = dict[str, Any]


def list_recipes(root: Path = ROOT) -> Iterator[Path]:
    """Yield every recipe that can be run as it is."""
    for path in sorted((root / "recipes").rglob("*.yaml")):
        if not {"fragments", "sweeps"} & set(path.relative_to(root).parts):
            yield path


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a frozen section by path; lists without mappings, and the decoder,
    count as one value.
    """
    if isinstance(value, dict) and path != "decoding":
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def training_settings(recipe: Recipe) -> dict[str, Any]:
    """Return all settings that affect a run, by path, except the model."""
    sections = {key: recipe.canonical[key] for key in ("data", "training", "decoding")}
    without_effect = {f"training.{key}" for key in TRAINING_WITHOUT_EFFECT}
    return {key: value for key, value in flatten(sections) if key not in without_effect}


def differences(run: Recipe, recipe: Recipe) -> list[str] | None:
    """Return the settings that differ in a run, as `key=value`, or None if it is not a run of this
    recipe.
    """
    if run.fingerprints["model"] != recipe.fingerprints["model"]:
        return None
    ours, theirs = training_settings(run), training_settings(recipe)
    changed = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if not set(changed) <= set(MAY_DIFFER):
        return None
    return [f"{key}={format_value(ours.get(key))}" for key in changed]


def format_value(value: Any) -> str:
    """Return a value as a command-line override takes it."""
    if isinstance(value, dict):
        ((name, settings),) = value.items()
        inner = ", ".join(
            f"{key}: {format_value(item)}" for key, item in settings.items() if item is not None
        )
        return f"{{{name}: {{{inner}}}}}"
    return json.dumps(value)


def to_result(record: Record, run: Recipe, name: str, differs: Sequence[str]) -> Record:
    """Return the published part of a run: no paths of the machine."""
    machine, git = record.get("machine") or {}, record.get("git") or {}
    numbers = {key: record.get(key) for key in ("seed", "steps", "epochs", "minutes", "parameters")}
    return {
        "command": shlex.join(["seqcomposer", "train", name, *differs]),
        "commit": git.get("commit"),
        "machine": {key: machine[key] for key in MACHINE if machine.get(key)} or None,
        "fingerprints": fingerprints_of(run, record.get("fingerprint_parts") or {}),
        **numbers,
        "ended": record.get("ended_at"),
        "pairs": record["data"]["pairs"],
        "scores": record["scores"],
        "versions": {key: record["versions"][key] for key in VERSIONS if key in record["versions"]},
    }


def overrides(run: Mapping[str, Any]) -> list[str]:
    """Return the settings of a result that differ from its recipe."""
    return shlex.split(run["command"])[3:]


def fingerprints_of(run: Recipe, parts: Record) -> dict[str, str]:
    """Return the fingerprints of a run's recipe, by what training did then."""
    changes = parts.get("training_changes", ())
    return fingerprints(run.canonical, run.rules, changes=changes) | {
        "version": FINGERPRINT_VERSION
    }


def find_finished(folders: Sequence[Path]) -> Iterator[tuple[Record, Path]]:
    """Yield run.json and the recipe file of every finished run in and below some folders."""
    for file in sorted({file for folder in folders for file in folder.rglob("run.json")}):
        record = json.loads(file.read_text(encoding="utf-8"))
        if record.get("status") == "finished" and record.get("scores"):
            yield record, file.with_name("recipe.yaml")


def collect(runs: Iterable[tuple[Record, Path]], paths: Iterable[Path], root: Path) -> Record:
    """Return the results of the recipes that have runs, by path below `root`."""
    recipes = {path.relative_to(root).as_posix(): composer.load(path) for path in paths}
    results: Record = {}
    for record, file in runs:
        run = load_recipe(file)
        if run is None:
            continue
        for name, recipe in recipes.items():
            if run.name != recipe.name or (differs := differences(run, recipe)) is None:
                continue
            entry = results.setdefault(
                name, {"fingerprints": entry_fingerprints(recipe), "runs": []}
            )
            entry["runs"].append(to_result(record, run, name, differs))
    return results


def entry_fingerprints(recipe: Recipe) -> dict[str, str]:
    """Return the fingerprints by which results belong to a recipe."""
    return {**recipe.fingerprints, "version": FINGERPRINT_VERSION}


def is_current(recipe: Recipe, entry: Record) -> bool:
    """True if results are of the recipe as it is today."""
    return entry_fingerprints(recipe) == entry["fingerprints"]


def merge(old: Record | None, new: Record) -> Record:
    """Return new results and the old ones of the same recipe; the latest run of each command."""
    runs = new["runs"]
    if old is not None and old["fingerprints"] == new["fingerprints"]:
        runs = [*old["runs"], *runs]
    latest = {run["command"]: run for run in sorted(runs, key=lambda run: run["ended"])}
    return {**new, "runs": [latest[command] for command in sorted(latest)]}


def result_file(recipe: Path, root: Path = ROOT) -> Path:
    """Return the file of a recipe's results."""
    name = recipe.relative_to(root / "recipes").with_suffix(".json")
    return root / "docs/results" / name


def read_results(recipe: Path, root: Path = ROOT) -> Record | None:
    """Return the published results of a recipe, or None."""
    file = result_file(recipe, root)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def write_results(recipe: Path, entry: Record, root: Path = ROOT) -> None:
    """Write the results of a recipe: a line per run, for readable diffs."""
    runs = ",\n".join(json.dumps(run, ensure_ascii=False) for run in entry["runs"])
    text = f'{{"fingerprints": {json.dumps(entry["fingerprints"])}, "runs": [\n{runs}\n]}}\n'
    file = result_file(recipe, root)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def load_recipe(file: Path) -> Recipe | None:
    """Load a run's recipe; None if this version cannot read it."""
    try:
        return composer.load(file)
    except ComposerError as error:
        print(f"skipped: {error.render().splitlines()[0]}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    folders = parser.parse_args().folders
    add_results(folders, ROOT)


def add_results(folders: Sequence[Path], root: Path) -> None:
    """Add the finished runs below some folders to the published results."""
    for name, new in collect(find_finished(folders), list_recipes(root), root).items():
        recipe = root / name
        entry = merge(read_results(recipe, root), new)
        write_results(recipe, entry, root)
        print(f"{result_file(recipe, root)}: {len(entry['runs'])} runs")


if __name__ == "__main__":
    main()
