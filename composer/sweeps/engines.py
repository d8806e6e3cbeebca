"""Run a sweep: check it as a whole, then let this machine or a Ray cluster train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from composer.data.sources import check_files
from composer.errors import ComposerError, DataError, RunError
from composer.recipe.recipe import Recipe
from composer.sweeps.directory import check_resumable, lock_sweep
from composer.sweeps.points import PointCost, list_points, point_recipe, probe_recipe
from composer.sweeps.sweep import MEMORY_UNITS, Resources, Sweep, SweepDir, pruning_warnings
from composer.sweeps.workers import LocalScheduler, LocalWorkerPool
from composer.training.loggers import ProgressDisplay
from composer.training.preflight import plan_training

if TYPE_CHECKING:
    from composer.sweeps.tune import TuneScheduler


def run_sweep(
    sweep: Sweep, folder: Path, workers: int = 1, ray: str | None = None, joins: bool = False, retry: bool = False
) -> int:
    """Run a sweep in `folder`, or resume it there, and return the exit status: 0 if any trial has finished, else 1.

    ray: the address of a Ray cluster to train on instead of this machine; joins: whether other processes may run the
    same sweep; retry: whether to try those trials again that have failed. Raises RecipeError, DataError and RunError
    before anything is trained; KeyboardInterrupt and SystemExit after a signal, when all trainings have written a
    checkpoint and ended.
    """
    home = SweepDir(folder)
    trainable, recipe = check_sweep(sweep, home)
    with nullcontext() if joins else lock_sweep(home):
        scheduler = make_scheduler(sweep, home, trainable, workers, ray)
        for fault in pruning_warnings(sweep, recipe.training) if recipe else ():
            scheduler.display.say(fault.render())
        return scheduler.run(None if recipe is None else recipe.training["max_steps"], retry)


def make_scheduler(
    sweep: Sweep, home: SweepDir, points: list[PointCost], workers: int, ray: str | None
) -> LocalScheduler | TuneScheduler:
    """Return what trains a sweep: this machine, or the Ray cluster at an address. Raises RunError if it cannot."""
    if ray is None:
        return LocalScheduler(sweep, home, points, LocalWorkerPool(workers, sweep.resources))
    from composer.sweeps.tune import TuneScheduler, connect

    nodes = connect(ray)
    needed = fit_in_nodes(sweep.resources, nodes)
    if not needed["gpu"]:
        needed = fit_in_nodes(with_planned_memory(sweep, points, ProgressDisplay().say), nodes)
    return TuneScheduler(sweep, home, points, workers, needed)


def check_sweep(sweep: Sweep, home: SweepDir) -> tuple[list[PointCost], Recipe | None]:
    """Return the points that are known and can be trained, and the recipe of one, if known; write nothing.

    Raises RecipeError, DataError and RunError where all trials would fail.
    """
    check_resumable(home, sweep)
    points = [] if sweep.search.kind == "tpe" else list_points(sweep)
    trainable = [point for point in points if point.status == "trained"]
    if points and not trainable:
        hint = "list the faults with `--dry-run`"
        raise RunError.of("no point of this sweep can be trained", hint, str(sweep.file))
    recipe = point_recipe(sweep, trainable[0].point) if trainable else probe_recipe(sweep)
    # all other trials would fail over the same missing files, one by one
    if recipe is not None and (faults := check_files(recipe, recipe.folders())):
        raise DataError(faults)
    return trainable, recipe


def with_planned_memory(sweep: Sweep, points: Sequence[PointCost], say: Callable[[str], None]) -> Resources:
    """Return what a trial needs; without `memory` and GPUs, with what is planned for the largest of the points, if any.

    That is half as much again, for what lies between tensors, and 1.5 GiB for Python, torch and a worker. With a GPU
    the tensors are in its memory, and of the machine's nothing is known.
    """
    needs = sweep.resources
    if needs.memory is not None or needs.gpus or not points:
        return needs
    largest = max(points, key=lambda point: (point.parameters, point.flops))
    with suppress(ComposerError):  # which its training reports
        planned = plan_training(point_recipe(sweep, largest.point)).memory.bytes
        needs = replace(needs, memory=int(1.5 * planned + 1.5 * MEMORY_UNITS["G"]))
        say(f"no `memory` in `resources`: each trial asks for {needs.describe()}, as planned for the largest point")
    return needs


def fit_in_nodes(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what Tune asks for a trial: one CPU, and one GPU of a cluster that has any, unless more is said.

    nodes: What each node of the cluster has, as Ray names it. Raises RunError where no node has as much.
    """
    gpus = resources.gpus if resources.gpus is not None else float(any(node.get("GPU") for node in nodes))
    needed = {"CPU": float(resources.cpus or 1), "GPU": gpus, "memory": float(resources.memory or 0)}
    if not any(all(node.get(name, 0.0) >= amount for name, amount in needed.items()) for node in nodes):
        there = (Resources(n.get("GPU"), int(n.get("CPU", 0)), int(n.get("memory", 0))).describe() for n in nodes)
        message = f"no node of the cluster has {resources.describe()}; its nodes have {'; '.join(there) or 'nothing'}"
        raise RunError.of(message, "write less under `resources`, or add a node with `ray start --address ...`")
    return {name.lower(): amount for name, amount in needed.items()}
