"""The points of a sweep: all of a grid, or those drawn; each a recipe, and what it costs."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
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
SHORT_FINGERPRINT = 12
"""Characters of a fingerprint in names."""


# ------------------------------------------------------------------------------------------- points


def grid_points(sweep: Sweep) -> list[Point]:
    """Every point of finite axes, the first axis slowest; without what is inactive, and none twice."""
    asked = sweep.asked
    count = math.prod(len(axis.labels or ()) for axis in asked)
    if count > MAX_POINTS:
        message = f"these axes make {count} points, and a grid has at most {MAX_POINTS}"
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
    return complete(sweep, {axis.name: _random_value(axis, source) for axis in sweep.asked})


def _random_value(axis: Axis, source: random.Random) -> Value:
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


def point_recipe(sweep: Sweep, point: Mapping[str, Value], seed: int | None = None) -> Recipe:
    """The recipe of a point. Raises RecipeError with its faults, and with what is wrong with the point."""
    faults = list(_point_faults(sweep, point))
    if faults:
        raise RecipeError(faults)
    root = apply_point(sweep, complete(sweep, point), () if seed is None else [f"training.seed={seed}"])
    recipe = from_node(sweep.base, root, schema.load(), sweep.data_dir)  # data are looked up where the base's are
    name = f"{sweep.name[:MAX_NAME_LENGTH]}-{point_fingerprint(recipe)}"
    written = {"recipe": 1, "name": name, **{key: value for key, value in recipe.written.items() if key != "name"}}
    return replace(recipe, written=written, frozen={**recipe.frozen, "name": name})


def point_fingerprint(recipe: Recipe) -> str:
    """What a point is called: the short fingerprint of its data, its model and its run, whatever the seed."""
    training = {key: value for key, value in recipe.training.items() if key != "seed"}
    unseeded = replace(recipe, frozen={**recipe.frozen, "training": training})
    return unseeded.fingerprints["run"][:SHORT_FINGERPRINT]


def _point_faults(sweep: Sweep, point: Mapping[str, Value]) -> Iterator[Fault]:
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
            yield fault_at(axis.node.place, "point", axis.name, message, f"it is {_allowed_values(axis)}")
    if all(axis.takes(point[axis.name]) for axis in sweep.axes if axis.name in point):
        yield from _missing_values(sweep, point)


def _missing_values(sweep: Sweep, point: Mapping[str, Value]) -> Iterator[Fault]:
    whole = complete(sweep, point)
    for axis in sweep.asked:
        if axis.name not in whole and is_active(axis, whole):
            message = f"the point has no `{axis.name}`"
            yield fault_at(axis.node.place, "point", axis.name, message, f"it is {_allowed_values(axis)}")


def _allowed_values(axis: Axis) -> str:
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


def cost_point(sweep: Sweep, point: Point, known: dict[str, Costs] | None = None) -> PointCost:
    """A point with what its model costs. Imports torch.

    known: the costs of models that have been planned, and of this one after the call; most axes do not touch the model.
    """
    nothing = PointCost(dict(point), "", 0, 0, 0)
    cheap = violated_condition(sweep, point)
    try:
        recipe = point_recipe(sweep, point)
    except RecipeError as error:
        return replace(nothing, faults=error.faults, excluded=cheap is not None, condition=cheap or "")
    nothing = replace(nothing, fingerprint=point_fingerprint(recipe))
    if cheap is not None:
        return replace(nothing, excluded=True, condition=cheap)
    try:
        costs = _plan_costs(recipe, {} if known is None else known)
    except RecipeError as error:
        return replace(nothing, faults=error.faults)
    condition = violated_condition(sweep, point, costs)
    kept = PointCost(dict(point), nothing.fingerprint, costs["parameters"], costs["flops"], costs["state_bytes"])
    return kept if condition is None else replace(kept, excluded=True, condition=condition)


def _plan_costs(recipe: Recipe, known: dict[str, Costs]) -> Costs:
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


def enumerate_points(sweep: Sweep) -> list[PointCost]:
    """Every point of a grid, or the drawn ones, with their costs; those of TPE are not known before.

    Raises RecipeError where `where` excludes every one of them.
    """
    if sweep.search.kind == "tpe":
        return []
    known: dict[str, Costs] = {}
    found = [
        cost_point(sweep, point, known)
        for point in (grid_points(sweep) if sweep.search.kind == "grid" else random_points(sweep))
    ]
    if found and sweep.where and all(each.excluded for each in found):
        raise RecipeError([all_excluded_fault(sweep, found)])
    return found


def all_excluded_fault(sweep: Sweep, found: list[PointCost]) -> Fault:
    """The fault of a condition that no point keeps."""
    sizes = [each.parameters for each in found if each.parameters]
    least = f"; the smallest has {min(sizes):,} parameters" if sizes else ""
    message = f"`where` excludes all {len(found)} points{least}"
    return fault_at(sweep.root.value["where"].mark, "where", "where", message, "write a weaker condition")


@dataclass(frozen=True)
class PointRun:
    """A point of a sweep that is to be trained, and the folder that its run has where no other is named."""

    point: Point
    recipe: Recipe
    folder: Path


def point_from_args(file: Path, words: Sequence[str], data: Path | None) -> PointRun:
    """The point that words choose: `axis=value` for each axis, anything else is laid over the recipe.

    Raises RecipeError with every fault of the words or of the recipe, and where `where` excludes the point.
    """
    sweep = read_sweep(file, (), data)
    point = _parse_point(sweep, words)
    others = [word for word in words if sweep.axis(_key(word)) is None]
    sweep = read_sweep(file, others, data)
    grouped = wandb_group_overrides(point_recipe(sweep, point).logging["wandb"], sweep.name, os.environ)
    sweep = replace(sweep, overrides=(*sweep.overrides, *grouped))
    _must_be_included(sweep, point)
    recipe = point_recipe(sweep, point)
    folder = RUNS / recipe.name
    seeded = any(_key(word) == "training.seed" for word in others)
    return PointRun(point, recipe, folder / f"seed-{recipe.training['seed']}" if seeded else folder)


def first_point(sweep: Sweep) -> Point:
    """A point: of each active axis its first label, or its least number."""
    ends = {axis.name: axis.low if axis.labels is None else axis.labels[0] for axis in sweep.axes}
    return complete(sweep, {name: value for name, value in ends.items() if value is not None})


def wandb_group_overrides(wandb: Any, name: str, environment: Mapping[str, str]) -> list[str]:
    """What puts a run into the group of its sweep. `wandb` is `logging.wandb` of its recipe.

    What a recipe says of W&B stays so; where it says nothing the run stays at home, unless an agent of W&B started it.
    """
    if wandb is False or (isinstance(wandb, Mapping) and wandb.get("group")):
        return []
    at_home = wandb is None and "WANDB_SWEEP_ID" not in environment
    return [f"logging.wandb.group={name}", *(["logging.wandb.mode=offline"] if at_home else [])]


# ------------------------------------------------------------------------------------------- the point


def _parse_point(sweep: Sweep, words: Sequence[str]) -> Point:
    """A value for each axis that is active; those that are not are passed over, whatever was given."""
    faults = list(_unknown_axes(sweep, words))
    given = _parse_values(sweep, words, faults)
    point = complete(sweep, {name: value for name, (value, _) in given.items()})
    faults += [
        *_missing_arguments(sweep, point, {fault.path for fault in faults}),
        *_zip_conflicts(sweep, point, given),
    ]
    if faults:
        raise RecipeError(faults)
    return point


def _unknown_axes(sweep: Sweep, words: Sequence[str]) -> Iterator[Fault]:
    """Words that are neither of an axis nor of a recipe."""
    known = {*schema.load()["properties"], *(axis.name for axis in sweep.axes)}
    names = [axis.name for axis in sweep.axes]
    for word in words:
        key = _key(word)
        if "=" in word and key.isidentifier() and key not in known:
            listed = ", ".join(f"`{name}`" for name in names)
            message = f"the sweep has no axis `{key}`{did_you_mean(key, names)}"
            yield fault_at(_word(word), "axis", key, message, f"its axes are {listed}")


def _parse_values(sweep: Sweep, words: Sequence[str], faults: list[Fault]) -> dict[str, tuple[Value, str]]:
    """By axis the value that was given, of two the later one, and the word that gave it."""
    given: dict[str, tuple[Value, str]] = {}
    for word in words:
        axis = sweep.axis(_key(word))
        if axis is None:
            continue
        try:
            given[axis.name] = (_parse_value(axis, word), word)
        except RecipeError as error:
            faults.extend(error.faults)
    return given


def _parse_value(axis: Axis, word: str) -> Value:
    """What a word gives its axis: what YAML reads or, where that is no value of it, the text itself."""
    _, _, text = word.partition("=")
    read: Any = parse_value(word, len(axis.name) + 1).value if text else None
    if axis.takes(read):
        return read if axis.labels is None else axis.labels[axis.index(read)]
    if axis.whole and isinstance(read, float) and read.is_integer() and axis.takes(int(read)):
        return int(read)
    if axis.labels is not None and axis.takes(text):
        return text
    message = f"`{axis.name}` is never `{text}`{did_you_mean(text, [str(label) for label in axis.labels or ()])}"
    raise RecipeError([fault_at(_word(word), "axis", axis.name, message, _argument_hint(axis))])


def _missing_arguments(sweep: Sweep, point: Point, refused: set[str]) -> Iterator[Fault]:
    for axis in sweep.asked:
        if axis.name not in {*point, *refused} and is_active(axis, point):
            message = f"`{axis.name}` of the sweep `{sweep.name}` has no value"
            yield fault_at(Mark(COMMAND_LINE, 1, 1, 1, ""), "axis", axis.name, message, _argument_hint(axis))


def _zip_conflicts(sweep: Sweep, point: Point, given: Mapping[str, tuple[Value, str]]) -> Iterator[Fault]:
    """Values that were given to tied axes, and are not tied so."""
    for axis in sweep.axes:
        if axis.zipped and axis.name in given and axis.name in point and given[axis.name][0] != point[axis.name]:
            message = f"`{axis.name}` is tied to `{axis.zipped}`, and is `{point[axis.name]}` there"
            yield fault_at(_word(given[axis.name][1]), "axis", axis.name, message, "leave it away")


def _argument_hint(axis: Axis) -> str:
    if axis.labels is not None:
        return "write one of " + ", ".join(f"`{axis.name}={label}`" for label in axis.labels)
    return f"write `{axis.name}=` and {'a whole number' if axis.whole else 'a number'} from {axis.low} to {axis.high}"


def _key(word: str) -> str:
    return word.partition("=")[0]


def _word(word: str) -> Mark:
    return Mark(COMMAND_LINE, 1, 1, max(1, len(_key(word))), word)


def _must_be_included(sweep: Sweep, point: Point) -> None:
    """Raises RecipeError where the point cannot be built, or is excluded."""
    found = cost_point(sweep, point)
    if found.faults:
        raise RecipeError(found.faults)
    if found.excluded:
        costs = f"{found.parameters:,} parameters, {found.flops:,} FLOPs, {found.state_bytes:,} bytes of state"
        message = f"the sweep excludes this point by `{found.condition}`: it has {costs}"
        fault = fault_at(sweep.root.value["where"].mark, "where", "where", message, "choose another point")
        raise RecipeError([fault])
