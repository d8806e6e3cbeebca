"""`diff`: what to change in one recipe or run to get another, what that costs, and how the scores change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from composer.comparison.changes import Side, compare_costs, compare_fingerprints, data_changes, setting_changes
from composer.comparison.diff_text import Difference
from composer.comparison.model_changes import model_changes
from composer.comparison.tables import record_changes, run_tests
from composer.errors import ComposerError, Fault, RunError
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.sweeps.leaderboard import open_leaderboard
from composer.sweeps.search_space import point_from_args
from composer.sweeps.significance import find_run
from composer.sweeps.spec import is_sweep

Reference = str | Path | Recipe


def diff(
    a: Reference,
    b: Reference,
    data: str | Path | None = None,
    quick: bool = False,
    log: Callable[[str], None] | None = None,
) -> Difference:
    """Compare two recipes, recipe files, run folders, trials or points of sweeps.

    Args:
        data: Where data files are looked up first.
        quick: Skip the significance test, for which both runs decode the test part.
        log: Receives a line before what takes long.

    Raises:
        ComposerError: With the faults of both.
    """
    folder = None if data is None else Path(data)
    one, other = open_both(a, b, folder)
    costs = compare_costs(one, other)
    changes = [*setting_changes(one.recipe, other.recipe), *model_changes(one.recipe, other.recipe)]
    tested = "" if quick else run_tests(one, other, folder, log or (lambda _: None))
    agreement = compare_fingerprints(one, other, folder)
    changes += [*data_changes(agreement, changes), *record_changes(one, other)]
    return Difference(one, other, tuple(changes), agreement, costs, tested)


# ------------------------------------------------------------------------------------------- the two sides


def open_both(one: Reference, other: Reference, data: Path | None) -> tuple[Side, Side]:
    """Open both sides. Raises ComposerError with the faults of both."""
    sides: list[Side] = []
    faults: list[Fault] = []
    for reference in (one, other):
        try:
            sides.append(open_side(reference, data))
        except ComposerError as error:
            faults += error.faults
    if faults:
        raise ComposerError(faults)
    return sides[0], sides[1]


def open_side(reference: Reference, data: Path | None) -> Side:
    """Open a recipe, a recipe file, a run folder, a trial's folder, or `SWEEP#WHICH`. Raises ComposerError."""
    if isinstance(reference, Recipe):
        return Side(str(reference.file), reference)
    path = Path(reference)
    if path.is_dir():
        return _open_folder(path, data)
    sweep, mark, which = str(reference).rpartition("#")
    if mark and not path.exists() and Path(sweep).exists():
        return _open_trial(Path(sweep), which, data)
    if path.is_file() and is_sweep(path):
        fix = f"name one of its points, `{path}#AXIS=VALUE,...`, or one of its trials by rank, `{path}#1`"
        raise RunError.of("this is a sweep, many recipes in one file", fix, str(path))
    return Side(str(reference), load(path, (), data))


def _open_folder(path: Path, data: Path | None) -> Side:
    """Open a run, or a trial of a sweep that has not been trained. Raises ComposerError."""
    if (path / "run.json").exists():
        run = RunDir(path)
        return Side(str(path), load(run.recipe, (), data), run.read(), path)
    seeds = sorted(str(file.parent) for file in path.glob("seed-*/run.json"))
    if seeds:
        raise RunError.of("these are several runs of one recipe", f"name one of them, `{seeds[0]}`", str(path))
    if (path / "sweep.json").exists():
        raise RunError.of("this is a whole sweep", f"name one of its trials by its rank, `{path}#1`", str(path))
    if (path / "recipe.yaml").is_file():
        return Side(str(path), load(path / "recipe.yaml", (), data))
    fix = "name a recipe, or a folder that `seqcomposer train` has written"
    raise RunError.of("this is no run folder: it has no run.json", fix, str(path))


def _open_trial(sweep: Path, which: str, data: Path | None) -> Side:
    """Open a point of a sweep's file by `axis=value,...`, or a trial by rank or fingerprint. Raises ComposerError."""
    name = f"{sweep}#{which}"
    if "=" in which:
        return Side(name, point_from_args(sweep, which.split(","), data).recipe)
    run = RunDir(find_run(open_leaderboard(sweep), which))
    return Side(name, load(run.recipe, (), data), run.read(), run.path)
