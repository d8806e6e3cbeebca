"""What `check` finds in a file: a recipe, the points of a sweep, or a part of recipes that others
extend.
"""

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
from composer.sweeps.points import (
    PointCost,
    list_points,
    num_unlisted,
    point_from_args,
    point_recipe,
    recipe_file,
    selects_point,
)
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from composer.checks.planner import Plan
    from composer.training.dry_run import DataUse

MAX_DATA_CHECKS = 20
"""Points of a sweep whose data are checked, one for each way in which points read them."""


class Checked(NamedTuple):
    """What was found to be right, in words, the warnings, and the command that runs it, "" for a
    part of recipes.

    notes: What of the data is left out, or unknown, as `train` says it.
    """

    text: str
    warnings: Sequence[Fault]
    next_command: str = ""
    notes: Sequence[str] = ()


class CheckScope(NamedTuple):
    """What a check leaves out: what only this machine cannot do, and data files."""

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
    """Check a recipe, a run's recipe, a sweep or one point of it, or a part of recipes. Writes
    nothing.

    extended: Real paths of what other files extend; one of them that is no recipe by itself is a
    part. Raises ComposerError with every error.
    """
    file = recipe_file(reference)
    folder = recorded_data(file.parent) if data_dir is None else Path(data_dir)
    root = read(file, str(file))
    if is_fragment(file, root, extended):
        names = check_fragment(file, root)
        open_part = (
            f"; whoever extends it gives {', '.join(f'`{name}`' for name in names)} a value"
            if names
            else ""
        )
        return Checked(
            "no errors in its YAML, keys and types, which is all that a part of recipes"
            f" has{open_part}",
            (),
        )
    if "sweep" not in root.value:
        return check_one(load(file, overrides, folder, root), scope)
    if selects_point(root, overrides):
        return check_one(point_from_args(file, overrides, folder)[0], scope)
    return check_points(read_sweep(file, overrides, folder), scope)


def check_one(recipe: Recipe, scope: CheckScope) -> Checked:
    """Check a recipe, its model and its data. Raises ComposerError."""
    from composer.training.dry_run import STAND_IN_SIZE, stand_in_sizes  # imports torch
    from composer.training.preflight import check_and_sample

    plan, sample = check_and_sample(recipe, *scope)
    read = sample.describe_beginnings("document" if recipe.reads_text else "line") if sample else ""
    left_out = (
        "; its data were not read" if scope.data == "none" and not recipe.data.generate else ""
    )
    if scope.data == "none" and stand_in_sizes(recipe):
        left_out += f", nor its tokenizer: a vocabulary counts {STAND_IN_SIZE:,} words"
    text = f"{_count(plan.warnings, read)}; {_size(plan)}; {_budget(recipe)}{left_out}"
    # to the tokenizer of a sample more is unknown
    notes = (
        sample.data.notes if sample and (sample.is_all or not recipe.tokenizer.is_trained) else ()
    )
    return Checked(text, plan.warnings, "train", notes)


def check_points(sweep: Sweep, scope: CheckScope) -> Checked:
    """Check every point of a sweep that no condition excludes; of its data, each way in which
    points read them.

    Raises ComposerError with the errors of all points.
    """
    points = list_points(sweep)
    trained = [point for point in points if point.status == "trained"]
    faults = [fault for point in points if point.status == "impossible" for fault in point.faults]
    warnings = [fault for point in trained for fault in point.warnings]
    reading = _points_by_data(sweep, trained)
    for recipe in reading[:MAX_DATA_CHECKS]:
        try:
            warnings += check_one(recipe, scope).warnings
        except ComposerError as error:
            faults += error.faults
    if faults:
        raise RecipeError(faults)
    statuses = count_each(sorted(point.status for point in points if point.status != "trained"))
    text = f"{_count(unique := sorted({*warnings}))}; {count_noun(len(trained), 'point')}"
    text += f", and {statuses}" if statuses else ""
    if more := num_unlisted(sweep, points):
        text += f"; these are a sample, the first of {len(points) + more:,} structures"
    if scope.data == "none" and any(not recipe.data.generate for recipe in reading):
        text += "; their data were not read"
    elif len(reading) > MAX_DATA_CHECKS:
        text += (
            f"; the data were read as {MAX_DATA_CHECKS} of them do, a sample of {len(reading)} ways"
        )
    return Checked(text, unique, "sweep")


def _points_by_data(sweep: Sweep, points: Sequence[PointCost]) -> list[Recipe]:
    """Return the recipe of the first point for each way in which some points read their data."""
    recipes: dict[str, Recipe] = {}
    for point in points:
        recipe = point_recipe(sweep, point.point)
        batches = {
            key: recipe.canonical["training"][key]
            for key in ("window", "tokens_per_batch", "curriculum")
        }
        recipes.setdefault(
            json.dumps([recipe.canonical["data"], recipe.sources, batches], sort_keys=True), recipe
        )
    return list(recipes.values())


def _count(warnings: Sequence[Fault], read: str = "") -> str:
    return f"no errors{read}{f', {count_faults(warnings)}' if warnings else ''}"


def _size(plan: Plan) -> str:
    frozen = f", {plan.frozen:,} of them frozen" if plan.frozen else ""
    return f"{format_bound(f'{plan.parameters:,} parameters', plan.at_most)}{frozen}"


def _budget(recipe: Recipe) -> str:
    limits = {key.removeprefix("max_"): limit for key, limit in recipe.training.limits.items()}
    budgets = [
        f"{limit:,.10g} {unit[:-1] if limit == 1 else unit}"
        for unit, limit in limits.items()
        if limit
    ]
    text = (
        f"trains for {' or '.join(budgets)}{', whichever ends first' if len(budgets) > 1 else ''}"
    )
    return text + (" (processor time on a CPU)" if limits["minutes"] else "")
