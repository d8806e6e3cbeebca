"""Points of a sweep: grid and random points, recipes, costs, dry run; `axis=value` arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from composer.errors import DataError, Fault, Mark, RecipeError, error_at, fault_at
from composer.formatting import align_columns, count_each, count_noun, format_bound, si
from composer.recipe import schema_generator
from composer.recipe.fingerprints import fingerprints
from composer.recipe.own_blocks import refuse_own_blocks
from composer.recipe.recipe import Recipe, from_node, load
from composer.recipe.yaml_reader import COMMAND_LINE, Node, parse_value, read
from composer.run_dir import RUNS, RunDir, find_run
from composer.suggest import did_you_mean
from composer.sweeps.conditions import holds
from composer.sweeps.progress import with_progress
from composer.sweeps.spec import read_sweep
from composer.sweeps.substitution import apply_point
from composer.sweeps.sweep import (
    COSTS,
    Axis,
    Point,
    Sweep,
    Value,
    format_value,
    is_active,
    pruning_warnings,
)
from composer.sweeps.value_checks import default_warnings

MAX_STRUCTURES = 100
"""Structures of a TPE search that a dry run lists; its points are not known before it runs."""


def grid_points(sweep: Sweep) -> list[Point]:
    """Return every distinct point of finite axes, the first axis slowest."""
    return _distinct(sweep.structures())


def random_points(sweep: Sweep) -> list[Point]:
    """Return the distinct points of a random search, at most as many as its trials."""
    from composer.sweeps.study import random_draws  # Optuna takes a while to import

    trials = sweep.search.trials or 0
    # fifty draws for each trial: after them there are no more distinct points
    return _distinct(islice(random_draws(sweep), 50 * trials), trials)


def _distinct(points: Iterable[Point], limit: int | None = None) -> list[Point]:
    distinct: dict[str, Point] = {}
    for point in points:
        distinct.setdefault(json.dumps(point), point)
        if len(distinct) == limit:
            break
    return list(distinct.values())


def point_recipe(sweep: Sweep, point: Mapping[str, Value]) -> Recipe:
    """Return the recipe of a point, given the values of its axes. Raises RecipeError.

    With `match` it has the size of all points, for which models are planned.
    """
    return sized_recipe(sweep, point, matched_size(sweep, point))


def matched_size(sweep: Sweep, point: Mapping[str, Value]) -> int | None:
    """Return the value that `match` chooses at a point, None without it. Raises RecipeError."""
    if sweep.match is None:
        return None
    values, key = sweep.match.values, json.dumps(sweep.complete(point))
    if key not in values:
        planner = _planner(sweep)

        def count(size: int) -> int:
            parameters: int = planner.plan(sized_recipe(sweep, point, size))["parameters"]
            return parameters

        values[key] = sweep.match.choose(count)
    return values[key]


@lru_cache(maxsize=8)
def _planner(sweep: Sweep) -> CostPlanner:
    """Return the planner of the sizes of a sweep's points."""
    return CostPlanner()


def sized_recipe(sweep: Sweep, point: Mapping[str, Value], size: int | None) -> Recipe:
    """Return the recipe of a point whose `match.by` is `size`. Raises RecipeError."""
    root = apply_point(sweep, sweep.complete(point), size)
    # data files are looked up where the base's are
    recipe = from_node(sweep.base, root, schema_generator.load(), sweep.data_dir, sweep.base_root)
    refuse_own_blocks(recipe, "each trial of a sweep is a process of its own")
    name = {"name": f"{sweep.name[:80]}-{point_fingerprint(recipe)}"}
    return replace(
        recipe,
        explicit={"recipe": 1} | name | recipe.explicit | name,
        canonical=recipe.canonical | name,
    )


def probe_recipe(sweep: Sweep) -> Recipe | None:
    """Return the recipe of any possible point; None if both probe points are impossible."""
    for point in sweep.probe_points():
        with suppress(RecipeError):
            return point_recipe(sweep, point)
    return None


def point_fingerprint(recipe: Recipe) -> str:
    """Return the short name of a point: the fingerprint of its recipe without the seed.

    Changes of training between versions are not in it: the sweep's record has them.
    """
    training = {key: value for key, value in recipe.canonical["training"].items() if key != "seed"}
    unseeded = {**recipe.canonical, "training": training}
    return fingerprints(unseeded, recipe.rules, changes=())["run"][:12]


@dataclass(frozen=True)
class PointCost:
    """A point and its costs.

    `fingerprint` is "" if the recipe cannot be read. `at_most`: the costs are upper bounds, since
    the size of a vocabulary is not known yet. `faults` make training impossible. `condition` of
    `where` excludes the point. `same_as` is an earlier point with the same fingerprint. `size` is
    the value that `match` has chosen.
    """

    point: Point
    fingerprint: str = ""
    parameters: int = 0
    flops: int = 0
    state_bytes: int = 0
    at_most: bool = False
    faults: list[Fault] = field(default_factory=list)
    warnings: Sequence[Fault] = ()
    condition: str = ""
    same_as: int | None = None
    size: int | None = None

    @property
    def status(self) -> Literal["excluded", "impossible", "duplicate", "trained"]:
        """`trained`, or the reason why not; a duplicate is trained as the earlier point."""
        if self.condition:
            return "excluded"
        if self.faults:
            return "impossible"
        return "trained" if self.same_as is None else "duplicate"

    @property
    def exclusion(self) -> str:
        """The condition that excludes it, with its costs if the condition depends on them."""
        if not self.parameters:
            return f"`{self.condition}`"
        costs = f"{self.parameters:,} parameters, {self.flops:,} FLOPs"
        costs += f", {self.state_bytes:,} bytes of state"
        return f"`{self.condition}`: it has {format_bound(costs, self.at_most)}"


class CostPlanner:
    """Plans the models of a sweep's points, each once if only seed and optimizer differ.

    If the data are on this machine, each tokenizer is trained once, in memory, so that costs are
    those of the model that will be trained. Otherwise they are upper bounds.
    """

    def __init__(self) -> None:
        self.costs: dict[str, dict[str, Any]] = {}
        self.vocabularies: dict[str, dict[str, int] | None] = {}

    def plan(self, recipe: Recipe) -> dict[str, Any]:
        """Return COSTS, `at_most` and `warnings` of a recipe's plan.

        Imports torch. Raises RecipeError with every fault.
        """
        training = dict(recipe.canonical["training"])
        for key in ("seed", "optimizer"):
            training.pop(key, None)
        key = json.dumps({**recipe.canonical, "name": "", "training": training}, sort_keys=True)
        if key not in self.costs:
            plan = recipe.plan(self.trained_vocabularies(recipe))
            names = (*COSTS, "at_most", "warnings")
            self.costs[key] = {name: getattr(plan, name) for name in names}
        return self.costs[key]

    def trained_vocabularies(self, recipe: Recipe) -> dict[str, int] | None:
        """Return the sizes of a recipe's vocabularies, or None without its training data."""
        from composer.data.pairs import side_names
        from composer.data.sources import DataSource, find_hub_folder
        from composer.data.tokenizer_training import train_source_tokenizers

        settings = dict(recipe.canonical["data"])
        settings.pop("max_length", None)
        folders, sides = recipe.folders(), side_names(recipe)
        key = json.dumps([settings, sides], sort_keys=True)
        if key not in self.vocabularies:
            self.vocabularies[key] = None
            if not recipe.data.hub or find_hub_folder(recipe, folders):
                with suppress(DataError):  # which a training reports
                    tokenizers = train_source_tokenizers(DataSource(recipe, folders))
                    self.vocabularies[key] = tokenizers.sizes
        return self.vocabularies[key]


def cost_point(sweep: Sweep, point: Point, planner: CostPlanner | None = None) -> PointCost:
    """Return a point with the costs of its model. Imports torch."""
    from composer.checks import budget

    cost = PointCost(dict(point), condition=violated_condition(sweep, point))
    try:
        recipe = point_recipe(sweep, point)
        size = matched_size(sweep, point)
        cost = replace(cost, fingerprint=point_fingerprint(recipe), size=size)
        if cost.condition:
            return cost
        costs = dict((planner or CostPlanner()).plan(recipe))
        costs["warnings"] = [
            *costs["warnings"],
            *budget.warnings(recipe, None),
            *pruning_warnings(sweep, recipe.training),
            *default_warnings(sweep),
        ]
    except RecipeError as error:
        return replace(cost, faults=error.faults)
    return replace(cost, **costs, condition=violated_condition(sweep, point, costs))


def violated_condition(sweep: Sweep, point: Point, costs: Mapping[str, Any] | None = None) -> str:
    """Return the first condition of `where` that a point violates, or "".

    Without `costs`, conditions that name a cost are skipped.
    """
    for condition in sweep.where:
        if costs is None and condition.names & set(COSTS):
            continue
        if not holds(condition, {**(costs or {}), **point}):
            return condition.text
    return ""


def list_points(sweep: Sweep) -> list[PointCost]:
    """Return every point with its costs; of TPE, the first structures among which it chooses.

    Imports torch. Of points with the same fingerprint only the first is trained. Raises RecipeError
    if `where` excludes all of them.
    """
    if sweep.search.kind == "tpe":
        points = _distinct(sweep.structures(), MAX_STRUCTURES)
    else:
        points = grid_points(sweep) if sweep.search.kind == "grid" else random_points(sweep)
    planner = CostPlanner()
    first: dict[str, int] = {}
    costs = []
    for number, point in enumerate(with_progress(points, "planned points"), start=1):
        cost = cost_point(sweep, point, planner)
        if cost.status == "trained" and first.setdefault(cost.fingerprint, number) != number:
            cost = replace(cost, same_as=first[cost.fingerprint])
        costs.append(cost)
    if sweep.search.kind == "tpe":
        # of a range TPE has other numbers than those listed
        if all(axis.labels is not None for axis in sweep.axes):
            _check_where(sweep, costs)
    else:
        _check_where(sweep, costs)
        _check_seeds_where(sweep, costs)
    return costs


def _check_where(sweep: Sweep, costs: Sequence[PointCost]) -> None:
    """Raise RecipeError if `where` excludes all points."""
    if not costs or not all(cost.condition for cost in costs):
        return
    texts = " and ".join(dict.fromkeys(f"`{cost.condition}`" for cost in costs))
    message, at_most = f"`where` excludes all {len(costs)} points, by {texts}", False
    sizes = [(cost.parameters, cost.at_most) for cost in costs if cost.parameters]
    if sizes:
        size, at_most = min(sizes)
        message += f"; the smallest has {format_bound(f'{size:,} parameters', at_most)}"
    raise _where_error(sweep, message, "write a weaker condition", at_most)


def _check_seeds_where(sweep: Sweep, costs: Sequence[PointCost]) -> None:
    """Raise RecipeError if `seeds_where` holds at none of the points."""
    trained = [cost for cost in costs if cost.status == "trained"]
    if sweep.seeds_where and trained and not _num_with_all_seeds(sweep, trained):
        mark = sweep.root.value["seeds_where"].mark
        message = f"it holds at none of the {len(trained)} points"
        hint = "write a weaker condition, or remove it"
        raise error_at(mark, "seeds", "seeds_where", message, hint)


def _num_with_all_seeds(sweep: Sweep, trained: Sequence[PointCost]) -> int:
    return sum(sweep.seeds_of(cost) == sweep.seeds for cost in trained)


def _where_error(sweep: Sweep, message: str, hint: str, at_most: bool) -> RecipeError:
    if at_most:
        hint += ", or name the folder of the data, `--data DIR`: costs then use the tokenizer's own"
        hint += " size, not its upper bound"
    return error_at(sweep.root.value["where"].mark, "where", "where", message, hint)


def num_unlisted(sweep: Sweep, points: Sequence[PointCost]) -> int:
    """Return the number of structures of a TPE search that `list_points` has left out."""
    is_cut = sweep.search.kind == "tpe" and len(points) == MAX_STRUCTURES
    return sweep.num_structures - MAX_STRUCTURES if is_cut else 0


def dry_run_json(sweep: Sweep, points: Sequence[PointCost]) -> dict[str, object]:
    """Return the points of a dry run as plain data."""
    keys = ("point", "size", "fingerprint", "status", "same_as", *COSTS, "at_most", "condition")
    rows = []
    for number, point in enumerate(points, start=1):
        row: dict[str, object] = {"number": number}
        row |= {key: getattr(point, key) for key in keys}
        row["seeds"] = [*sweep.seeds_of(point)] if point.status == "trained" else []
        row["errors"] = [fault.as_dict() for fault in point.faults]
        row["warnings"] = [fault.as_dict() for fault in point.warnings]
        rows.append(row)
    return {
        "name": sweep.name,
        "search": sweep.search.kind,
        "trials": sweep.search.trials,
        "seeds": list(sweep.seeds),
        "known": sweep.search.kind != "tpe",
        "points": rows,
    }


def dry_run_text(sweep: Sweep, points: Sequence[PointCost]) -> str:
    """Return a table of the points, their faults and warnings, and the number to be trained."""
    names = [axis.name for axis in sweep.axes]
    sizes = [] if sweep.match is None else [sweep.match.label]
    rows = [["point", *names, *sizes, "parameters", "FLOPs", "state bytes", ""]]
    numbers: dict[tuple[str, str], list[str]] = {}
    for number, point in enumerate(points, start=1):
        costs = ["", "", ""]
        if point.parameters:
            costs = [f"{point.parameters:,}", si(point.flops), f"{point.state_bytes:,}"]
            costs = [format_bound(cost, point.at_most) for cost in costs]
        values = [_format_axis(axis, point.point, sweep.search.kind) for axis in sweep.axes]
        if sizes:
            values.append("-" if point.size is None else f"{point.size:,}")
        rows.append([str(number), *values, *costs, _point_note(point)])
        faults = point.faults or (point.warnings if point.status == "trained" else ())
        if faults:
            text = RecipeError(faults).render().rpartition("\n")[0]
            numbers.setdefault((point.status, text), []).append(str(number))
    are_texts = [False, *(True for _ in names), *(False for _ in sizes), False, False, False, True]
    lines = [*align_columns(rows, are_texts), ""]
    for (status, text), same in numbers.items():
        lines += [f"{status}, {'point' if len(same) == 1 else 'points'} {', '.join(same)}:"]
        lines += [text, ""]
    return "\n".join([*lines, _summary(sweep, points)])


def _point_note(point: PointCost) -> str:
    """Return why a point is not trained, "" if it is."""
    if point.status == "excluded":
        return f"excluded by `{point.condition}`"
    if point.status == "duplicate":
        return f"the same as {point.same_as}, trained once"
    return f"impossible: {point.faults[0].message}" if point.faults else ""


def _format_axis(axis: Axis, point: Point, search: str) -> str:
    if axis.name not in point:
        return "-"
    if search == "tpe" and axis.labels is None and not axis.integer:
        return f"{axis.low:g} to {axis.high:g}"
    return format_value(point[axis.name])


def _summary(sweep: Sweep, points: Sequence[PointCost]) -> str:
    trained = [point for point in points if point.status == "trained"]
    seeds = "" if len(sweep.seeds) == 1 else f", each with {len(sweep.seeds)} seeds"
    if sweep.seeds_where and sweep.search.kind == "tpe":
        seeds = f", with {len(sweep.seeds)} seeds where `seeds_where` holds, the others with one"
    elif sweep.seeds_where:
        with_all = _num_with_all_seeds(sweep, trained)
        seeds = f", {with_all} of them with {len(sweep.seeds)} seeds, the others with one"
    others = count_each(sorted(point.status for point in points if point.status != "trained"))
    others = f"; {others}" if others else ""
    if sweep.search.kind != "tpe":
        return f"{count_noun(len(trained), 'point')} to train{seeds}{others}"
    more = " or more" if num_unlisted(sweep, points) else ""
    chosen = count_noun(sweep.search.trials or 0, "point")
    return f"tpe chooses {chosen} among {len(trained)}{more} structures{others}{seeds}"


def load_recipe(
    reference: str | os.PathLike[str], overrides: Sequence[str] = (), data: str | Path | None = None
) -> Recipe:
    """Return the recipe of a file, a run (folder or `SWEEP#RANK`) or a point of a sweep's file.

    Args:
        overrides: `key=value` settings and, of a sweep's file, `axis=value` for each axis.
        data: The folder in which data files are looked up first.

    Raises:
        RecipeError: With every fault.
        RunError: If a folder is not a run.
    """
    file, folder = recipe_file(reference), None if data is None else Path(data)
    root = read(file, str(file))
    if selects_point(root, overrides):
        return point_from_args(file, overrides, folder)[0]
    return load(file, overrides, folder, root)


def selects_point(root: Node, arguments: Sequence[str]) -> bool:
    """True if one of the arguments gives an axis of a sweep's file a value."""
    axes = root.value.get("axes") if "sweep" in root.value else None
    if axes is None or not isinstance(axes.value, dict):
        return False
    return any(_key(argument) in axes.value for argument in arguments)


def recipe_file(reference: str | os.PathLike[str]) -> Path:
    """Return the file of a recipe or of a run's recipe. Raises RunError if a folder is no run."""
    path = find_run(reference)
    if not path.is_dir():
        return path
    RunDir(path).read()
    return RunDir(path).recipe


def point_from_args(file: Path, args: Sequence[str], data: Path | None) -> tuple[Recipe, Path]:
    """Return the recipe of the point that arguments choose, and its default run folder.

    Args:
        args: `axis=value` for each axis; all others are overrides.

    Raises:
        RecipeError: With every fault of the arguments or the recipe, or if `where` excludes it.
    """
    from composer.training.wandb_logger import sweep_overrides  # which imports torch

    overrides = [arg for arg in args if not _names_axis(arg)]
    sweep = read_sweep(file, overrides, data)
    point = parse_point(sweep, args)
    cost = cost_point(sweep, point)
    if cost.faults:
        raise RecipeError(cost.faults)
    if cost.condition:
        message = f"the sweep excludes this point by {cost.exclusion}"
        raise _where_error(sweep, message, "choose another point", cost.at_most)
    shown = sweep_overrides(point_recipe(sweep, point), sweep.name, point)
    recipe = point_recipe(replace(sweep, overrides=(*sweep.overrides, *shown)), point)
    folder = RUNS / recipe.name
    if any(_key(arg) == "training.seed" for arg in overrides):
        folder /= f"seed-{recipe.training.seed}"
    return recipe, folder


def _names_axis(arg: str) -> bool:
    """True if an argument names an axis, and not a section of recipes or a path in one."""
    key = _key(arg)
    is_identifier = "=" in arg and key.isidentifier()
    return is_identifier and key not in schema_generator.load()["properties"]


def parse_point(sweep: Sweep, args: Sequence[str]) -> Point:
    """Return the point of `axis=value` arguments; overrides and inactive axes are ignored.

    Of two values for one axis the later counts. Raises RecipeError with every fault.
    """
    faults: list[Fault] = []
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    names = [axis.name for axis in sweep.axes]
    for arg in filter(_names_axis, args):
        key = _key(arg)
        axis = sweep.axis(key)
        if axis is None:
            message = f"the sweep has no axis `{key}`{did_you_mean(key, names)}"
            hint = "its axes are " + ", ".join(f"`{name}`" for name in names)
            faults.append(_argument_fault(key, message, hint, arg))
            continue
        try:
            values[key], sources[key] = _parse_value(axis, arg), arg
        except RecipeError as error:
            faults.extend(error.faults)
    point = sweep.complete(values)
    wrong = {fault.path for fault in faults}
    for axis in sweep.axes:
        name = axis.name
        if axis.zipped is None and name not in {*point, *wrong} and is_active(axis, point):
            message = f"`{name}` of the sweep `{sweep.name}` has no value"
            faults.append(_argument_fault(name, message, _argument_hint(axis)))
        elif axis.zipped and name in point and values.get(name, point[name]) != point[name]:
            message = f"`{name}` is zipped to `{axis.zipped}`, so it is `{point[name]}` here"
            faults.append(_argument_fault(name, message, "leave it out", sources[name]))
    if faults:
        raise RecipeError(faults)
    return point


def _parse_value(axis: Axis, arg: str) -> Value:
    """Return the value of an argument: the YAML value, or the text itself if the axis has it."""
    text = arg.partition("=")[2]
    value: Any = parse_value(arg, len(axis.name) + 1).value if text else None
    if axis.integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    if axis.accepts(value):
        return value if axis.labels is None else axis.labels[axis.index(value)]
    if axis.labels is not None and axis.accepts(text):
        return text
    message = f"`{axis.name}` is never `{text}`{did_you_mean(text, [*map(str, axis.labels or ())])}"
    raise RecipeError([_argument_fault(axis.name, message, _argument_hint(axis), arg)])


def _argument_hint(axis: Axis) -> str:
    if axis.labels is not None:
        return "write one of " + ", ".join(f"`{axis.name}={label}`" for label in axis.labels)
    number = "whole number" if axis.integer else "number"
    return f"write `{axis.name}=` and a {number} from {axis.low} to {axis.high}"


def _argument_fault(axis: str, message: str, hint: str, arg: str = "") -> Fault:
    """Return the fault of an argument, or of a missing one."""
    mark = Mark(COMMAND_LINE, 1, 1, max(1, len(_key(arg))), arg)
    return fault_at(mark, "axis", axis, message, hint)


def _key(arg: str) -> str:
    return arg.partition("=")[0]
