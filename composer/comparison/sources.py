"""The two that are compared: a recipe, a run, a trial or a point of a sweep, by the word that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer.errors import ComposerError, Fault, RunError
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir

Named = str | Path | Recipe


@dataclass(frozen=True)
class Side:
    """One of the two. `record` is run.json of a run, empty of a recipe; `folder` where the run lies."""

    name: str
    recipe: Recipe
    record: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def is_run(self) -> bool:
        return self.folder is not None

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores of a run that has finished."""
        found = self.record.get("scores")
        return {} if not isinstance(found, dict) else {key: x for key, x in found.items() if isinstance(x, float)}


def both(one: Named, other: Named, data: Path | None) -> tuple[Side, Side]:
    """The two that words name. Raises ComposerError with the faults of both."""
    found: list[Side] = []
    faults: list[Fault] = []
    for each in (one, other):
        try:
            found.append(side(each, data))
        except ComposerError as error:
            faults += error.faults
    if faults:
        raise ComposerError(faults)
    return found[0], found[1]


def side(named: Named, data: Path | None) -> Side:
    """What is named: a recipe, a file, a run folder, a trial's folder, or `SWEEP#WHICH`. Raises ComposerError."""
    if isinstance(named, Recipe):
        return Side(str(named.file), named)
    path = Path(named)
    if path.is_dir():
        return of_folder(path, data)
    sweep, mark, which = str(named).rpartition("#")
    if mark and not path.exists() and Path(sweep).exists():
        return of_sweep(Path(sweep), which, data)
    from composer.sweeps.spec import is_sweep

    if path.is_file() and is_sweep(path):
        fix = f"name one of its points, `{path}#AXIS=VALUE,...`, or one of its trials by rank, `{path}#1`"
        raise RunError.of("this is a sweep, many recipes in one file", fix, str(path))
    return Side(str(named), load(path, (), data))


def of_folder(path: Path, data: Path | None) -> Side:
    """A run, or a trial of a sweep. Raises ComposerError."""
    if (path / "run.json").exists():
        folder = RunDir(path)
        return Side(str(path), load(folder.recipe, (), data), folder.read(), path)
    seeds = sorted(str(found.parent) for found in path.glob("seed-*/run.json"))
    if seeds:
        raise RunError.of("these are several runs of one recipe", f"name one of them, `{seeds[0]}`", str(path))
    if (path / "sweep.json").exists():
        raise RunError.of("this is a whole sweep", f"name one of its trials by its rank, `{path}#1`", str(path))
    if (path / "recipe.yaml").is_file():
        return Side(str(path), load(path / "recipe.yaml", (), data))
    fix = "name a recipe, or a folder that `seqcomposer train` has written"
    raise RunError.of("this is no run folder: it has no run.json", fix, str(path))


def of_sweep(sweep: Path, which: str, data: Path | None) -> Side:
    """A point of a sweep's file by `axis=value,...`, or a trial by rank or fingerprint. Raises ComposerError."""
    name = f"{sweep}#{which}"
    if "=" in which:
        from composer.sweeps.point import point_recipe

        return Side(name, point_recipe(sweep, which.split(","), data).recipe)
    from composer.sweeps.results import open_leaderboard
    from composer.sweeps.significance import run_of

    folder = RunDir(run_of(open_leaderboard(sweep), which))
    return Side(name, load(folder.recipe, (), data), folder.read(), folder.path)
