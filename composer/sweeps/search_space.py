"""Points of the search space: grid and random points, their recipes and costs, and checks of the axes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from typing import Literal, NamedTuple

from composer.errors import DataError, Fault, RecipeError, did_you_mean, fault_at
from composer.formatting import format_bound
from composer.recipe import schema_generator
from composer.recipe.recipe import Recipe, first_setting, from_node
from composer.sweeps.conditions import holds
from composer.sweeps.substitution import apply_extensions, apply_point, apply_settings, find_matches, no_match_fault
from composer.sweeps.sweep import (
    COSTS,
    Axis,
    Point,
    Sweep,
    Value,
    complete,
    dependencies,
    same_value,
    topological_order,
)

MAX_POINTS = 10_000
DRAWS_PER_TRIAL = 50
"""Draws of a random search for each trial before it concludes that there are no more distinct points."""
MAX_TRIED = 256
"""Combinations of the axes that a `when` depends on in which it is looked for one where it holds."""
MAX_STRUCTURES = 100
"""Structures of a TPE search that a dry run lists; its points are not known before it runs."""
DATA_HINT = ", or name the folder of the data, `--data DIR`: the tokenizer's own size then counts, not its upper bound"
MAX_BASES = 64
"""Combinations of recipes that extend the base in which an axis looks for what it replaces."""


def grid_points(sweep: Sweep) -> list[Point]:
    """Return every distinct point of finite axes, the first axis slowest. Raises RecipeError if there are too many."""
    axes = [axis for axis in sweep.axes if axis.zipped is None]
    count = math.prod(len(axis.labels or ()) for axis in axes)
    if count > MAX_POINTS:
        message = f"these axes make {count} points, and a grid has at most {MAX_POINTS}"
        hint = "write `search: {random: {trials: 40}}`"
        raise RecipeError([fault_at(sweep.root.value["axes"].place, "size", "axes", message, hint)])
    return _distinct(complete(sweep, labels) for labels in _combinations({a.name: a.labels or () for a in axes}))


def random_points(sweep: Sweep) -> list[Point]:
    """Return the distinct points of a random search: as many as its trials, fewer if there are no more."""
    trials, axes = sweep.search.trials or 0, sweep.free_axes
    rng = random.Random(sweep.search.seed)
    draws = ({axis.name: _random_value(axis, rng) for axis in axes} for _ in range(trials * DRAWS_PER_TRIAL))
    return _distinct((complete(sweep, values) for values in draws), trials)


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


def point_recipe(sweep: Sweep, point: Mapping[str, Value], seed: int | None = None) -> Recipe:
    """Return the recipe of a point. Raises RecipeError with its faults, and with what is wrong with the point."""
    faults = list(_point_faults(sweep, point))
    if faults:
        raise RecipeError(faults)
    root = apply_point(sweep, complete(sweep, point), () if seed is None else [f"training.seed={seed}"])
    recipe = from_node(
        sweep.base, root, schema_generator.load(), sweep.data_dir, sweep.base_root
    )  # data files are looked up where the base's are
    name = f"{sweep.name[:80]}-{point_fingerprint(recipe)}"
    sections = {key: value for key, value in recipe.explicit.items() if key != "name"}
    return replace(
        recipe, explicit={"recipe": 1, "name": name, **sections}, canonical={**recipe.canonical, "name": name}
    )


def point_fingerprint(recipe: Recipe) -> str:
    """Return the short name of a point: the fingerprint of its data, model and training, whatever the seed."""
    training = {key: value for key, value in recipe.training.items() if key != "seed"}
    unseeded = replace(recipe, canonical={**recipe.canonical, "training": training})
    return unseeded.fingerprints["run"][:12]


def _point_faults(sweep: Sweep, point: Mapping[str, Value]) -> Iterator[Fault]:
    """Yield unknown axes, values that an axis does not have, and active axes without a value."""
    names = [axis.name for axis in sweep.axes]
    for name in point:
        if name not in names:
            message, hint = f"there is no axis `{name}`{did_you_mean(name, names)}", f"the axes are {', '.join(names)}"
            yield Fault(str(sweep.file), 0, 0, "point", name, message, hint)
    wrong = [axis for axis in sweep.axes if axis.name in point and not axis.accepts(point[axis.name])]
    messages = [(axis, axis.wrong_value(point[axis.name])) for axis in wrong]
    if not wrong:
        missing = sweep.axes_without_value(complete(sweep, point))
        messages = [(axis, f"the point has no `{axis.name}`") for axis in missing]
    for axis, message in messages:
        yield fault_at(axis.node.place, "point", axis.name, message, f"it is {axis.describe_values()}")


@dataclass(frozen=True)
class PointCost:
    """A point and its costs.

    `fingerprint` is "" if the recipe itself cannot be read, `at_most` says that the costs are upper bounds, since the
    size of a vocabulary is not known yet, `faults` are why it cannot be trained, `condition` is the
    one of `where` that excludes it, and `same_as` the number of an earlier point with the same fingerprint.
    """

    point: Point
    fingerprint: str = ""
    parameters: int = 0
    flops: int = 0
    state_bytes: int = 0
    at_most: bool = False
    faults: list[Fault] = field(default_factory=list)
    condition: str = ""
    same_as: int | None = None

    @property
    def status(self) -> Literal["excluded", "impossible", "double", "trained"]:
        """Whether the point is trained; a double is trained as the earlier point."""
        if self.condition:
            return "excluded"
        if self.faults:
            return "impossible"
        return "trained" if self.same_as is None else "double"

    @property
    def exclusion(self) -> str:
        """The condition that excludes it, with its costs where the condition depends on them."""
        costs = f"{self.parameters:,} parameters, {self.flops:,} FLOPs, {self.state_bytes:,} bytes of state"
        return f"`{self.condition}`" + (f": it has {format_bound(costs, self.at_most)}" if self.parameters else "")


class Costs(NamedTuple):
    """What a model costs, in the order of COSTS; `at_most`: these are upper bounds."""

    parameters: int
    flops: int
    state_bytes: int
    at_most: bool


class CostPlanner:
    """Plans the models of a sweep's points: each model once, since most axes do not change it.

    Where the data are on this machine, each tokenizer is trained once, in memory, so that costs are those of the model
    that will be trained. Otherwise they are upper bounds.
    """

    def __init__(self) -> None:
        self.costs: dict[str, Costs] = {}
        self.vocabularies: dict[str, dict[str, int] | None] = {}

    def plan(self, recipe: Recipe) -> Costs:
        """Return the costs of a recipe's model. Imports torch. Raises RecipeError with every fault."""
        parts = [recipe.model, recipe.dataset, recipe.decoding, recipe.training["scheduled_sampling"]]
        model = json.dumps(parts, sort_keys=True)
        if model not in self.costs:
            plan = recipe.plan(self.trained_vocabularies(recipe))
            self.costs[model] = Costs(plan.parameters, plan.flops, plan.state_bytes, plan.at_most)
        return self.costs[model]

    def trained_vocabularies(self, recipe: Recipe) -> dict[str, int] | None:
        """Return the sizes of a recipe's vocabularies, or None without the data on which its tokenizer is trained."""
        from composer.data.encoding import train_source_tokenizers
        from composer.data.sources import DataSource, find_hub_folder, side_names

        settings = {key: value for key, value in recipe.dataset.items() if key != "max_length"}
        folders, sides = recipe.folders(), side_names(recipe)
        key = json.dumps([settings, sides], sort_keys=True)
        if key not in self.vocabularies:
            self.vocabularies[key] = None
            if not recipe.dataset.get("hub") or find_hub_folder(recipe, folders):
                with suppress(DataError):  # which a training reports
                    tokenizers = train_source_tokenizers(DataSource(recipe, folders))
                    self.vocabularies[key] = {side: tokenizers.size(side) for side in sides}
        return self.vocabularies[key]


def cost_point(sweep: Sweep, point: Point, planner: CostPlanner | None = None) -> PointCost:
    """Return a point with the costs of its model, planned by the sweep's `planner`. Imports torch."""
    cost = PointCost(dict(point), condition=violated_condition(sweep, point))
    try:
        recipe = point_recipe(sweep, point)
        cost = replace(cost, fingerprint=point_fingerprint(recipe))
        if cost.condition:
            return cost
        costs = (planner or CostPlanner()).plan(recipe)
    except RecipeError as error:
        return replace(cost, faults=error.faults)
    return PointCost(cost.point, cost.fingerprint, *costs, condition=violated_condition(sweep, point, costs))


def violated_condition(sweep: Sweep, point: Mapping[str, Value], costs: Costs | None = None) -> str:
    """Return the first condition of `where` that a point violates, or ""; without costs, of those that name none."""
    values = {**point, **dict(zip(COSTS, costs or (), strict=False))}
    conditions = [one for one in sweep.where if costs is not None or not one.names & set(COSTS)]
    return next((condition.text for condition in conditions if not holds(condition, values)), "")


def list_points(sweep: Sweep) -> list[PointCost]:
    """Return every point with its costs or, of TPE, the first structures among which it chooses. Imports torch.

    Of points with the same fingerprint only the first is trained. Raises RecipeError if `where` excludes all of them.
    """
    if sweep.search.kind == "tpe":
        structures = _combinations(sweep.structure_values())
        points = _distinct((complete(sweep, values) for values in structures), MAX_STRUCTURES)
    else:
        points = grid_points(sweep) if sweep.search.kind == "grid" else random_points(sweep)
    planner = CostPlanner()
    first: dict[str, int] = {}
    costs = []
    for number, point in enumerate(points, start=1):
        cost = cost_point(sweep, point, planner)
        if cost.status == "trained" and first.setdefault(cost.fingerprint, number) != number:
            cost = replace(cost, same_as=first[cost.fingerprint])
        costs.append(cost)
    has_ranges = any(axis.labels is None for axis in sweep.axes)
    # of a range TPE has other numbers than those listed
    if costs and all(cost.condition for cost in costs) and not (sweep.search.kind == "tpe" and has_ranges):
        sizes = [(cost.parameters, cost.at_most) for cost in costs if cost.parameters]
        smallest = hint = ""
        if sizes:
            size, at_most = min(sizes)
            hint = DATA_HINT if at_most else ""
            smallest = f"; the smallest has {format_bound(f'{size:,} parameters', at_most)}"
        message, mark = f"`where` excludes all {len(costs)} points{smallest}", sweep.root.value["where"].mark
        raise RecipeError([fault_at(mark, "where", "where", message, f"write a weaker condition{hint}")])
    return costs


def axis_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield axes that replace nothing, whichever recipe extends the base, and faults of `zip` and `when`."""
    rules = schema_generator.load()
    extending = [axis for axis in sweep.axes if axis.kind == "extend"]
    roots = []
    for labels in islice(product(*(axis.labels or () for axis in extending)), MAX_BASES):
        root = apply_extensions(sweep.base_root, list(zip(extending, labels, strict=True)))
        roots.append(apply_settings(sweep.root, root, partial(first_setting, rules)))
    for axis in sweep.axes:
        if axis.kind == "replace" and not any(find_matches(root, axis, rules) for root in roots):
            yield no_match_fault(roots[0], axis, rules)
        if axis.zipped is not None:
            yield from _zip_faults(sweep, axis)
    known = {axis.name for axis in sweep.axes}
    if any(not dependencies(axis) <= known for axis in sweep.axes):
        return
    stuck = [axis for axis in sweep.axes if axis not in topological_order(sweep.axes)]
    cycle = [axis for axis in stuck if any(axis.name in dependencies(other) for other in stuck)]
    if cycle:
        key = cycle[0].node.value.get("when", cycle[0].node.value.get("zip"))
        message = f"these axes depend on each other: {', '.join(axis.name for axis in cycle)}"
        yield fault_at(key.place, "cycle", f"axes.{cycle[0].name}", message, "break the cycle")


def _zip_faults(sweep: Sweep, axis: Axis) -> Iterator[Fault]:
    """Yield what is wrong with a zipped axis: it needs a leader with a list of as many values."""
    leader = sweep.axis(str(axis.zipped))
    others = [other.name for other in sweep.axes if other is not axis]
    if leader is None or leader is axis:
        message = f"there is no other axis `{axis.zipped}`{did_you_mean(str(axis.zipped), others)}"
        hint = f"the others are {', '.join(others)}"
    elif leader.zipped is not None:
        message, hint = f"`{leader.name}` follows `{leader.zipped}` itself", f"write `zip: {leader.zipped}`"
    elif axis.labels is None or leader.labels is None:
        message = f"`{axis.name if axis.labels is None else leader.name}` has a range, and no list of values"
        hint = "write `values: [...]`"
    elif len(axis.labels) != len(leader.labels):
        message = f"`{axis.name}` has {len(axis.labels)} values, and `{leader.name}` {len(leader.labels)}"
        hint = "give both the same number of values"
    else:
        return
    yield fault_at(axis.node.value["zip"].mark, "zip", f"axes.{axis.name}.zip", message, hint)


def value_faults(sweep: Sweep) -> set[Fault]:
    """Return what the recipe language has against the values and blocks of a sweep, before any point is planned.

    Each value is tried at two points, among the first values of the other axes and among their last. What is wrong at
    both is the value's fault; what is wrong at all points that were tried is the base's.
    """
    own: set[Fault] = set()
    everywhere: set[Fault] | None = None
    for axis in sweep.axes:
        for value in axis.ends if axis.labels is None else axis.labels:
            faults = _common_faults(sweep, axis, value)
            if faults is not None:
                own |= {fault for fault in faults if fault.file == str(sweep.file)}
                everywhere = faults if everywhere is None else everywhere & faults
        if axis.when is not None and _is_never_active(sweep, axis):
            mark, path = axis.node.value["when"].mark, f"axes.{axis.name}.when"
            hint = "write one that holds somewhere, or remove the axis"
            own.add(fault_at(mark, "condition", path, "this condition never holds", hint))
    return own | (everywhere or set())


def probe_points(sweep: Sweep) -> Iterator[Point]:
    """Yield two points: the one of every axis's first value, and the one of every axis's last."""
    for end in (0, -1):
        yield complete(sweep, {axis.name: axis.ends[end] for axis in sweep.axes})


def _common_faults(sweep: Sweep, axis: Axis, value: Value) -> set[Fault] | None:
    """Return the faults of both probe points, changed as little as it takes for the axis to have that value.

    None if the axis has it at no point.
    """
    from composer.recipe.validation import schema_faults  # jsonschema takes a tenth of a second to import

    faults: list[set[Fault]] = []
    combinations = list(islice(_combinations(_dependency_values(sweep, axis)), MAX_TRIED))
    for end in (0, -1):
        others = {other.name: other.ends[end] for other in sweep.axes}
        points = (complete(sweep, others | combination | {axis.name: value}) for combination in combinations)
        point = next((one for one in points if axis.name in one and same_value(one[axis.name], value)), None)
        if point is not None:
            try:
                faults.append(set(schema_faults(apply_point(sweep, point), schema_generator.load())))
            except RecipeError as error:
                faults.append(set(error.faults))
    return set.intersection(*faults) if faults else None


def _is_never_active(sweep: Sweep, axis: Axis) -> bool:
    """Return whether no combination activates an axis; False where there are too many to try, or ranges among them."""
    values = _dependency_values(sweep, axis)
    tried = list(islice(_combinations(values), MAX_TRIED))
    if len(tried) == MAX_TRIED or any(other.labels is None for other in sweep.axes if other.name in values):
        return False
    return not any(axis.name in complete(sweep, {**combination, axis.name: axis.ends[0]}) for combination in tried)


def _combinations(values: Mapping[str, Sequence[Value]]) -> Iterator[Point]:
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _dependency_values(sweep: Sweep, axis: Axis) -> dict[str, Sequence[Value]]:
    """Return the values of the axes on which one depends, directly and through others; of ranges their ends."""
    names: set[str] = set()
    waiting = set(dependencies(axis))
    while waiting:
        name = waiting.pop()
        names.add(name)
        waiting |= {more for other in sweep.axes if other.name == name for more in dependencies(other)} - names
    return {other.name: other.labels or other.ends for other in sweep.axes if other.name in names}
