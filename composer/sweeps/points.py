"""Points of a sweep: grid and random points, their recipes and their costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

from composer.errors import DataError, Fault, RecipeError, error_at
from composer.formatting import format_bound
from composer.recipe import schema_generator
from composer.recipe.fingerprints import fingerprints
from composer.recipe.own_blocks import refuse_own_blocks
from composer.recipe.recipe import Recipe, from_node
from composer.sweeps.conditions import holds
from composer.sweeps.progress import with_progress
from composer.sweeps.substitution import apply_point
from composer.sweeps.sweep import COSTS, Point, Sweep, Value, pruning_warnings
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
    # of a range TPE has other numbers than those listed
    is_complete = sweep.search.kind != "tpe" or all(axis.labels for axis in sweep.axes)
    if is_complete and costs and all(cost.condition for cost in costs):
        raise _excludes_all(sweep, costs)
    trained = [cost for cost in costs if cost.status == "trained"]
    has_all = [cost for cost in trained if sweep.seeds_of(cost) == sweep.seeds]
    if sweep.search.kind != "tpe" and sweep.seeds_where and trained and not has_all:
        message = f"it holds at none of the {len(trained)} points"
        mark = sweep.root.value["seeds_where"].mark
        raise error_at(mark, "seeds", "seeds_where", message, "write a weaker condition")
    return costs


def num_unlisted(sweep: Sweep, points: Sequence[PointCost]) -> int:
    """Return the number of structures of a TPE search that `list_points` has left out."""
    is_cut = sweep.search.kind == "tpe" and len(points) == MAX_STRUCTURES
    return sweep.num_structures - MAX_STRUCTURES if is_cut else 0


def _excludes_all(sweep: Sweep, costs: Sequence[PointCost]) -> RecipeError:
    texts = " and ".join(dict.fromkeys(f"`{cost.condition}`" for cost in costs))
    message = f"`where` excludes all {len(costs)} points, by {texts}"
    sizes = [(cost.parameters, cost.at_most) for cost in costs if cost.parameters]
    if not sizes:
        return where_error(sweep, message, "write a weaker condition", at_most=False)
    size, at_most = min(sizes)
    message += f"; the smallest has {format_bound(f'{size:,} parameters', at_most)}"
    return where_error(sweep, message, "write a weaker condition", at_most)


def where_error(sweep: Sweep, message: str, hint: str, at_most: bool) -> RecipeError:
    """Return the error of points that `where` excludes, by costs that may be upper bounds."""
    if at_most:
        hint += ", or name the folder of the data, `--data DIR`: costs then use the tokenizer's own"
        hint += " size, not its upper bound"
    return error_at(sweep.root.value["where"].mark, "where", "where", message, hint)
