"""Devices of a training: accelerator, devices, machines, and Lightning's strategy."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import torch

from blocks.core.fixes import write
from composer.errors import RecipeError
from composer.model.machine import runs_on_cpu
from composer.recipe.recipe import Recipe
from composer.recipe.registry import CPU_REFUSES_16
from composer.training.distributed import external_launcher, launched_world
from composer.training.lightning import DDPStrategy, Strategy
from composer.training.sharding import ShardedStrategy


@dataclass(frozen=True)
class Devices:
    """The devices of a training, by the names of Lightning's arguments."""

    accelerator: str
    devices: int | list[int] | Literal["auto"]
    num_nodes: int
    strategy: str

    @property
    def processes(self) -> int:
        """Processes that train together, one for each device."""
        if self.devices == "auto":  # one on a Mac, and on a machine that plans for others' GPUs
            return self.num_nodes * max(1, torch.cuda.device_count())
        return self.num_nodes * count_devices(self.devices)


def count_devices(devices: int | list[int]) -> int:
    """Return the number of devices that `trainer.devices` asks for."""
    return len(devices) if isinstance(devices, list) else devices


def resolve_devices(recipe: Recipe) -> Devices:
    """Return the devices of a recipe with every `auto` resolved.

    Under a launcher (torchrun, srun) devices and machines are what it started. Otherwise a CPU gets
    one process, whose threads already use the whole machine, and a notebook one device. Raises
    RecipeError if the recipe contradicts the launcher, asks a notebook for several devices, or a
    CPU for `16-mixed`.
    """
    chosen = recipe.trainer.as_data()
    accelerator, devices, nodes = chosen["accelerator"], chosen["devices"], chosen["num_nodes"]
    on_cpu = runs_on_cpu(accelerator)
    if external_launcher():
        local_world, world_nodes = launched_world()
        devices = _launched(recipe, "devices", local_world)
        nodes = _launched(recipe, "num_nodes", world_nodes)
    elif on_cpu and devices == "auto":
        accelerator, devices = "cpu", 1
    resolved = Devices(accelerator, devices, 1 if nodes == "auto" else nodes, chosen["strategy"])
    # a rank imports no notebook and no console; a TPU's processes are Lightning's own matter
    if hasattr(sys, "ps1") and accelerator != "tpu":
        resolved = _in_notebook(recipe, resolved)
    if resolved.strategy == "auto" and accelerator not in ("mps", "tpu") and resolved.processes > 1:
        resolved = replace(resolved, strategy="ddp")
    if str(recipe.training.precision) == "16-mixed" and on_cpu:
        # Lightning would train in bf16-mixed, and call it 16-mixed
        message, fix = CPU_REFUSES_16
        message = f"{message}, and there is no GPU"
        raise RecipeError([recipe.fault("value", ("training", "precision"), message, fix)])
    return resolved


def _launched(recipe: Recipe, key: str, started: int) -> int | list[int]:
    """Return `trainer.KEY` under a launcher. Raises RecipeError if the recipe differs."""
    wanted: int | list[int] | Literal["auto"] = recipe.trainer.as_data()[key]
    if wanted == "auto":
        return started
    if count_devices(wanted) == started:
        return wanted
    noun = "processes on each machine" if key == "devices" else "machines"
    path = ("trainer", key)
    message = f"{external_launcher()} has started {started} {noun}, and `{key}` is {wanted}"
    fix = write(path, "auto", ", or start as many")
    raise RecipeError([recipe.fault("trainer", path, message, fix)])


def _in_notebook(recipe: Recipe, devices: Devices) -> Devices:
    """Return the one device of a notebook or a console. Raises RecipeError for several."""
    if devices.devices == "auto":
        devices = replace(devices, devices=1)
    if devices.processes > 1:
        message = (
            "several devices need a process each, which cannot import what a notebook or a"
            " console defines"
        )
        path = ("trainer", "devices")
        fix = write(path, 1, ", or train by `seqcomposer train` or a script")
        raise RecipeError([recipe.fault("trainer", path, message, fix)])
    return devices


def make_strategy(devices: Devices, timeout: timedelta) -> Strategy | str:
    """Return Lightning's strategy; a process that waits for another longer than `timeout` ends."""
    if devices.strategy == "fsdp":
        return ShardedStrategy(
            devices.processes, 1, save_distributed_checkpoint=False, timeout=timeout
        )
    return DDPStrategy(timeout=timeout) if devices.strategy == "ddp" else "auto"
