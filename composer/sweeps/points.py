"""Points before they train: one from `axis=value` arguments, the dry run of all, and a sweep file for W&B agents.

A W&B sweep file starts our own `train`, one point for each agent. Writing it does not need W&B installed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_write
from composer.errors import Fault, Mark, RecipeError, RunError, did_you_mean, fault_at, os_error_reason
from composer.formatting import align_columns, format_bound, si
from composer.recipe import schema_generator
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import COMMAND_LINE, dump, parse_value
from composer.run_dir import RUNS
from composer.sweeps.search_space import DATA_HINT, MAX_STRUCTURES, PointCost, cost_point, point_recipe, probe_points
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import COSTS, Axis, Point, Sweep, Value, complete

USAGE = "`wandb sweep THIS_FILE`, then `wandb agent ENTITY/PROJECT/ID` in this folder, on as many machines as you like."


def write_wandb_sweep(file: Path, sweep: Sweep, overrides: Sequence[str], data: Path | None) -> list[str]:
    """Write the file that `wandb sweep FILE` takes, and return what W&B cannot do of this sweep, a sentence each.

    Raises RunError if the file exists or cannot be written, or W&B lacks a metric to search by.
    """
    if file.exists():
        raise RunError.of("this file is there already", "name another, or remove it", str(file))
    min_iterations = hyperband_iterations(sweep)
    lost = list(limitations(sweep, min_iterations))
    comments = "".join(f"# {line}\n" for line in (USAGE, *lost))
    text = comments + dump(wandb_config(sweep, overrides, data, min_iterations))
    try:
        atomic_write(file, text.encode())
    except OSError as error:
        raise RunError.of(f"this file cannot be written: {os_error_reason(error)}", "name another", str(file)) from None
    return lost


def wandb_config(
    sweep: Sweep, overrides: Sequence[str], data: Path | None, min_iterations: int | None
) -> dict[str, Any]:
    """Return the sweep in W&B's keys. `min_iterations` is hyperband's, None if nothing is stopped early."""
    goal = next((goal for goal in sweep.rank if goal.metric.startswith(("val/", "test/", "train/"))), None)
    if goal is None and (sweep.search.kind == "tpe" or sweep.pruner is not None):
        hint = "write, for example, `rank: [{val/loss: min}]`"
        raise RunError.of("W&B optimises a logged metric, and `rank` names none", hint, str(sweep.file))
    config: dict[str, Any] = {"name": sweep.name, "method": {"tpe": "bayes"}.get(sweep.search.kind, sweep.search.kind)}
    if goal is not None:
        config["metric"] = {"name": goal.metric, "goal": "minimize" if goal.direction == "min" else "maximize"}
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
    bounds = {"min": axis.low, "max": axis.high}
    if axis.log and axis.integer:
        return {"distribution": "q_log_uniform_values", **bounds, "q": 1}
    kind = "log_uniform_values" if axis.log else "int_uniform" if axis.integer else "uniform"
    return {"distribution": kind, **bounds}


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
        settings = "WANDB_AGENT_DISABLE_FLAPPING=true WANDB_AGENT_MAX_INITIAL_FAILURES=1000"
        yield f"W&B has no `where`: `train` refuses such a point, with status 2. So that an agent goes on: {settings}."
    if sweep.pruner is not None and sweep.pruner.kind == "median":
        yield "W&B has hyperband alone, not the median: no run is stopped early."
    elif sweep.pruner is not None and min_iterations is None:
        reason = "W&B counts validations, and an epoch may have any number of steps: no run is stopped early"
        yield f"{reason}. Set `training.validate_every`."


class PointRun(NamedTuple):
    """A point to be trained as an ordinary run, and the run folder that it has by default."""

    point: Point
    recipe: Recipe
    folder: Path


def point_from_args(file: Path, args: Sequence[str], data: Path | None) -> PointRun:
    """Return the point that arguments choose: `axis=value` for each axis; all others are overrides of its recipe.

    Raises RecipeError with every fault of the arguments or the recipe, or if `where` excludes the point.
    """
    sweep = read_sweep(file, (), data)
    point = _parse_point(sweep, args)
    overrides = [arg for arg in args if sweep.axis(_key(arg)) is None]
    sweep = read_sweep(file, overrides, data)
    group = wandb_group_overrides(point_recipe(sweep, point).logging["wandb"], sweep.name, os.environ)
    sweep = replace(sweep, overrides=(*sweep.overrides, *group))
    cost = cost_point(sweep, point)
    if cost.faults:
        raise RecipeError(cost.faults)
    if cost.condition:
        message, mark = f"the sweep excludes this point by {cost.exclusion}", sweep.root.value["where"].mark
        hint = f"choose another point{DATA_HINT if cost.at_most else ''}"
        raise RecipeError([fault_at(mark, "where", "where", message, hint)])
    recipe = point_recipe(sweep, point)
    folder = RUNS / recipe.name
    if any(_key(arg) == "training.seed" for arg in overrides):
        folder /= f"seed-{recipe.training['seed']}"
    return PointRun(point, recipe, folder)


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
    faults: list[Fault] = []
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    names = [axis.name for axis in sweep.axes]
    for arg in args:
        key = _key(arg)
        if (axis := sweep.axis(key)) is not None:
            try:
                values[key], sources[key] = _parse_value(axis, arg), arg
            except RecipeError as error:
                faults.extend(error.faults)
        elif "=" in arg and key.isidentifier() and key not in schema_generator.load()["properties"]:
            message = f"the sweep has no axis `{key}`{did_you_mean(key, names)}"
            hint = "its axes are " + ", ".join(f"`{name}`" for name in names)
            faults.append(_argument_fault(key, message, hint, arg))
    point = complete(sweep, values)
    wrong = {fault.path for fault in faults}
    for axis in sweep.axes_without_value(point):
        if axis.name not in wrong:
            message = f"`{axis.name}` of the sweep `{sweep.name}` has no value"
            faults.append(_argument_fault(axis.name, message, _argument_hint(axis)))
    for axis in sweep.axes:
        name = axis.name
        if axis.zipped and name in point and values.get(name, point[name]) != point[name]:
            message = f"`{name}` is zipped to `{axis.zipped}`, so it is `{point[name]}` here"
            faults.append(_argument_fault(name, message, "leave it out", sources[name]))
    if faults:
        raise RecipeError(faults)
    return point


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
    raise RecipeError([_argument_fault(axis.name, axis.wrong_value(text), _argument_hint(axis), arg)])


def _argument_hint(axis: Axis) -> str:
    if axis.labels is not None:
        return "write one of " + ", ".join(f"`{axis.name}={label}`" for label in axis.labels)
    return f"write `{axis.name}=` and {axis.describe_values()}"


def _argument_fault(axis: str, message: str, hint: str, arg: str = "") -> Fault:
    """Return the fault of an argument, or of one that is missing."""
    return fault_at(Mark(COMMAND_LINE, 1, 1, max(1, len(_key(arg))), arg), "axis", axis, message, hint)


def _key(arg: str) -> str:
    return arg.partition("=")[0]


def dry_run_json(sweep: Sweep, points: Sequence[PointCost]) -> dict[str, Any]:
    """Return the points of a dry run as plain data."""
    keys = ("point", "fingerprint", "status", "same_as", *COSTS, "at_most", "condition")
    rows = [
        {"number": number, **{key: getattr(point, key) for key in keys}, "errors": [f.as_dict() for f in point.faults]}
        for number, point in enumerate(points, start=1)
    ]
    search = sweep.search
    head = {"name": sweep.name, "search": search.kind, "trials": search.trials, "seeds": list(sweep.seeds)}
    return {**head, "known": search.kind != "tpe", "points": rows}


def dry_run_text(sweep: Sweep, points: Sequence[PointCost]) -> str:
    """Return the points of a dry run as a table, the faults of impossible ones, and how many will be trained."""
    names = [axis.name for axis in sweep.axes]
    rows = [["point", *names, "parameters", "FLOPs", "state bytes", ""]]
    impossible: dict[str, list[str]] = {}
    for number, point in enumerate(points, start=1):
        costs = [f"{point.parameters:,}", si(point.flops), f"{point.state_bytes:,}"]
        costs = [format_bound(cost, point.at_most) if point.parameters else "" for cost in costs]
        values = [_format_value(axis, point.point, sweep.search.kind) for axis in sweep.axes]
        notes = {"excluded": f"excluded by `{point.condition}`", "double": f"the same as {point.same_as}, trained once"}
        note = notes.get(point.status, "")
        if point.status == "impossible":
            note = f"impossible: {point.faults[0].message}"
            errors = RecipeError(point.faults).render().rpartition("\n")[0]
            impossible.setdefault(errors, []).append(str(number))
        rows.append([str(number), *values, *costs, note])
    lines = [*align_columns(rows, [False, *(True for _ in names), False, False, False, True]), ""]
    for errors, numbers in impossible.items():
        lines += [f"impossible, point{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}:", errors, ""]
    return "\n".join([*lines, _summary(sweep, [point.status for point in points])])


def _format_value(axis: Axis, point: Point, search: str) -> str:
    if axis.name not in point:
        return "-"
    if search == "tpe" and axis.labels is None and not axis.integer:
        return f"{axis.low:g} to {axis.high:g}"
    value = point[axis.name]
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _summary(sweep: Sweep, statuses: Sequence[str]) -> str:
    seeds = "" if len(sweep.seeds) == 1 else f", each with {len(sweep.seeds)} seeds"
    counts = [(statuses.count(name), name) for name in ("double", "excluded", "impossible")]
    others = ", ".join(f"{count} {name}" for count, name in counts if count)
    others = f"; {others}" if others else ""
    trained = statuses.count("trained")
    if sweep.search.kind != "tpe":
        return f"{trained} point{'' if trained == 1 else 's'} to train{seeds}{others}"
    total = math.prod(len(values) for values in sweep.structure_values().values())
    more = " or more" if len(statuses) == MAX_STRUCTURES < total else ""
    trials = sweep.search.trials or 0
    points = f"{trials} point{'' if trials == 1 else 's'}"
    return f"{sweep.search.kind} chooses {points} among {trained}{more} structures{others}{seeds}"
