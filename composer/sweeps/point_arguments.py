"""A point of a sweep, chosen by `axis=value` arguments; the recipe of a file, a run or a point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer.errors import Fault, Mark, RecipeError, fault_at
from composer.recipe import schema_generator
from composer.recipe.recipe import Recipe, load
from composer.recipe.yaml_reader import COMMAND_LINE, Node, parse_value, read
from composer.run_dir import RUNS, RunDir, find_run
from composer.suggest import did_you_mean
from composer.sweeps.points import cost_point, point_recipe, where_error
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Axis, Point, Sweep, Value, is_active


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
    return any(argument.partition("=")[0] in axes.value for argument in arguments)


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
        raise where_error(sweep, message, "choose another point", cost.at_most)
    shown = sweep_overrides(point_recipe(sweep, point), sweep.name, point)
    recipe = point_recipe(replace(sweep, overrides=(*sweep.overrides, *shown)), point)
    folder = RUNS / recipe.name
    if any(arg.partition("=")[0] == "training.seed" for arg in overrides):
        folder /= f"seed-{recipe.training.seed}"
    return recipe, folder


def _names_axis(arg: str) -> bool:
    """True if an argument names an axis, and not a section of recipes or a path in one."""
    key = arg.partition("=")[0]
    is_identifier = "=" in arg and key.isidentifier()
    return is_identifier and key not in schema_generator.load()["properties"]


def parse_point(sweep: Sweep, args: Sequence[str]) -> Point:
    """Return the point of `axis=value` arguments; overrides and inactive axes are ignored.

    Of two values for one axis the later counts. Raises RecipeError with every fault.
    """
    arguments = {arg.partition("=")[0]: arg for arg in args if _names_axis(arg)}
    faults: list[Fault] = []
    values: Point = {}
    for name, arg in arguments.items():
        axis, text = sweep.axis(name), arg.partition("=")[2]
        if axis is None:
            names = [axis.name for axis in sweep.axes]
            message = f"the sweep has no axis `{name}`{did_you_mean(name, names)}"
            faults.append(_fault(name, message, f"its axes are {', '.join(names)}", arg))
        elif (value := _parse_value(axis, arg)) is not None:
            values[name] = value
        else:
            labels = [str(label) for label in axis.labels or ()]
            message = f"`{name}` is never `{text}`{did_you_mean(text, labels)}"
            faults.append(_fault(name, message, _hint(axis), arg))
    point = sweep.complete(values)
    for axis in sweep.axes:
        name = axis.name
        if axis.zipped is None and name not in {*point, *arguments} and is_active(axis, point):
            message = f"`{name}` of the sweep `{sweep.name}` has no value"
            faults.append(_fault(name, message, _hint(axis)))
        elif axis.zipped and name in point and values.get(name, point[name]) != point[name]:
            message = f"`{name}` is zipped to `{axis.zipped}`, so it is `{point[name]}` here"
            faults.append(_fault(name, message, "leave it out", arguments[name]))
    if faults:
        raise RecipeError(faults)
    return point


def _parse_value(axis: Axis, arg: str) -> Value | None:
    """Return the value of an argument: the YAML value, or the text itself if the axis has it.

    None if the axis has neither.
    """
    text = arg.partition("=")[2]
    value: Any = parse_value(arg, len(axis.name) + 1).value if text else None
    if axis.integer and isinstance(value, float) and value.is_integer():
        value = int(value)
    if axis.accepts(value):
        return value if axis.labels is None else axis.labels[axis.index(value)]
    return text if axis.accepts(text) else None


def _hint(axis: Axis) -> str:
    if axis.labels is not None:
        return "write one of " + ", ".join(f"`{axis.name}={label}`" for label in axis.labels)
    number = "whole number" if axis.integer else "number"
    return f"write `{axis.name}=` and a {number} from {axis.low} to {axis.high}"


def _fault(axis: str, message: str, hint: str, arg: str = "") -> Fault:
    """Return the fault of an argument, or of a missing one."""
    mark = Mark(COMMAND_LINE, 1, 1, len(axis) if arg else 1, arg)
    return fault_at(mark, "axis", axis, message, hint)
