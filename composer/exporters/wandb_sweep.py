"""A sweep as a sweep file of Weights & Biases, whose agents start our own `train`, one point each.

Writing the file does not need W&B installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_new_file
from composer.errors import RunError
from composer.recipe.metrics import training_key
from composer.recipe.yaml_reader import dump
from composer.sweeps.points import probe_recipe
from composer.sweeps.sweep import Axis, Sweep


class Hyperband(NamedTuple):
    """W&B's hyperband: after how many validations it begins, its reduction, and the key by which each logs a score."""

    min_iterations: int
    reduction: int
    key: str


def write_wandb_sweep(file: Path, sweep: Sweep, overrides: Sequence[str], data: Path | None) -> list[str]:
    """Write the file that `wandb sweep FILE` takes, and return what W&B cannot do of this sweep, a sentence each.

    Raises RunError if the file exists or cannot be written, or W&B lacks a metric to search by.
    """
    hyperband = read_hyperband(sweep)
    lost = list(limitations(sweep, hyperband))
    usage = (
        "`wandb sweep THIS_FILE`, then `wandb agent ENTITY/PROJECT/ID` in this folder, on as many machines as you like."
    )
    comments = "".join(f"# {line}\n" for line in (usage, *lost))
    text = comments + dump(wandb_config(sweep, overrides, data, hyperband))
    with atomic_new_file(file) as target:
        target.write(text.encode())
    return lost


def wandb_config(
    sweep: Sweep, overrides: Sequence[str], data: Path | None, hyperband: Hyperband | None
) -> dict[str, Any]:
    """Return the sweep in W&B's keys. Without `hyperband` nothing is stopped early."""
    goal = next((goal for goal in sweep.rank if goal.metric.startswith(("val/", "test/"))), None)
    if goal is None and (sweep.search.kind == "tpe" or sweep.pruner is not None):
        hint = "write, for example, `rank: [{val/loss: min}]`"
        raise RunError.of("W&B optimises a logged metric, and `rank` names none", hint, str(sweep.file))
    config: dict[str, Any] = {"name": sweep.name, "method": {"tpe": "bayes"}.get(sweep.search.kind, sweep.search.kind)}
    if goal is not None:
        name = goal.metric if hyperband is None else hyperband.key
        config["metric"] = {"name": name, "goal": "minimize" if goal.direction == "min" else "maximize"}
    config["parameters"] = {axis.name: wandb_parameter(axis) for axis in sweep.axes if axis.zipped is None}
    repeats = sweep.seeds if repeats_all(sweep) else sweep.seeds[:1]
    if len(sweep.seeds) > 1:
        config["parameters"]["training.seed"] = {"values": [*repeats]} if len(repeats) > 1 else {"value": repeats[0]}
    if hyperband is not None:
        settings = {"min_iter": hyperband.min_iterations, "eta": hyperband.reduction}
        config["early_terminate"] = {"type": "hyperband", **settings}
    if sweep.search.trials is not None:
        config["run_cap"] = sweep.search.trials
    command = ["seqcomposer", "train", str(sweep.file), "${args_no_hyphens}", *overrides]
    config["command"] = command if data is None else [*command, "--data", str(data)]
    return config


def repeats_all(sweep: Sweep) -> bool:
    """Return whether W&B trains every point with every seed; a search would choose among them."""
    return len(sweep.seeds) == 1 or (sweep.search.kind == "grid" and not sweep.seeds_where)


def wandb_parameter(axis: Axis) -> dict[str, Any]:
    """Return one axis. W&B's `log_uniform` takes exponents, `log_uniform_values` takes values."""
    if axis.labels is not None:
        return {"values": list(axis.labels)}
    bounds = {"min": axis.low, "max": axis.high}
    if axis.log and axis.integer:
        return {"distribution": "q_log_uniform_values", **bounds, "q": 1}
    kind = "log_uniform_values" if axis.log else "int_uniform" if axis.integer else "uniform"
    return {"distribution": kind, **bounds}


def read_hyperband(sweep: Sweep) -> Hyperband | None:
    """Return when hyperband begins: W&B counts how often the metric was logged, not steps. None where it never does."""
    recipe, pruner, metric = probe_recipe(sweep), sweep.pruner, sweep.rank[0].metric
    if recipe is None or pruner is None or pruner.kind != "hyperband" or recipe.training["validate_every"] is None:
        return None
    iterations = math.ceil(pruner.first_step(recipe.training["max_steps"]) / recipe.training["validate_every"])
    return Hyperband(iterations, pruner.reduction, metric if recipe.validates_by_search else training_key(metric))


def limitations(sweep: Sweep, hyperband: Hyperband | None) -> Iterator[str]:
    """Yield what W&B cannot do of a sweep, and what happens instead."""
    if any(axis.when is not None for axis in sweep.axes):
        yield "W&B has no `when`: an inactive axis gets a value, and `train` ignores it."
    if sweep.where:
        settings = "WANDB_AGENT_DISABLE_FLAPPING=true WANDB_AGENT_MAX_INITIAL_FAILURES=1000"
        yield f"W&B has no `where`: `train` refuses such a point, with status 2. So that an agent goes on: {settings}."
    if not repeats_all(sweep):
        others = ", ".join(map(str, sweep.seeds[1:]))
        reason = "W&B has no `seeds_where`" if sweep.search.kind == "grid" else "W&B would search among the seeds"
        yield (
            f"{reason}: every point is trained with seed {sweep.seeds[0]} alone. "
            f"Train the best ones with {others} too: `seqcomposer train {sweep.file} AXIS=VALUE ... training.seed=N`."
        )
    if sweep.pruner is not None and sweep.pruner.kind == "median":
        yield "W&B has only hyperband, not the median: no run is stopped early."
    elif sweep.pruner is not None and hyperband is None:
        reason = "W&B counts validations, and an epoch may have any number of steps: no run is stopped early"
        yield f"{reason}. Set `training.validate_every`."
