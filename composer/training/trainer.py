"""Lightning's Trainer of a recipe."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from blocks.core.fixes import Fix, Remove
from composer.errors import KeyPath, RecipeError
from composer.recipe.recipe import Recipe
from composer.training.checkpointing import AtomicCheckpointIO
from composer.training.devices import make_strategy, resolve_devices
from composer.training.distributed import cluster_environment, exit_with_launcher
from composer.training.lightning import (
    Callback,
    Checkpoint,
    Logger,
    MisconfigurationException,
    ProgressBar,
    Trainer,
)

OWN_SETTINGS = ("enable_progress_bar", "log_every_n_steps", "timeout_minutes")
"""Settings of `trainer` that are not Lightning's to read."""
PRECISIONS = {"bf16": "bf16-mixed", "16": "16-mixed"}
"""Short forms of `training.precision`."""


def build_trainer(
    recipe: Recipe, callbacks: Sequence[Callback] = (), loggers: Sequence[Logger] = ()
) -> Trainer:
    """Return the Trainer that `trainer:` and `training:` of a recipe describe.

    Raises RecipeError if Lightning refuses the combination, at the place in the recipe that it most
    likely means.
    """
    exit_with_launcher()
    try:
        return Trainer(**trainer_arguments(recipe, callbacks, loggers))
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        message = " ".join(str(error).split())
        path = refused_path(recipe, message)
        cause = f"Lightning refuses this configuration: {message}"
        fix = Fix("change it, or remove it", Remove(path) if len(path) > 1 else None)
        raise RecipeError([recipe.fault("trainer", path, cause, fix)]) from error


def trainer_arguments(
    recipe: Recipe, callbacks: Sequence[Callback], loggers: Sequence[Logger]
) -> dict[str, Any]:
    """Return the arguments of Lightning's Trainer. Raises RecipeError as `resolve_devices` does."""
    training, every = recipe.training, recipe.training.validate_every
    precision = str(training.precision)
    chosen = {key: value for key, value in recipe.trainer.as_data().items() if value is not None}
    arguments = {key: value for key, value in chosen.items() if key not in OWN_SETTINGS}
    devices = resolve_devices(recipe)
    timeout = timedelta(minutes=recipe.trainer.timeout_minutes)
    return arguments | {
        "accelerator": devices.accelerator,
        "devices": devices.devices,
        "num_nodes": devices.num_nodes,
        "strategy": make_strategy(devices, timeout),
        "plugins": [AtomicCheckpointIO(), cluster_environment()],
        "callbacks": [*callbacks],
        "logger": [*loggers] or False,
        # Lightning would add its own beside the caller's: nothing is written twice
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "enable_autolog_hparams": False,
        "num_sanity_val_steps": 0,
        "max_epochs": -1,  # the loop's budget ends the training
        "precision": PRECISIONS.get(precision, precision),
        "accumulate_grad_batches": training.accumulate,
        # every so many batches; or at the end of an epoch, where the batch sampler then ends
        "val_check_interval": every * training.accumulate if every else 1.0,
        "check_val_every_n_epoch": None if every else 1,
        # the batch sampler splits batches over devices itself
        "use_distributed_sampler": False,
    }


def refused_path(recipe: Recipe, message: str) -> KeyPath:
    """Return the path of the setting that Lightning's message most likely means."""
    paths: dict[str, KeyPath] = {key: ("trainer", key) for key in recipe.trainer.as_data()}
    paths |= dict.fromkeys(["gpu", "XLA", "xla"], ("trainer", "accelerator"))
    paths["recision"] = ("training", "precision")
    for word, path in paths.items():
        if word in message:
            return path
    return ("trainer",)


def silence_lightning() -> None:
    """Silence the tips and warnings of Lightning; its errors and the profiler's table stay."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning.profilers").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", module="pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message="The `srun` command is available")
