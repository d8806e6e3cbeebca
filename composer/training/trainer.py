"""Lightning's Trainer for a recipe: accelerator, devices, strategy, precision, callbacks and loggers."""

from __future__ import annotations

import ctypes
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Checkpoint, ProgressBar
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import DDPStrategy, Strategy

from composer.errors import Fault, RecipeError
from composer.recipe.recipe import Recipe
from composer.training.checkpointing import AtomicCheckpointIO
from composer.training.distributed import cluster_environment, exit_with_launcher, external_launcher, launched_world
from composer.training.sharding import ShardedStrategy

PRECISIONS = {"bf16": "bf16-mixed", "16": "16-mixed"}
"""Short forms that a recipe may use."""
RECIPE_PLACES = {
    "gpu": ("trainer", "accelerator"),
    "XLA": ("trainer", "accelerator"),
    "xla": ("trainer", "accelerator"),
    "recision": ("training", "precision"),
}
"""Where in a recipe the cause of a Lightning error lies, by a word of its message; besides the keys of `trainer:`."""
OUR_KEYS = ("enable_progress_bar", "log_every_n_steps", "timeout_minutes")
"""Keys of `trainer:` that this project obeys itself."""


def build_trainer(
    recipe: Recipe, loop: Callback, callbacks: Sequence[Callback] = (), loggers: Sequence[Logger] = ()
) -> Trainer:
    """Return the Trainer that `trainer:` and `training:` of a recipe describe, with `loop` as its first callback.

    Raises:
        RecipeError: If Lightning refuses the combination, at the place in the recipe that it most likely means.
    """
    training = recipe.training
    every = training["validate_every"]
    precision = str(training["precision"])
    arguments = {key: value for key, value in recipe.trainer.items() if value is not None and key not in OUR_KEYS}
    exit_with_launcher()
    try:
        machine = resolve_devices(recipe)
        if precision == "16-mixed" and uses_cpu(machine["accelerator"]):
            raise RecipeError([half_precision_fault(recipe)])
        arguments |= machine | {
            "strategy": make_strategy(machine, timedelta(minutes=recipe.trainer["timeout_minutes"])),
            "plugins": [AtomicCheckpointIO(), cluster_environment()],
            "callbacks": [loop, *callbacks],
            "logger": [*loggers] or False,
            # Lightning's own would be added to those that the caller gives: nothing is written twice
            "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
            "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
            "enable_autolog_hparams": False,
            "num_sanity_val_steps": 0,
            "max_epochs": -1,  # the loop's budget ends the training
            "precision": PRECISIONS.get(precision, precision),
            "accumulate_grad_batches": training["accumulate"],
            "gradient_clip_val": training["clip_norm"],
            # every so many batches; or at the end of an epoch, and then the batch sampler ends with each
            "val_check_interval": every * training["accumulate"] if every else 1.0,
            "check_val_every_n_epoch": None if every else 1,
            "use_distributed_sampler": False,  # the batch sampler splits batches over devices itself
        }
        return Trainer(**arguments)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise RecipeError([lightning_fault(recipe, error)]) from error


def half_precision_fault(recipe: Recipe) -> Fault:
    """Return the fault of `16-mixed` on a CPU: Lightning would train in bf16-mixed, and call it 16-mixed."""
    message = "a CPU does not train in `16-mixed`, and there is no GPU"
    if recipe.trainer["accelerator"] == "cpu":
        message = "a CPU does not train in `16-mixed`"
    return recipe.fault("value", ("training", "precision"), message, "write `precision: bf16-mixed`, or `32`")


def lightning_fault(recipe: Recipe, error: Exception) -> Fault:
    """Return an error of Lightning's Trainer as a fault at the place in the recipe that it most likely means."""
    message = " ".join(str(error).split())
    places = {key: ("trainer", key) for key in recipe.trainer} | RECIPE_PLACES
    path = next((path for word, path in places.items() if word in message), ("trainer",))
    return recipe.fault("trainer", path, f"Lightning cannot train so here: {message}", "change it, or remove it")


# ------------------------------------------------------------------------------------------- the machine


def resolve_devices(recipe: Recipe) -> dict[str, Any]:
    """Return accelerator, devices per machine, machines and strategy, with every `auto` of the recipe resolved.

    Under a launcher (torchrun, srun) devices and machines are what it started. Otherwise a CPU gets one process, whose
    threads already use the whole machine.

    Raises:
        RecipeError: If the recipe contradicts the launcher.
    """
    machine = {key: recipe.trainer[key] for key in ("accelerator", "devices", "num_nodes", "strategy")}
    if external_launcher():
        for key, started in zip(("devices", "num_nodes"), launched_world(), strict=True):
            if machine[key] == "auto":
                machine[key] = started
            elif num_devices(machine[key]) != started:
                raise RecipeError([launcher_fault(recipe, key, started)])
    elif uses_cpu(machine["accelerator"]) and machine["devices"] == "auto":
        machine |= {"accelerator": "cpu", "devices": 1}
    machine["num_nodes"] = 1 if machine["num_nodes"] == "auto" else machine["num_nodes"]
    if machine["strategy"] == "auto" and is_distributed(machine):
        machine["strategy"] = "ddp"
    return machine


def uses_cpu(accelerator: str) -> bool:
    """Return True if a CPU is asked for, or there is nothing else."""
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerator == "cpu" or (accelerator == "auto" and not has_gpu)


def is_distributed(machine: Mapping[str, Any]) -> bool:
    """Return True if several processes train together; those of a TPU are Lightning's own matter."""
    if machine["accelerator"] in ("mps", "tpu"):
        return False
    return machine["num_nodes"] * (num_devices(machine["devices"]) or torch.cuda.device_count()) > 1


def num_devices(devices: Any) -> int:
    """Return how many devices `trainer.devices` asks for; 0 for all."""
    return len(devices) if isinstance(devices, list) else 0 if devices == "auto" else devices


def launcher_fault(recipe: Recipe, key: str, started: int) -> Fault:
    """Return the fault of a recipe that says another number of processes or machines than the launcher started."""
    noun = "processes on each machine" if key == "devices" else "machines"
    message = f"{external_launcher()} has started {started} {noun}, and `{key}` is {recipe.trainer[key]}"
    return recipe.fault("trainer", ("trainer", key), message, f"write `{key}: auto`, or start as many")


def make_strategy(machine: Mapping[str, Any], timeout: timedelta) -> Strategy | str:
    """Return Lightning's strategy; a process that waits for another longer than `timeout` ends."""
    if machine["strategy"] == "fsdp":
        devices = num_devices(machine["devices"]) or torch.cuda.device_count()
        return ShardedStrategy(
            data_parallel_size=machine["num_nodes"] * devices,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )
    return DDPStrategy(timeout=timeout) if machine["strategy"] == "ddp" else "auto"


def silence_lightning() -> None:
    """Silence the tips and warnings of Lightning; its errors stay."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", module="pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


# ------------------------------------------------------------------------------------------- the C library's memory

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: the next training step asks for it again. Does nothing on other systems."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, (1 << 31) - 1)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(M_TOP_PAD, 64 << 20)
