"""Lightning's Trainer for a recipe, and its chatter taken away."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from composer.checkpoint import SafeCheckpoints
from composer.recipe import Recipe

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
    return Trainer(**{**quiet, **alone_on_a_cpu(given), **owned})


def alone_on_a_cpu(given: dict[str, Any]) -> dict[str, Any]:
    """One process where there is no other device: its threads already use the whole machine."""
    import torch

    on_cpu = given.get("accelerator", "auto") == "cpu" or not (
        torch.cuda.is_available() or torch.backends.mps.is_available()
    )
    if given.get("devices", "auto") == "auto" and on_cpu and given.get("strategy", "auto") == "auto":
        return {**given, "accelerator": "cpu", "devices": 1}
    return given


def rank() -> int:
    """This process's number among those that train together, known before they meet."""
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def quieten() -> None:
    """Silences Lightning's tips; its errors stay."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", module="pytorch_lightning.*", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
