"""A sweep in the words of Weights & Biases, whose agents then run our own `train`. Needs no W&B to be written."""

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
"""How the names of what a run logs begin."""
HOW = "`wandb sweep THIS_FILE`, then `wandb agent ENTITY/PROJECT/ID` in this folder, on as many machines as you like."


def write_wandb_sweep(file: Path, sweep: Sweep, given: Sequence[str], data: Path | None) -> list[str]:
    """Writes the file that `wandb sweep FILE` takes; what W&B cannot do of this sweep, a sentence each.

    given: `key=value` that is laid over every point. Raises RunError where the file is there already, or cannot be.
    """
    if file.exists():
        raise RunError.of("this file is there already", "name another, or remove it", str(file))
    iterations = stops_after(sweep)
    lost = list(limitations(sweep, iterations))
    text = dump(as_wandb(sweep, given, data, iterations))
    try:
        atomic_write(file, "".join([f"# {HOW}\n", *(f"# {line}\n" for line in lost), text]).encode())
    except OSError as error:
        raise RunError.of(f"this file cannot be written: {os_error_reason(error)}", "name another", str(file)) from None
    return lost


def as_wandb(sweep: Sweep, given: Sequence[str], data: Path | None, iterations: int | None) -> dict[str, Any]:
    """The sweep by W&B's keys. Raises RunError where its search needs a metric that no run logs.

    iterations: how often the metric is logged before hyperband ends a run; None where nothing is ended early.
    """
    goal = metric_of(sweep)
    told: dict[str, Any] = {"name": sweep.name, "method": METHODS[sweep.search.kind]}
    if goal is not None:
        told["metric"] = {"name": goal.metric, "goal": GOALS[goal.direction]}
    told["parameters"] = parameters(sweep)
    if sweep.prune is not None and iterations is not None:
        told["early_terminate"] = {"type": "hyperband", "min_iter": iterations, "eta": sweep.prune.reduction}
    if sweep.search.trials is not None:
        told["run_cap"] = sweep.search.trials * len(sweep.seeds)
    told["command"] = command(sweep.file, given, data)
    return told


def command(file: Path, given: Sequence[str], data: Path | None) -> list[str]:
    """What an agent runs: `train` of this sweep, with `axis=value` for the macro."""
    told = ["seqcomposer", "train", str(file), "${args_no_hyphens}", *given]
    return told if data is None else [*told, "--data", str(data)]


def metric_of(sweep: Sweep) -> Goal | None:
    """What W&B compares runs by: the first goal that a run logs. Raises RunError where a search needs one."""
    goal = next((goal for goal in sweep.rank if goal.metric.startswith(LOGGED)), None)
    if goal is None and (sweep.search.kind == "tpe" or sweep.prune is not None):
        fix = "write, for example, `rank: [{val/loss: min}]`"
        raise RunError.of("W&B searches by what a run logs, and `rank` has none of it", fix, str(sweep.file))
    return goal


def parameters(sweep: Sweep) -> dict[str, Any]:
    """Each axis that is not tied to another one, and the seeds where there are several."""
    told: dict[str, Any] = {axis.name: parameter(axis) for axis in sweep.axes if axis.zipped is None}
    if len(sweep.seeds) > 1:
        told["training.seed"] = {"values": list(sweep.seeds)}
    return told


def parameter(axis: Axis) -> dict[str, Any]:
    """One axis. W&B's `log_uniform` takes exponents, `log_uniform_values` takes values."""
    if axis.labels is not None:
        return {"values": list(axis.labels)}
    kinds = {
        (False, False): "uniform",
        (False, True): "log_uniform_values",
        (True, False): "int_uniform",
        (True, True): "q_log_uniform_values",
    }
    told = {"distribution": kinds[axis.whole, axis.log], "min": axis.low, "max": axis.high}
    return {**told, "q": 1} if axis.whole and axis.log else told


def stops_after(sweep: Sweep) -> int | None:
    """After how many validations hyperband begins: W&B counts how often the metric was logged, we count steps."""
    if sweep.prune is None or sweep.prune.kind != "hyperband":
        return None
    try:
        every = point_recipe(sweep, first_point(sweep)).training["validate_every"]
    except RecipeError:
        return None
    return None if every is None else max(1, math.ceil(sweep.prune.min_steps / every))


def limitations(sweep: Sweep, iterations: int | None) -> Iterator[str]:
    """What W&B cannot do of a sweep, and what happens instead."""
    if any(axis.when is not None for axis in sweep.axes):
        yield "There is no `when`: an axis that is not active gets a value, and `train` passes over it."
    if sweep.where:
        yield (
            "There is no `where`: `train` refuses such a point, with status 2. So that an agent goes on: "
            "WANDB_AGENT_DISABLE_FLAPPING=true WANDB_AGENT_MAX_INITIAL_FAILURES=1000."
        )
    if sweep.prune is not None and sweep.prune.kind == "median":
        yield "There is hyperband alone, not the median: no run is ended early."
    elif sweep.prune is not None and iterations is None:
        yield (
            "It counts validations, and an epoch may have any number of steps: no run is ended early. "
            "Say `training.validate_every`."
        )
