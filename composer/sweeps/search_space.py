"""The points of a sweep: all of a grid, or those drawn; each a recipe, and what it costs."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe import schema
from composer.recipe.node import fault_at
from composer.recipe.recipe import Recipe, from_node
from composer.sweeps.axes import COSTS, Axis, Goal, Point, Prune, Search, Sweep, Value, complete, is_active
from composer.sweeps.expressions import holds
from composer.sweeps.spec import is_sweep, read_sweep
from composer.sweeps.tree_edits import edited

__all__ = [
    "COSTS",
    "Axis",
    "Goal",
    "Point",
    "PointCost",
    "Prune",
    "Search",
    "Sweep",
    "complete",
    "costed",
    "grid",
    "is_active",
    "is_sweep",
    "points_of",
    "random_points",
    "read_sweep",
    "recipe_of",
]

MOST_POINTS = 10_000
MOST_NAME = 80
SHORT = 12
"""Characters of a fingerprint in names."""


# ------------------------------------------------------------------------------------------- points


def grid(sweep: Sweep) -> list[Point]:
    """Every point of finite axes, the first axis slowest; without what is inactive, and none twice."""
    asked = sweep.asked
    count = math.prod(len(axis.labels or ()) for axis in asked)
    if count > MOST_POINTS:
        message = f"these axes make {count} points, and a grid has at most {MOST_POINTS}"
        raise RecipeError(
            [
                fault_at(
                    sweep.root.value["axes"].place, "size", "axes", message, "write `search: {random: {trials: 40}}`"
                )
            ]
        )
    order = [axis for axis in sweep.axes if axis.zipped is None]
    chosen = product(*(axis.labels or () for axis in order))
    names = [axis.name for axis in order]
    return _distinct(complete(sweep, dict(zip(names, labels, strict=True))) for labels in chosen)


def random_points(sweep: Sweep) -> list[Point]:
    """The points of a random search: as many as its trials, none twice, fewer where there are no more."""
    trials = sweep.search.trials or 0
    source = random.Random(sweep.search.seed)
    return _distinct((_draw(sweep, source) for _ in range(trials * 50)), trials)


def _draw(sweep: Sweep, source: random.Random) -> Point:
    return complete(sweep, {axis.name: _value(axis, source) for axis in sweep.asked})


def _value(axis: Axis, source: random.Random) -> Value:
    if axis.labels is not None:
        return source.choice(axis.labels)
    assert axis.low is not None
    assert axis.high is not None
    if axis.whole and not axis.log:
        return source.randint(int(axis.low), int(axis.high))
    low, high = (axis.low - 0.5, axis.high + 0.5) if axis.whole else (axis.low, axis.high)
    value = math.exp(source.uniform(math.log(low), math.log(high))) if axis.log else source.uniform(low, high)
    bounded = min(max(value, axis.low), axis.high)
    return round(bounded) if axis.whole else bounded


def _distinct(points: Iterator[Point], most: int | None = None) -> list[Point]:
    kept: dict[str, Point] = {}
    for point in points:
        kept.setdefault(json.dumps(point), point)
        if len(kept) == most:
            break
    return list(kept.values())


# ------------------------------------------------------------------------------------------- recipes


def recipe_of(sweep: Sweep, point: Mapping[str, Value], seed: int | None = None) -> Recipe:
    """The recipe of a point. Raises RecipeError with its faults, and with what is wrong with the point."""
    faults = list(_ill_chosen(sweep, point))
    if faults:
        raise RecipeError(faults)
    root = edited(sweep, complete(sweep, point), () if seed is None else [f"training.seed={seed}"])
    recipe = from_node(sweep.base, root, schema.load(), sweep.data_dir)  # data are looked up where the base's are
    name = f"{sweep.name[:MOST_NAME]}-{fingerprint_of(recipe)}"
    written = {"recipe": 1, "name": name, **{key: value for key, value in recipe.written.items() if key != "name"}}
    return replace(recipe, written=written, frozen={**recipe.frozen, "name": name})


def fingerprint_of(recipe: Recipe) -> str:
    """What a point is called: the short fingerprint of its data, its model and its run, whatever the seed."""
    training = {key: value for key, value in recipe.training.items() if key != "seed"}
    unseeded = replace(recipe, frozen={**recipe.frozen, "training": training})
    return unseeded.fingerprints["run"][:SHORT]


def _ill_chosen(sweep: Sweep, point: Mapping[str, Value]) -> Iterator[Fault]:
    """What is wrong with the values of a point, for the axes that are active in it."""
    names = [axis.name for axis in sweep.axes]
    for name in point:
        if name not in names:
            message, hint = f"there is no axis `{name}`{did_you_mean(name, names)}", f"the axes are {', '.join(names)}"
            yield Fault(str(sweep.file), 0, 0, "point", name, message, hint)
    for axis in sweep.axes:
        if axis.name in point and not axis.takes(point[axis.name]):
            labels = [str(label) for label in axis.labels or ()]
            message = f"`{axis.name}` is never `{point[axis.name]}`{did_you_mean(str(point[axis.name]), labels)}"
            yield fault_at(axis.node.place, "point", axis.name, message, f"it is {_range(axis)}")
    if all(axis.takes(point[axis.name]) for axis in sweep.axes if axis.name in point):
        yield from _missing(sweep, point)


def _missing(sweep: Sweep, point: Mapping[str, Value]) -> Iterator[Fault]:
    whole = complete(sweep, point)
    for axis in sweep.asked:
        if axis.name not in whole and is_active(axis, whole):
            message = f"the point has no `{axis.name}`"
            yield fault_at(axis.node.place, "point", axis.name, message, f"it is {_range(axis)}")


def _range(axis: Axis) -> str:
    if axis.labels is None:
        return f"a {'whole ' if axis.whole else ''}number from {axis.low} to {axis.high}"
    return "one of " + ", ".join(str(label) for label in axis.labels)


# ------------------------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class PointCost:
    """A point and what it costs; `faults` where it is no recipe that can be trained, `condition` where it is excluded.

    `fingerprint` is "" where the faults are those of the recipe's text.
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
    def runs(self) -> bool:
        """Whether it is trained."""
        return not self.faults and not self.excluded


Costs = dict[str, int]


def costed(sweep: Sweep, point: Point, known: dict[str, Costs] | None = None) -> PointCost:
    """A point with what its model costs. Imports torch.

    known: the costs of models that have been planned, and of this one after the call; most axes do not touch the model.
    """
    nothing = PointCost(dict(point), "", 0, 0, 0)
    cheap = violated_condition(sweep, point)
    try:
        recipe = recipe_of(sweep, point)
    except RecipeError as error:
        return replace(nothing, faults=error.faults, excluded=cheap is not None, condition=cheap or "")
    nothing = replace(nothing, fingerprint=fingerprint_of(recipe))
    if cheap is not None:
        return replace(nothing, excluded=True, condition=cheap)
    try:
        costs = _costs(recipe, {} if known is None else known)
    except RecipeError as error:
        return replace(nothing, faults=error.faults)
    condition = violated_condition(sweep, point, costs)
    kept = PointCost(dict(point), nothing.fingerprint, costs["parameters"], costs["flops"], costs["state_bytes"])
    return kept if condition is None else replace(kept, excluded=True, condition=condition)


def _costs(recipe: Recipe, known: dict[str, Costs]) -> Costs:
    """What a recipe's model costs, planned once for all recipes that are planned alike."""
    decides = [recipe.model, recipe.dataset, recipe.decoding, recipe.training["scheduled_sampling"]]
    key = json.dumps(decides, sort_keys=True)
    if key not in known:
        plan = recipe.plan()
        known[key] = {cost: getattr(plan, cost) for cost in COSTS}
    return known[key]


def violated_condition(sweep: Sweep, point: Mapping[str, Value], costs: Mapping[str, int] | None = None) -> str | None:
    """The first condition of `where` that a point breaks; without costs, of those that name none of them."""
    values = {**point, **(costs or {})}
    conditions = [each for each in sweep.where if costs is not None or not each.names & set(COSTS)]
    return next((each.text for each in conditions if not holds(each, values)), None)


def points_of(sweep: Sweep) -> list[PointCost]:
    """Every point of a grid, or the drawn ones, with their costs; those of TPE are not known before.

    Raises RecipeError where `where` excludes every one of them.
    """
    if sweep.search.kind == "tpe":
        return []
    known: dict[str, Costs] = {}
    found = [
        costed(sweep, point, known) for point in (grid(sweep) if sweep.search.kind == "grid" else random_points(sweep))
    ]
    if found and sweep.where and all(each.excluded for each in found):
        raise RecipeError([excludes_all(sweep, found)])
    return found


def excludes_all(sweep: Sweep, found: list[PointCost]) -> Fault:
    """The fault of a condition that no point keeps."""
    sizes = [each.parameters for each in found if each.parameters]
    least = f"; the smallest has {min(sizes):,} parameters" if sizes else ""
    message = f"`where` excludes all {len(found)} points{least}"
    return fault_at(sweep.root.value["where"].mark, "where", "where", message, "write a weaker condition")
