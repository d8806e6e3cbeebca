"""What finished runs of this repository's recipes have scored, for the gallery of the documentation.

    python benchmarks/results.py FOLDER [FOLDER ...]

looks for run folders in and below each FOLDER and writes docs/results.json anew: nothing in it is typed by hand. A run
counts for a recipe where it has its name and, as both say today, its model; of the rest only what `MAY_DIFFER` names
may be otherwise, and is told beside the scores as it would be given on the command line. Of two runs that say the same
the later one counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import composer
from composer.errors import ComposerError
from composer.recipe.defaults import TRAINING_WITHOUT_EFFECT
from composer.recipe.recipe import Recipe

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
"""A run that differs in one of these is still the recipe's, trained longer, from another seed or on another task."""
VERSIONS = ("seqcomposer", "python", "torch", "pytorch-lightning", "tokenizers", "sacrebleu")
Data = dict[str, Any]


def recipes(root: Path = ROOT) -> Iterator[Path]:
    """Every recipe that can be run as it is."""
    for path in sorted((root / "recipes").rglob("*.yaml")):
        if not {"fragments", "sweeps"} & set(path.relative_to(root).parts):
            yield path


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a frozen section says, by path; a list that holds no mapping, and the decoder, count as one value."""
    if isinstance(value, dict) and path != "decoding":
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def said(recipe: Recipe) -> dict[str, Any]:
    """All that decides a run, by path, but for the model."""
    kept = {key: recipe.frozen[key] for key in ("data", "training", "decoding")}
    return {key: value for key, value in leaves(kept) if key.removeprefix("training.") not in TRAINING_WITHOUT_EFFECT}


def differences(run: Recipe, recipe: Recipe) -> list[str] | None:
    """What the run has otherwise, as `key=value`; None where it is not a run of this recipe."""
    if run.fingerprints["model"] != recipe.fingerprints["model"]:
        return None
    ours, theirs = said(run), said(recipe)
    changed = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if not set(changed) <= set(MAY_DIFFER):
        return None
    return [f"{key}={written(ours.get(key))}" for key in changed]


def written(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, dict):
        ((name, settings),) = value.items()
        inner = ", ".join(f"{key}: {written(each)}" for key, each in settings.items() if each is not None)
        return f"{{{name}: {{{inner}}}}}"
    return json.dumps(value)


def result(told: Data, run: Recipe, other: list[str]) -> Data:
    """What is kept of a run: nothing of the machine's paths."""
    counted = {key: told.get(key) for key in ("seed", "steps", "epochs", "minutes", "parameters")}
    counted["ended"] = told.get("ended_at")
    versions = {key: told["versions"][key] for key in VERSIONS if key in told["versions"]}
    return {
        "differs": other,
        "fingerprints": run.fingerprints,
        **counted,
        "pairs": told["data"]["pairs"],
        "scores": told["scores"],
        "versions": versions,
    }


def finished(folders: Sequence[Path]) -> Iterator[tuple[Data, Path]]:
    """What `run.json` says of every finished run in and below some folders, and its recipe's file."""
    for file in sorted({file for folder in folders for file in folder.rglob("run.json")}):
        told = json.loads(file.read_text(encoding="utf-8"))
        if told.get("status") == "finished" and told.get("scores"):
            yield told, file.with_name("recipe.yaml")


def collected(runs: Iterable[tuple[Data, Path]], paths: Iterable[Path], root: Path = ROOT) -> dict[str, Data]:
    """Each recipe that has runs, by its path below `root`: as it reads today, and its runs, by what differs.

    The recipe itself is kept, and no fingerprint alone: a fingerprint changes when the language learns a new setting.
    """
    known = [(path.relative_to(root).as_posix(), composer.load(path)) for path in paths]
    found: dict[str, dict[str, Data]] = {}
    for told, file in runs:
        run = opened(file)
        for name, recipe in known:
            if run is None or run.name != recipe.name or (other := differences(run, recipe)) is None:
                continue
            each, there = result(told, run, other), found.setdefault(name, {})
            there[" ".join(other)] = max(there.get(" ".join(other), each), each, key=lambda one: one["ended"])
    return {
        name: {"recipe": recipe.dump(), "runs": [found[name][place] for place in sorted(found[name])]}
        for name, recipe in known
        if name in found
    }


def text(results: dict[str, Data]) -> str:
    """The file: a line for each run, so that what changes can be seen."""
    parts = []
    for name, told in results.items():
        runs = ",\n".join(json.dumps(run, ensure_ascii=False) for run in told["runs"])
        recipe = json.dumps(told["recipe"], ensure_ascii=False)
        parts.append(f'{json.dumps(name)}: {{"recipe": {recipe}, "runs": [\n{runs}\n]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def still(path: Path, told: Data) -> bool:
    """Whether the recipe at a path says what it said when its runs were collected."""
    with TemporaryDirectory() as folder:
        before = Path(folder) / path.name
        before.write_text(told["recipe"], encoding="utf-8")
        return composer.load(before).fingerprints == composer.load(path).fingerprints


def opened(file: Path) -> Recipe | None:
    """A run's recipe, or None where it is of a version that cannot be read any more."""
    try:
        return composer.load(file)
    except ComposerError as error:
        print(f"left out: {error.render().splitlines()[0]}", file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=TARGET)
    asked = parser.parse_args()
    results = collected(finished(asked.folders), recipes())
    asked.output.write_text(text(results), encoding="utf-8")
    print(f"wrote {asked.output}: {sum(len(told['runs']) for told in results.values())} runs of {len(results)} recipes")


if __name__ == "__main__":
    main()
