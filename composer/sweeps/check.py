"""`check` of a file: a recipe, the points of a sweep, or a fragment that recipes extend."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from composer.errors import ComposerError, Fault, RecipeError, count_faults
from composer.formatting import count_each, count_noun, format_bound
from composer.recipe.fragments import check_fragment, is_fragment
from composer.recipe.recipe import Recipe, load
from composer.recipe.yaml_reader import read
from composer.run_dir import recorded_data
from composer.sweeps.point_arguments import point_from_args, recipe_file, selects_point
from composer.sweeps.points import PointCost, list_points, num_unlisted, point_recipe
from composer.sweeps.progress import with_progress
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from composer.checks.planner import Plan
    from composer.training.dry_run import DataUse


class Checked(NamedTuple):
    """The result in words, the warnings, and the command that runs the file, "" for a fragment.

    notes: Sentences on data that are left out or unknown, as `train` prints them.
    """

    text: str
    warnings: Sequence[Fault]
    next_command: str = ""
    notes: Sequence[str] = ()


class CheckScope(NamedTuple):
    """Parts that a check leaves out: the limits of this machine, and data files."""

    any_machine: bool = False
    data: DataUse = "required"


EVERYTHING = CheckScope()


def check_file(
    reference: str | Path,
    overrides: Sequence[str] = (),
    data_dir: str | Path | None = None,
    scope: CheckScope = EVERYTHING,
    extended: Collection[str] = (),
) -> Checked:
    """Check a recipe, a run's recipe, a sweep or one point of it, or a fragment. Writes nothing.

    extended: Real paths of files that others extend, and that may be fragments. Raises
    ComposerError with every error.
    """
    file = recipe_file(reference)
    folder = recorded_data(file.parent) if data_dir is None else Path(data_dir)
    root = read(file, str(file))
    if is_fragment(file, root, extended):
        text = "no errors in YAML, keys and types of this fragment"
        if names := [f"`{name}`" for name in check_fragment(file, root)]:
            text += f"; recipes that extend it must set {', '.join(names)}"
        return Checked(text, ())
    if "sweep" not in root.value:
        return check_one(load(file, overrides, folder, root), scope)
    if selects_point(root, overrides):
        return check_one(point_from_args(file, overrides, folder)[0], scope)
    return check_points(read_sweep(file, overrides, folder), scope)


def check_one(recipe: Recipe, scope: CheckScope) -> Checked:
    """Check a recipe, its model and its data. Raises ComposerError."""
    from composer.model.adapters import describe_sizes
    from composer.training.dry_run import STAND_IN_SIZE, stand_in_sizes  # imports torch
    from composer.training.preflight import check_and_sample

    plan, sample = check_and_sample(recipe, *scope)
    read = sample.describe_beginnings("document" if recipe.reads_text else "line") if sample else ""
    text = f"{_count(plan.warnings, read)}; {_size(plan)}; {_budget(recipe)}"
    if scope.data == "none":
        if not recipe.data.generate:
            text += "; its data were not read"
        if stand_in_sizes(recipe):
            text += f", nor its tokenizer: a vocabulary counts {STAND_IN_SIZE:,} words"
    # notes on a sample that the tokenizer of all data may not need
    is_known = sample is not None and (sample.is_all or not recipe.tokenizer.is_trained)
    notes = [*sample.data.notes] if sample and is_known else []
    return Checked(text, plan.warnings, "train", [*notes, *describe_sizes(plan.adapters)])


def check_points(sweep: Sweep, scope: CheckScope) -> Checked:
    """Check every point of a sweep that no condition excludes, and each way of reading data.

    Raises ComposerError with the errors of all points.
    """
    points = list_points(sweep)
    trained: list[PointCost] = []
    faults: list[Fault] = []
    warnings: list[Fault] = []
    for point in points:
        if point.status == "trained":
            trained.append(point)
            warnings += point.warnings
        elif point.status == "impossible":
            faults += point.faults
    reading = _points_by_data(sweep, trained)
    data_warnings, data_faults = _check_data(sweep, reading, scope)
    warnings += data_warnings
    if faults := [*faults, *data_faults]:
        raise RecipeError(faults)
    statuses = count_each(sorted(point.status for point in points if point.status != "trained"))
    text = f"{_count(unique := sorted({*warnings}))}; {count_noun(len(trained), 'point')}"
    text += f", and {statuses}" if statuses else ""
    if more := num_unlisted(sweep, points):
        text += f"; these are a sample, the first of {len(points) + more:,} structures"
    if scope.data == "none" and any(not recipe.data.generate for recipe in reading):
        text += "; their data were not read"
    return Checked(text, unique, "sweep")


def _check_data(
    sweep: Sweep, recipes: Sequence[Recipe], scope: CheckScope
) -> tuple[list[Fault], list[Fault]]:
    """Return the warnings and the errors of recipes, and goals that the data leave out."""
    from composer.sweeps.measured_goals import unmeasured_goals  # imports torch

    warnings: list[Fault] = []
    faults: list[Fault] = []
    for recipe in with_progress(recipes, "ways of reading the data checked"):
        try:
            warnings += check_one(recipe, scope).warnings
        except ComposerError as error:
            faults += error.faults
    if recipes and scope.data != "none":
        faults += unmeasured_goals(sweep, recipes[0])
    return warnings, faults


def _points_by_data(sweep: Sweep, points: Sequence[PointCost]) -> list[Recipe]:
    """Return the recipe of the first point for each way of reading data."""
    recipes: dict[str, Recipe] = {}
    for point in points:
        recipe = point_recipe(sweep, point.point)
        training = recipe.canonical["training"]
        batches = [training[key] for key in ("window", "tokens_per_batch", "curriculum")]
        key = json.dumps([recipe.canonical["data"], recipe.sources, batches], sort_keys=True)
        recipes.setdefault(key, recipe)
    return list(recipes.values())


def _count(warnings: Sequence[Fault], read: str = "") -> str:
    return f"no errors{read}{f', {count_faults(warnings)}' if warnings else ''}"


def _size(plan: Plan) -> str:
    frozen = f", {plan.frozen:,} of them frozen" if plan.frozen else ""
    return f"{format_bound(f'{plan.parameters:,} parameters', plan.at_most)}{frozen}"


def _budget(recipe: Recipe) -> str:
    budgets = []
    for key, limit in recipe.training.limits.items():
        if limit:
            unit = key.removeprefix("max_")
            budgets.append(f"{limit:,.10g} {unit[:-1] if limit == 1 else unit}")
    text = f"trains for {' or '.join(budgets)}"
    if len(budgets) > 1:
        text += ", whichever ends first"
    if recipe.training.limits["max_minutes"]:
        text += " (processor time on a CPU)"
    return text
