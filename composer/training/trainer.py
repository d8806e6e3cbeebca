"""Lightning's Trainer for a recipe, and its chatter taken away."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer

from composer.errors import Fault, RecipeError
from composer.recipe import Recipe
from composer.training.checkpoint import SafeCheckpoints

NAMES = {"bf16": "bf16-mixed", "16": "16-mixed"}
"""What a recipe may say for short."""


def trainer_of(recipe: Recipe, callbacks: list[Callback]) -> Trainer:
    """The trainer: `trainer:` handed on, with what `training:` owns and with nothing of Lightning's own beside it."""
    given = {key: value for key, value in recipe.trainer.items() if value is not None}
    plugins = given.pop("plugins", None) or []
    training = recipe.training
    precision = str(training["precision"])
    quiet: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "enable_autolog_hparams": False, "num_sanity_val_steps": 0,
    }  # fmt: skip
    owned: dict[str, Any] = {
        "max_epochs": -1,
        "precision": NAMES.get(precision, precision),
        "accumulate_grad_batches": training["accumulate"],
        "gradient_clip_val": training["clip_norm"],
        "check_val_every_n_epoch": None,
        "val_check_interval": 1 << 62,
        "use_distributed_sampler": False,
        "callbacks": callbacks,
        "plugins": [SafeCheckpoints(), *([plugins] if isinstance(plugins, str) else plugins)],
    }
    for own in ("enable_progress_bar", "log_every_n_steps"):  # ours to obey, not Lightning's
        given.pop(own, None)
    try:
        return Trainer(**{**quiet, **devices_of(given), **owned})
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise RecipeError([unusable(recipe, error)]) from error


def unusable(recipe: Recipe, error: Exception) -> Fault:
    """What Lightning does not accept, told at the place in the recipe that it most likely means."""
    said = " ".join(str(error).split())
    keys = [("trainer", key) for key in recipe.trainer if key in said]
    path = keys[0] if keys else ("trainer",) if recipe.trainer else ("training", "precision")
    return recipe.fault("trainer", path, f"Lightning cannot train so here: {said}", "change it, or remove it")


def devices_of(given: dict[str, Any]) -> dict[str, Any]:
    """The devices where the recipe leaves them open.

    Those of the launcher (torchrun) that started this process among others; else, where there is only a CPU, one
    process, since its threads already use the whole machine.
    """
    if "LOCAL_WORLD_SIZE" in os.environ:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ.get("WORLD_SIZE", local)) // local
        return {"devices": local, "num_nodes": nodes, **({"strategy": "ddp"} if local * nodes > 1 else {}), **given}
    wanted = given.get("accelerator", "auto")
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = wanted == "cpu" or (wanted == "auto" and not accelerated)
    if given.get("devices", "auto") == "auto" and on_cpu and given.get("strategy", "auto") == "auto":
        return {**given, "accelerator": "cpu", "devices": 1}
    return given


def is_first() -> bool:
    """Whether this process is the first of those that train together; known before they meet."""
    if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
        return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))) == 0
    return all(int(os.environ.get(name, "0")) == 0 for name in ("NODE_RANK", "GROUP_RANK", "LOCAL_RANK"))


def quieten() -> None:
    """Silences Lightning's tips; its errors stay."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", module="pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
