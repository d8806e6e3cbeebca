"""Points of the search space: grid and random points, points from `axis=value` arguments, their recipes and costs."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe import schema
from composer.recipe.node import COMMAND_LINE, Mark, fault_at
from composer.recipe.recipe import Recipe, from_node
from composer.recipe.yaml_reader import parse_value
from composer.run_dir import RUNS
from composer.sweeps.axes import COSTS, Axis, Point, Sweep, Value, complete, is_active
from composer.sweeps.conditions import holds
from composer.sweeps.spec import read_sweep
from composer.sweeps.substitution import apply_point

MAX_POINTS = 10_000
MAX_NAME_LENGTH = 80
FINGERPRINT_LENGTH = 12
"""Characters of a fingerprint in names."""
DRAWS_PER_TRIAL = 50
"""Draws of a random search for each trial before it concludes that there are no more distinct points."""


# ------------------------------------------------------------------------------------------- points


def grid_points(sweep: Sweep) -> list[Point]:
    """Return every distinct point of finite axes, the first axis slowest. Raises RecipeError if there are too many."""
    axes = [axis for axis in sweep.axes if axis.zipped is None]
    count = math.prod(len(axis.labels or ()) for axis in axes)
    if count > MAX_POINTS:
        message = f"these axes make {count} points, and a grid has at most {MAX_POINTS}"
        hint = "write `search: {random: {trials: 40}}`"
        raise RecipeError([fault_at(sweep.root.value["axes"].place, "size", "axes", message, hint)])
    names = [axis.name for axis in axes]
    combinations = product(*(axis.labels or () for axis in axes))
    return _distinct(complete(sweep, dict(zip(names, labels, strict=True))) for labels in combinations)


def random_points(sweep: Sweep) -> list[Point]:
    """Return the distinct points of a random search: as many as its trials, fewer if there are no more."""
    trials = sweep.search.trials or 0
    rng = random.Random(sweep.search.seed)
    draws = (
        complete(sweep, {axis.name: _random_value(axis, rng) for axis in sweep.free_axes})
        for _ in range(trials * DRAWS_PER_TRIAL)
    )
    return _distinct(draws, trials)


def _random_value(axis: Axis, rng: random.Random) -> Value:
    if axis.labels is not None:
        return rng.choice(axis.labels)
    assert axis.low is not None
    assert axis.high is not None
    if axis.integer and not axis.log:
        return rng.randint(int(axis.low), int(axis.high))
    # half a unit more at both ends, so that rounding gives the first and the last integer their share
    low, high = (axis.low - 0.5, axis.high + 0.5) if axis.integer else (axis.low, axis.high)
    value = math.exp(rng.uniform(math.log(low), math.log(high))) if axis.log else rng.uniform(low, high)
    bounded = min(max(value, axis.low), axis.high)
    return round(bounded) if axis.integer else bounded


def _distinct(points: Iterable[Point], limit: int | None = None) -> list[Point]:
    distinct: dict[str, Point] = {}
    for point in points:
        distinct.setdefault(json.dumps(point), point)
        if len(distinct) == limit:
            break
    return list(distinct.values())


def first_point(sweep: Sweep) -> Point:
    """Return the point of each active axis's first label or least number."""
    return complete(sweep, {axis.name: axis.ends[0] for axis in sweep.axes})


# ------------------------------------------------------------------------------------------- recipes


def point_recipe(sweep: Sweep, point: Mapping[str, Value], seed: int | None = None) -> Recipe:
    """Return the recipe of a point. Raises RecipeError with its faults, and with what is wrong with the point."""
    faults = list(_point_faults(sweep, point))
    if faults:
        raise RecipeError(faults)
    root = apply_point(sweep, complete(sweep, point), () if seed is None else [f"training.seed={seed}"])
    recipe = from_node(sweep.base, root, schema.load(), sweep.data_dir)  # data files are looked up where the base's are
    name = f"{sweep.name[:MAX_NAME_LENGTH]}-{point_fingerprint(recipe)}"
    sections = {key: value for key, value in recipe.explicit.items() if key != "name"}
    return replace(recipe, explicit={"recipe": 1, "name": name, **sections}, frozen={**recipe.frozen, "name": name})


def point_fingerprint(recipe: Recipe) -> str:
    """Return the short name of a point: the fingerprint of its data, model and training, whatever the seed."""
    training = {key: value for key, value in recipe.training.items() if key != "seed"}
    unseeded = replace(recipe, frozen={**recipe.frozen, "training": training})
    return unseeded.fingerprints["run"][:FINGERPRINT_LENGTH]


def _point_faults(sweep: Sweep, point: Mapping[str, Value]) -> Iterator[Fault]:
    """Yield unknown axes, values that an axis does not have, and active axes without a value."""
    names = [axis.name for axis in sweep.axes]
    for name in point:
        if name not in names:
            message, hint = f"there is no axis `{name}`{did_you_mean(name, names)}", f"the axes are {', '.join(names)}"
            yield Fault(str(sweep.file), 0, 0, "point", name, message, hint)
    is_valid = True
    for axis in sweep.axes:
        if axis.name in point and not axis.accepts(point[axis.name]):
            is_valid = False
            message = _not_a_value(axis, point[axis.name])
            yield fault_at(axis.node.place, "point", axis.name, message, f"it is {_allowed_values(axis)}")
    for axis in _axes_without_value(sweep, complete(sweep, point)) if is_valid else ():
        message = f"the point has no `{axis.name}`"
        yield fault_at(axis.node.place, "point", axis.name, message, f"it is {_allowed_values(axis)}")


def _axes_without_value(sweep: Sweep, point: Mapping[str, Value]) -> list[Axis]:
    return [axis for axis in sweep.free_axes if axis.name not in point and is_active(axis, point)]


def _not_a_value(axis: Axis, value: Value) -> str:
    labels = [str(label) for label in axis.labels or ()]
    return f"`{axis.name}` is never `{value}`{did_you_mean(str(value), labels)}"


def _allowed_values(axis: Axis) -> str:
    if axis.labels is None:
        return f"a {'whole ' if axis.integer else ''}number from {axis.low} to {axis.high}"
    return "one of " + ", ".join(str(label) for label in axis.labels)


# ------------------------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class PointCost:
    """A point and its costs.

    `faults` are the reasons why no recipe of it can be trained; `condition` is the one of `where` that excludes it.
    `fingerprint` is "" if the faults are those of the recipe's text.
    """

    point: Point
    fingerprint: str
    parameters: int
    flops: int
    state_bytes: int
    faults: list[Fault] = field(default_factory=list)
    excluded: bool = False
    condition: str = ""

    @property
    def can_train(self) -> bool:
        """True if the point is trained."""
        return not self.faults and not self.excluded


Costs = dict[str, int]


def cost_point(sweep: Sweep, point: Point, planned: dict[str, Costs] | None = None) -> PointCost:
    """Return a point with the costs of its model. Imports torch.

    Args:
        sweep: The sweep.
        point: A value for each active axis.
        planned: Costs by model, filled in here: most axes do not change the model, so that it is planned once.
    """
    blank = PointCost(dict(point), "", 0, 0, 0)
    if (condition := violated_condition(sweep, point)) is not None:
        blank = replace(blank, excluded=True, condition=condition)
    try:
        recipe = point_recipe(sweep, point)
        blank = replace(blank, fingerprint=point_fingerprint(recipe))
        costs = {} if blank.excluded else _plan_costs(recipe, {} if planned is None else planned)
    except RecipeError as error:
        return replace(blank, faults=error.faults)
    if blank.excluded:
        return blank
    condition = violated_condition(sweep, point, costs)
    sizes = (costs["parameters"], costs["flops"], costs["state_bytes"])
    is_excluded = condition is not None
    return PointCost(blank.point, blank.fingerprint, *sizes, excluded=is_excluded, condition=condition or "")


def _plan_costs(recipe: Recipe, planned: dict[str, Costs]) -> Costs:
    parts = [recipe.model, recipe.dataset, recipe.decoding, recipe.training["scheduled_sampling"]]
    key = json.dumps(parts, sort_keys=True)
    if key not in planned:
        plan = recipe.plan()
        planned[key] = {cost: getattr(plan, cost) for cost in COSTS}
    return planned[key]


def violated_condition(sweep: Sweep, point: Mapping[str, Value], costs: Mapping[str, int] | None = None) -> str | None:
    """Return the first condition of `where` that a point violates; without costs, of those that name none."""
    values = {**point, **(costs or {})}
    conditions = [one for one in sweep.where if costs is not None or not one.names & set(COSTS)]
    return next((condition.text for condition in conditions if not holds(condition, values)), None)


def enumerate_points(sweep: Sweep) -> list[PointCost]:
    """Return all points of a grid or random search with their costs, and none of TPE, which chooses as it learns.

    Raises:
        RecipeError: If `where` excludes every point.
    """
    if sweep.search.kind == "tpe":
        return []
    planned: dict[str, Costs] = {}
    points = grid_points(sweep) if sweep.search.kind == "grid" else random_points(sweep)
    costed = [cost_point(sweep, point, planned) for point in points]
    check_not_all_excluded(sweep, costed)
    return costed


def check_not_all_excluded(sweep: Sweep, costed: Sequence[PointCost]) -> None:
    """Raise RecipeError if `where` excludes all of these points."""
    if not (costed and sweep.where and all(point.excluded for point in costed)):
        return
    sizes = [point.parameters for point in costed if point.parameters]
    smallest = f"; the smallest has {min(sizes):,} parameters" if sizes else ""
    message = f"`where` excludes all {len(costed)} points{smallest}"
    raise RecipeError([fault_at(sweep.root.value["where"].mark, "where", "where", message, "write a weaker condition")])


# ------------------------------------------------------------------------------------------- a point from arguments


@dataclass(frozen=True)
class PointRun:
    """A point to be trained as an ordinary run, and the run folder that it has by default."""

    point: Point
    recipe: Recipe
    folder: Path


def point_from_args(file: Path, args: Sequence[str], data: Path | None) -> PointRun:
    """Return the point that arguments choose: `axis=value` for each axis; all others are overrides of its recipe.

    Raises:
        RecipeError: With every fault of the arguments or the recipe, or if `where` excludes the point.
    """
    sweep = read_sweep(file, (), data)
    point = _parse_point(sweep, args)
    overrides = [arg for arg in args if sweep.axis(_key(arg)) is None]
    sweep = read_sweep(file, overrides, data)
    group = wandb_group_overrides(point_recipe(sweep, point).logging["wandb"], sweep.name, os.environ)
    sweep = replace(sweep, overrides=(*sweep.overrides, *group))
    costed = cost_point(sweep, point)
    if costed.faults:
        raise RecipeError(costed.faults)
    if costed.excluded:
        costs = f"{costed.parameters:,} parameters, {costed.flops:,} FLOPs, {costed.state_bytes:,} bytes of state"
        message = f"the sweep excludes this point by `{costed.condition}`: it has {costs}"
        mark = sweep.root.value["where"].mark
        raise RecipeError([fault_at(mark, "where", "where", message, "choose another point")])
    recipe = point_recipe(sweep, point)
    folder = RUNS / recipe.name
    has_seed = any(_key(arg) == "training.seed" for arg in overrides)
    return PointRun(point, recipe, folder / f"seed-{recipe.training['seed']}" if has_seed else folder)


def wandb_group_overrides(wandb: Any, name: str, environment: Mapping[str, str]) -> list[str]:
    """Return the overrides that put a run into the W&B group of its sweep.

    A recipe's own `logging.wandb` is kept; without one the run is logged offline, unless an agent of W&B started it.
    """
    if wandb is False or (isinstance(wandb, Mapping) and wandb.get("group")):
        return []
    is_offline = wandb is None and "WANDB_SWEEP_ID" not in environment
    return [f"logging.wandb.group={name}", *(["logging.wandb.mode=offline"] if is_offline else [])]


def _parse_point(sweep: Sweep, args: Sequence[str]) -> Point:
    """Return the point of `axis=value` arguments. Values of inactive axes are ignored; of two, the later one counts."""
    faults = list(_unknown_axes(sweep, args))
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for arg in args:
        if (axis := sweep.axis(_key(arg))) is not None:
            try:
                values[axis.name], sources[axis.name] = _parse_value(axis, arg), arg
            except RecipeError as error:
                faults.extend(error.faults)
    point = complete(sweep, values)
    refused = {fault.path for fault in faults}
    for axis in _axes_without_value(sweep, point):
        if axis.name not in refused:
            message = f"`{axis.name}` of the sweep `{sweep.name}` has no value"
            mark = Mark(COMMAND_LINE, 1, 1, 1, "")
            faults.append(fault_at(mark, "axis", axis.name, message, _argument_hint(axis)))
    for axis in sweep.axes:
        if axis.zipped and axis.name in values and axis.name in point and values[axis.name] != point[axis.name]:
            message = f"`{axis.name}` is tied to `{axis.zipped}`, and is `{point[axis.name]}` there"
            faults.append(fault_at(_mark(sources[axis.name]), "axis", axis.name, message, "leave it out"))
    if faults:
        raise RecipeError(faults)
    return point


def _unknown_axes(sweep: Sweep, args: Sequence[str]) -> Iterator[Fault]:
    """Yield arguments that name neither an axis nor a key of recipes."""
    names = [axis.name for axis in sweep.axes]
    known = {*schema.load()["properties"], *names}
    for arg in args:
        key = _key(arg)
        if "=" in arg and key.isidentifier() and key not in known:
            hint = "its axes are " + ", ".join(f"`{name}`" for name in names)
            message = f"the sweep has no axis `{key}`{did_you_mean(key, names)}"
            yield fault_at(_mark(arg), "axis", key, message, hint)


def _parse_value(axis: Axis, arg: str) -> Value:
    """Return the value of an argument: what YAML reads or, if the axis has no such value, the text itself."""
    text = arg.partition("=")[2]
    value: Any = parse_value(arg, len(axis.name) + 1).value if text else None
    if axis.accepts(value):
        return value if axis.labels is None else axis.labels[axis.index(value)]
    if axis.integer and isinstance(value, float) and value.is_integer() and axis.accepts(int(value)):
        return int(value)
    if axis.labels is not None and axis.accepts(text):
        return text
    raise RecipeError([fault_at(_mark(arg), "axis", axis.name, _not_a_value(axis, text), _argument_hint(axis))])


def _argument_hint(axis: Axis) -> str:
    if axis.labels is not None:
        return "write one of " + ", ".join(f"`{axis.name}={label}`" for label in axis.labels)
    return f"write `{axis.name}=` and {_allowed_values(axis)}"


def _key(arg: str) -> str:
    return arg.partition("=")[0]


def _mark(arg: str) -> Mark:
    return Mark(COMMAND_LINE, 1, 1, max(1, len(_key(arg))), arg)
