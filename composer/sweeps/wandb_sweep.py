"""Export of a sweep as a Weights & Biases sweep file, whose agents run our own `train`. Does not need W&B installed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write
from composer.errors import RecipeError, RunError, os_error_reason
from composer.recipe.yaml_reader import dump
from composer.sweeps.axes import Axis, Goal, Sweep
from composer.sweeps.search_space import first_point, point_recipe

METHODS = {"grid": "grid", "random": "random", "tpe": "bayes"}
GOALS = {"min": "minimize", "max": "maximize"}
LOGGED = ("val/", "test/", "train/")
"""Prefixes of the metrics that a run logs."""
USAGE = "`wandb sweep THIS_FILE`, then `wandb agent ENTITY/PROJECT/ID` in this folder, on as many machines as you like."


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
    goal = wandb_metric(sweep)
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


def wandb_metric(sweep: Sweep) -> Goal | None:
    """Return the first goal that a run logs. Raises RunError if there is none and the search or pruner needs one."""
    goal = next((goal for goal in sweep.rank if goal.metric.startswith(LOGGED)), None)
    if goal is None and (sweep.search.kind == "tpe" or sweep.pruner is not None):
        hint = "write, for example, `rank: [{val/loss: min}]`"
        raise RunError.of("W&B searches by what a run logs, and `rank` has none of it", hint, str(sweep.file))
    return goal


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
        interval = point_recipe(sweep, first_point(sweep)).training["validate_every"]
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
