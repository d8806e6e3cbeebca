"""Lightning's Trainer for a recipe, and its chatter taken away."""

from __future__ import annotations

import ctypes
import logging
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.strategies import DDPStrategy, Strategy
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

from composer.errors import Fault, RecipeError
from composer.recipe.recipe import Recipe
from composer.training.checkpointing import AtomicCheckpointIO
from composer.training.distributed import (
    Launcher,
    NoSignals,
    cluster_environment,
    exit_with_launcher,
    external_launcher,
    launched_world,
)
from composer.training.sharding import sharded

NAMES = {"bf16": "bf16-mixed", "16": "16-mixed"}
"""What a recipe may say for short."""
PLACES = {
    "gpu": ("trainer", "accelerator"),
    "XLA": ("trainer", "accelerator"),
    "xla": ("trainer", "accelerator"),
    "recision": ("training", "precision"),
}
"""What a complaint of Lightning's speaks of, and where that is said in a recipe, beside the keys of `trainer:`."""
OURS = ("enable_progress_bar", "log_every_n_steps", "timeout_minutes")
"""What of `trainer:` is not Lightning's to obey."""


def build_trainer(recipe: Recipe, callbacks: list[Callback]) -> Trainer:
    """The trainer: `trainer:` handed on, with what `training:` owns and with nothing of Lightning's own beside it."""
    given = {key: value for key, value in recipe.trainer.items() if value is not None and key not in OURS}
    training = recipe.training
    precision = str(training["precision"])
    owned: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "num_sanity_val_steps": 0,
        "enable_autolog_hparams": False,
        "max_epochs": -1,
        "precision": NAMES.get(precision, precision),
        "accumulate_grad_batches": training["accumulate"],
        "gradient_clip_val": training["clip_norm"],
        "check_val_every_n_epoch": None,
        "val_check_interval": 1 << 62,
        "use_distributed_sampler": False,
        "callbacks": callbacks,
    }
    exit_with_launcher()
    try:
        machine = resolve_devices(recipe)
        if precision == "16-mixed" and uses_cpu(machine["accelerator"]):
            raise RecipeError([too_narrow(recipe)])
        strategy = make_strategy(machine, timedelta(minutes=recipe.trainer["timeout_minutes"]))
        plugins = [AtomicCheckpointIO(), cluster_environment()]
        return launching(Trainer(**{**given, **machine, **owned, "strategy": strategy, "plugins": plugins}))
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise RecipeError([lightning_fault(recipe, error)]) from error


def too_narrow(recipe: Recipe) -> Fault:
    """A CPU and 16-mixed: Lightning would train in bf16-mixed, and call it by the other name."""
    message = "a CPU does not train in `16-mixed`, and there is no GPU"
    if recipe.trainer["accelerator"] == "cpu":
        message = "a CPU does not train in `16-mixed`"
    return recipe.fault("value", ("training", "precision"), message, "write `precision: bf16-mixed`, or `32`")


def launching(trainer: Trainer) -> Trainer:
    """The trainer, with this project's ends of processes in place of Lightning's."""
    strategy = trainer.strategy
    if strategy.launcher is None or isinstance(strategy.launcher, _SubprocessScriptLauncher):
        environment = trainer._accelerator_connector.cluster_environment
        strategy._launcher = Launcher(environment, trainer.num_devices, trainer.num_nodes)
    trainer._signal_connector = NoSignals(trainer)
    return trainer


def lightning_fault(recipe: Recipe, error: Exception) -> Fault:
    """What Lightning does not accept, told at the place in the recipe that it most likely means."""
    said = " ".join(str(error).split())
    places = {key: ("trainer", key) for key in recipe.trainer} | PLACES
    path = next((path for key, path in places.items() if key in said), ("trainer",))
    return recipe.fault("trainer", path, f"Lightning cannot train so here: {said}", "change it, or remove it")


# ------------------------------------------------------------------------------------------- the machine


def resolve_devices(recipe: Recipe) -> dict[str, Any]:
    """The accelerator, the devices of each machine, the machines and the strategy, where the recipe leaves them open.

    Devices and machines are those of the launcher (torchrun, srun) that started this process among others. Else, where
    there is only a CPU, there is one process, since its threads already use the whole machine. Raises RecipeError
    where the recipe says something else than the launcher has done.
    """
    found = {key: recipe.trainer[key] for key in ("accelerator", "devices", "num_nodes", "strategy")}
    if external_launcher():
        for key, there in zip(("devices", "num_nodes"), launched_world(), strict=True):
            if found[key] == "auto":
                found[key] = there
            elif num_devices(found[key]) != there:
                raise RecipeError([disagreeing(recipe, key, there)])
    elif uses_cpu(found["accelerator"]) and found["devices"] == "auto":
        found |= {"accelerator": "cpu", "devices": 1}
    found["num_nodes"] = 1 if found["num_nodes"] == "auto" else found["num_nodes"]
    if found["strategy"] == "auto" and is_distributed(found):
        found["strategy"] = "ddp"
    return found


def uses_cpu(accelerator: str) -> bool:
    """Whether a CPU is meant, or nothing else is there."""
    return accelerator == "cpu" or (
        accelerator == "auto" and not torch.cuda.is_available() and not torch.backends.mps.is_available()
    )


def is_distributed(machine: Mapping[str, Any]) -> bool:
    """Whether several processes share the work; those of a TPU are Lightning's own matter."""
    if machine["accelerator"] in ("mps", "tpu"):
        return False
    return machine["num_nodes"] * (num_devices(machine["devices"]) or torch.cuda.device_count()) > 1


def num_devices(devices: Any) -> int:
    """How many devices are meant; 0 where all are."""
    return len(devices) if isinstance(devices, list) else 0 if devices == "auto" else devices


def disagreeing(recipe: Recipe, key: str, there: int) -> Fault:
    """What a recipe says of machines and a launcher has not done."""
    what = "processes on each machine" if key == "devices" else "machines"
    message = f"{external_launcher()} has started {there} {what}, and `{key}` is {recipe.trainer[key]}"
    return recipe.fault("trainer", ("trainer", key), message, f"write `{key}: auto`, or start as many")


def make_strategy(machine: Mapping[str, Any], timeout: timedelta) -> Strategy | str:
    """How the processes work together; one that waits for another longer than `timeout` ends."""
    if machine["strategy"] == "fsdp":
        return sharded(timeout)
    return DDPStrategy(timeout=timeout) if machine["strategy"] == "ddp" else "auto"


def silence_lightning() -> None:
    """Silences Lightning's tips; its errors stay."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", module="pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGE = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Has glibc give freed memory back neither at once nor page by page. Does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE)
        mallopt(M_TOP_PAD, 64 << 20)
