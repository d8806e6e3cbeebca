"""Collect the scores of finished runs of this repository's recipes, for the gallery of the
documentation.

    python -m benchmarks.results [FOLDER ...]

Looks for run folders in and below each FOLDER and adds their scores to docs/results.json, which is
never edited by hand; those of recipes that have changed since are removed. A run belongs to a
recipe if name and model agree; apart from that only the settings in `MAY_DIFFER` may differ, and
are listed with the scores as command-line overrides. Of runs with the same differences the latest
counts. Fingerprints of another version are computed anew from what is stored.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import composer
from composer.atomic_io import sha256_of_file
from composer.errors import ComposerError
from composer.recipe.canonical_form import TRAINING_WITHOUT_EFFECT
from composer.recipe.fingerprints import FINGERPRINT_VERSION, fingerprints
from composer.recipe.recipe import Recipe
from composer.run_dir import RunDir
from composer.runs.record import RunRecord

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs/results.json"
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


def to_result(record: Record, run: Recipe, differs: list[str]) -> Record:
    """Return the published part of a run: no paths of the machine."""
    numbers = {key: record.get(key) for key in ("seed", "steps", "epochs", "minutes", "parameters")}
    numbers["ended"] = record.get("ended_at")
    versions = {key: record["versions"][key] for key in VERSIONS if key in record["versions"]}
    return {
        "differs": differs,
        "fingerprints": fingerprints_of(run, record.get("fingerprint_parts") or {}),
        **numbers,
        "pairs": record["data"]["pairs"],
        "scores": record["scores"],
        "versions": versions,
    }


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


def collect(
    runs: Iterable[tuple[Record, Path]], paths: Iterable[Path], root: Path = ROOT
) -> dict[str, Record]:
    """Return the recipes that have runs, by path below `root`: the recipe as it reads today, and
    its runs.

    The whole recipe is stored, with all its defaults, so that later versions know what was trained.
    """
    loaded = [(path.relative_to(root).as_posix(), composer.load(path)) for path in paths]
    results: dict[str, dict[str, Record]] = {}
    for record, file in runs:
        run = load_recipe(file)
        for name, recipe in loaded:
            if (
                run is None
                or run.name != recipe.name
                or (differs := differences(run, recipe)) is None
            ):
                continue
            entry, runs_of_recipe = to_result(record, run, differs), results.setdefault(name, {})
            runs_of_recipe[" ".join(differs)] = max(
                runs_of_recipe.get(" ".join(differs), entry),
                entry,
                key=lambda candidate: candidate["ended"],
            )
    return {
        name: {
            "recipe": recipe.dump(),
            "canonical": recipe.canonical,
            "runs": [results[name][key] for key in sorted(results[name])],
        }
        for name, recipe in loaded
        if name in results
    }


def merge(
    old: Mapping[str, Record], new: Mapping[str, Record], root: Path = ROOT
) -> dict[str, Record]:
    """Return new results and those old ones whose recipe is the same today; of the same run, the
    new one.
    """
    known = {
        name: entry
        for name, entry in old.items()
        if (root / name).exists() and is_current(root / name, entry)
    }
    current = {name: refresh(entry) for name, entry in known.items()}
    merged = {}
    for name in sorted(current.keys() | new.keys()):
        entries = [results[name] for results in (current, new) if name in results]
        runs = {" ".join(run["differs"]): run for entry in entries for run in entry["runs"]}
        texts = {key: entries[-1][key] for key in ("recipe", "canonical") if key in entries[-1]}
        merged[name] = {**texts, "runs": [runs[key] for key in sorted(runs)]}
    return merged


def to_json(results: dict[str, Record]) -> str:
    """Return the content of the file: a line per run, for readable diffs."""
    parts = []
    for name, entry in results.items():
        runs = ",\n".join(json.dumps(run, ensure_ascii=False) for run in entry["runs"])
        texts = {key: value for key, value in entry.items() if key != "runs"}
        recipe = json.dumps(texts, ensure_ascii=False).removesuffix("}")
        parts.append(f'{json.dumps(name)}: {recipe}, "runs": [\n{runs}\n]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def is_current(path: Path, entry: Record) -> bool:
    """Return whether a recipe means the same as when its runs were collected, by the defaults of
    that time.
    """
    return load_entry(entry).fingerprints == composer.load(path).fingerprints


def load_entry(entry: Record, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of an entry as it was meant when its runs were collected, with settings
    laid over it.
    """
    with TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        run.recipe.write_text(entry["recipe"], encoding="utf-8")
        run.write(
            RunRecord(recipe_sha256=sha256_of_file(run.recipe), canonical=entry.get("canonical"))
        )
        return composer.load(run.recipe, overrides)


def refresh(entry: Record) -> Record:
    """Return an entry with the fingerprints of this version for runs that have those of another."""
    runs = []
    for run in entry["runs"]:
        if run["fingerprints"].get("version") != FINGERPRINT_VERSION:
            run = {**run, "fingerprints": fingerprints_of(load_entry(entry, run["differs"]), {})}
        runs.append(run)
    return {**entry, "runs": runs}


def load_recipe(file: Path) -> Recipe | None:
    """Load a run's recipe; None if this version cannot read it."""
    try:
        return composer.load(file)
    except ComposerError as error:
        print(f"skipped: {error.render().splitlines()[0]}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    old = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
    results = merge(old, collect(find_finished(options.folders), list_recipes()))
    options.output.write_text(to_json(results), encoding="utf-8")
    count = sum(len(entry["runs"]) for entry in results.values())
    print(f"wrote {options.output}: {count} runs of {len(results)} recipes")


if __name__ == "__main__":
    main()
