"""Points before they train: one from `axis=value` arguments, the dry run of all, and a sweep file for W&B agents.

A W&B sweep file starts our own `train`, one point for each agent. Writing it does not need W&B installed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write
from composer.errors import Fault, RecipeError, RunError, did_you_mean, os_error_reason
from composer.formatting import align_columns, si
from composer.recipe import schema
from composer.recipe.node import COMMAND_LINE, Mark, fault_at
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import dump, parse_value
from composer.run_dir import RUNS
from composer.sweeps.search_space import (
    Costs,
    PointCost,
    _allowed_values,
    _axes_without_value,
    _not_a_value,
    check_not_all_excluded,
    cost_point,
    enumerate_points,
    point_recipe,
    probe_points,
)
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import COSTS, Axis, Point, Sweep, Value, complete

METHODS = {"grid": "grid", "random": "random", "tpe": "bayes"}
GOALS = {"min": "minimize", "max": "maximize"}
LOGGED = ("val/", "test/", "train/")
"""Prefixes of the metrics that a run logs."""
USAGE = "`wandb sweep THIS_FILE`, then `wandb agent ENTITY/PROJECT/ID` in this folder, on as many machines as you like."
MAX_STRUCTURES = 100
"""Structures that the dry run of a learning search lists; its points are not known before it runs."""


# ------------------------------------------------------------------------------------------- W&B agents


def write_wandb_sweep(file: Path, sweep: Sweep, overrides: Sequence[str], data: Path | None) -> list[str]:
    """Write the file that `wandb sweep FILE` takes, and return what W&B cannot do of this sweep, a sentence each.

    Raises:
        RunError: If the file exists or cannot be written, or W&B lacks a metric to search by.
    """
    if file.exists():
        raise RunError.of("this file is there already", "name another, or remove it", str(file))
    min_iterations = hyperband_iterations(sweep)
    lost = list(limitations(sweep, min_iterations))
    text = dump(wandb_config(sweep, overrides, data, min_iterations))
    try:
        atomic_write(file, "".join([f"# {USAGE}\n", *(f"# {line}\n" for line in lost), text]).encode())
    except OSError as error:
        raise RunError.of(f"this file cannot be written: {os_error_reason(error)}", "name another", str(file)) from None
    return lost


def wandb_config(
    sweep: Sweep, overrides: Sequence[str], data: Path | None, min_iterations: int | None
) -> dict[str, Any]:
    """Return the sweep in W&B's keys. `min_iterations` is hyperband's, None if nothing is stopped early."""
    goal = next((goal for goal in sweep.rank if goal.metric.startswith(LOGGED)), None)
    if goal is None and (sweep.search.kind == "tpe" or sweep.pruner is not None):
        hint = "write, for example, `rank: [{val/loss: min}]`"
        raise RunError.of("W&B searches by what a run logs, and `rank` has none of it", hint, str(sweep.file))
    config: dict[str, Any] = {"name": sweep.name, "method": METHODS[sweep.search.kind]}
    if goal is not None:
        config["metric"] = {"name": goal.metric, "goal": GOALS[goal.direction]}
    config["parameters"] = {axis.name: wandb_parameter(axis) for axis in sweep.axes if axis.zipped is None}
    if len(sweep.seeds) > 1:
        config["parameters"]["training.seed"] = {"values": list(sweep.seeds)}
    if sweep.pruner is not None and min_iterations is not None:
        config["early_terminate"] = {"type": "hyperband", "min_iter": min_iterations, "eta": sweep.pruner.reduction}
    if sweep.search.trials is not None:
        config["run_cap"] = sweep.search.trials * len(sweep.seeds)
    command = ["seqcomposer", "train", str(sweep.file), "${args_no_hyphens}", *overrides]
    config["command"] = command if data is None else [*command, "--data", str(data)]
    return config


def wandb_parameter(axis: Axis) -> dict[str, Any]:
    """Return one axis. W&B's `log_uniform` takes exponents, `log_uniform_values` takes values."""
    if axis.labels is not None:
        return {"values": list(axis.labels)}
    distributions = {
        (False, False): "uniform",
        (False, True): "log_uniform_values",
        (True, False): "int_uniform",
        (True, True): "q_log_uniform_values",
    }
    parameter = {"distribution": distributions[axis.integer, axis.log], "min": axis.low, "max": axis.high}
    return {**parameter, "q": 1} if axis.integer and axis.log else parameter


def hyperband_iterations(sweep: Sweep) -> int | None:
    """Return after how many validations hyperband begins: W&B counts how often the metric was logged, not steps."""
    if sweep.pruner is None or sweep.pruner.kind != "hyperband":
        return None
    try:
        interval = point_recipe(sweep, next(probe_points(sweep))).training["validate_every"]
    except RecipeError:
        return None
    return None if interval is None else max(1, math.ceil(sweep.pruner.min_steps / interval))


def limitations(sweep: Sweep, min_iterations: int | None) -> Iterator[str]:
    """Yield what W&B cannot do of a sweep, and what happens instead."""
    if any(axis.when is not None for axis in sweep.axes):
        yield "W&B has no `when`: an inactive axis gets a value, and `train` ignores it."
    if sweep.where:
        yield (
            "W&B has no `where`: `train` refuses such a point, with status 2. So that an agent goes on: "
            "WANDB_AGENT_DISABLE_FLAPPING=true WANDB_AGENT_MAX_INITIAL_FAILURES=1000."
        )
    if sweep.pruner is not None and sweep.pruner.kind == "median":
        yield "W&B has hyperband alone, not the median: no run is stopped early."
    elif sweep.pruner is not None and min_iterations is None:
        yield (
            "W&B counts validations, and an epoch may have any number of steps: no run is stopped early. "
            "Set `training.validate_every`."
        )


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


# ------------------------------------------------------------------------------------------- the dry run


@dataclass(frozen=True)
class ListedPoint:
    """One point with its number; `same_as` is the number of an earlier one with the same fingerprint."""

    number: int
    costed: PointCost
    same_as: int | None

    @property
    def status(self) -> str:
        """One of trained, excluded, impossible, or double: trained as another one."""
        if self.costed.excluded:
            return "excluded"
        if self.costed.faults:
            return "impossible"
        return "trained" if self.same_as is None else "double"


@dataclass(frozen=True)
class PointList:
    """The points of a sweep; if not `is_known`, the structures among which its search chooses."""

    sweep: Sweep
    rows: tuple[ListedPoint, ...]
    is_known: bool


def list_points(sweep: Sweep) -> PointList:
    """Return every point with its costs. Imports torch. Raises RecipeError if `where` excludes all of them."""
    is_known = sweep.search.kind != "tpe"
    planned: dict[str, Costs] = {}
    points = enumerate_points(sweep) if is_known else [cost_point(sweep, point, planned) for point in structures(sweep)]
    if not is_known and all(axis.labels is not None for axis in sweep.axes):
        check_not_all_excluded(sweep, points)
    first: dict[str, int] = {}
    rows = []
    for number, point in enumerate(points, start=1):
        earlier = first.setdefault(point.fingerprint, number) if point.can_train else number
        rows.append(ListedPoint(number, point, None if earlier == number else earlier))
    return PointList(sweep, tuple(rows), is_known)


def structures(sweep: Sweep) -> list[Point]:
    """Return the structures among which a search chooses: all labels, and both ends of ranges of whole numbers."""
    axes = [axis for axis in sweep.axes if axis.zipped is None]
    points: dict[str, Point] = {}
    for values in product(*map(_structure_values, axes)):
        point = complete(sweep, {axis.name: value for axis, value in zip(axes, values, strict=True)})
        points.setdefault(repr(point), point)
        if len(points) == MAX_STRUCTURES:
            break
    return list(points.values())


def _structure_values(axis: Axis) -> Sequence[Value]:
    return axis.labels or (axis.ends if axis.integer else axis.ends[:1])


def dry_run_json(listing: PointList) -> dict[str, Any]:
    """Return the points of a dry run as plain data."""
    return {
        "name": listing.sweep.name,
        "search": listing.sweep.search.kind,
        "trials": listing.sweep.search.trials,
        "seeds": list(listing.sweep.seeds),
        "known": listing.is_known,
        "points": [
            {
                "number": row.number,
                "point": row.costed.point,
                "fingerprint": row.costed.fingerprint,
                "status": row.status,
                "same_as": row.same_as,
                **{cost: getattr(row.costed, cost) for cost in COSTS},
                "condition": row.costed.condition,
                "errors": [fault.as_dict() for fault in row.costed.faults],
            }
            for row in listing.rows
        ],
    }


def dry_run_text(listing: PointList) -> str:
    """Return the points of a dry run as a table, the faults of impossible ones, and how many will be trained."""
    names = [axis.name for axis in listing.sweep.axes]
    rows = [["point", *names, "parameters", "FLOPs", "state bytes", ""]]
    for row in listing.rows:
        point = row.costed
        costs = [f"{point.parameters:,}", si(point.flops), f"{point.state_bytes:,}"] if point.parameters else [""] * 3
        values = [_listed_value(axis, point.point, listing.is_known) for axis in listing.sweep.axes]
        note = {
            "excluded": f"excluded by `{point.condition}`",
            "impossible": f"impossible: {point.faults[0].message if point.faults else ''}",
            "double": f"the same as {row.same_as}, trained once",
        }.get(row.status, "")
        rows.append([str(row.number), *values, *costs, note])
    table = align_columns(rows, [False, *(True for _ in names), False, False, False, True])
    return "\n".join([*table, "", *_fault_lines(listing.rows), _summary(listing)])


def _listed_value(axis: Axis, point: Point, is_known: bool) -> str:
    if axis.name not in point:
        return "-"
    if not is_known and axis.labels is None and not axis.integer:
        return f"{axis.low:g} to {axis.high:g}"
    value = point[axis.name]
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _fault_lines(rows: Sequence[ListedPoint]) -> list[str]:
    """Return each error of a recipe once, with the points that it makes impossible."""
    points: dict[str, list[int]] = {}
    for row in rows:
        if row.status == "impossible":
            points.setdefault(RecipeError(row.costed.faults).render().rpartition("\n")[0], []).append(row.number)
    lines: list[str] = []
    for error, numbers in points.items():
        which = f"point{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
        lines += [f"impossible, {which}:", error, ""]
    return lines


def _summary(listing: PointList) -> str:
    sweep, statuses = listing.sweep, [row.status for row in listing.rows]
    seeds = "" if len(sweep.seeds) == 1 else f", each with {len(sweep.seeds)} seeds"
    counts = [(statuses.count(name), name) for name in ("double", "excluded", "impossible")]
    others = ", ".join(f"{count} {name}" for count, name in counts if count)
    others = f"; {others}" if others else ""
    trained = statuses.count("trained")
    if listing.is_known:
        return f"{trained} point{'' if trained == 1 else 's'} to train{seeds}{others}"
    total = math.prod(len(_structure_values(axis)) for axis in sweep.axes if axis.zipped is None)
    more = " or more" if len(statuses) == MAX_STRUCTURES < total else ""
    trials = sweep.search.trials or 0
    points = f"{trials} point{'' if trials == 1 else 's'}"
    return f"{sweep.search.kind} chooses {points} among {trained}{more} structures{others}{seeds}"
