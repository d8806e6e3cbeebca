"""The leaderboard of a sweep that was run: by the folder that holds it, or by the sweep's file."""

from __future__ import annotations

from pathlib import Path

from composer.errors import RunError
from composer.recipe.node import to_data
from composer.recipe.recipe import default_name
from composer.recipe.yaml_reader import read
from composer.run_dir import RUNS
from composer.sweeps.axes import RANK
from composer.sweeps.leaderboard import Board, board
from composer.sweeps.search_space import Goal
from composer.sweeps.trial_dir import SweepFolder, read_record


def open_leaderboard(path: Path) -> Board:
    """The trials of the sweep in a folder, or of a file's sweep in runs/NAME. Raises RunError and RecipeError."""
    folder = SweepFolder(path if path.is_dir() else folder_of(path))
    if not folder.record.exists():
        fix = "name the folder that `seqcomposer sweep` has written: runs/NAME, or what `--run` said"
        raise RunError.of("no sweep has run here", fix, str(folder.path))
    # the sweep as it was run: what lies beside its file now may be another
    told = to_data(read(folder.sweep, str(folder.sweep)))
    goals = [Goal(metric, direction) for each in told.get("rank", ()) for metric, direction in each.items()]
    axes = told.get("axes", {})
    zipped = {name: axis["zip"] for name, axis in axes.items() if "zip" in axis}
    return board(str(read_record(folder)["name"]), folder.path, goals or RANK, list(axes), zipped)


def folder_of(file: Path) -> Path:
    """Where a sweep runs if nothing else is said. Raises RecipeError where the file cannot be read."""
    told = to_data(read(file, str(file)))
    return RUNS / str(told.get("name") or default_name(file))
