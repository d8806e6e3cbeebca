"""PyTorch Lightning, imported without scipy.signal: the one place that imports it.

Lightning imports torchmetrics, which imports scipy.signal wherever scipy is installed, to give it
back a name of its own that sound metrics want. No training needs it, and it takes a second of a
processor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

SCIPY_SIGNAL = "scipy.signal"


@contextmanager
def without_scipy_signal() -> Iterator[None]:
    """Let `import scipy.signal` find an empty module, which is gone afterwards."""
    if SCIPY_SIGNAL in sys.modules:
        yield
        return
    empty = sys.modules[SCIPY_SIGNAL] = ModuleType(SCIPY_SIGNAL)
    empty.hamming = None  # type: ignore[attr-defined]  # what torchmetrics looks for
    try:
        yield
    finally:
        del sys.modules[SCIPY_SIGNAL]
        if (scipy := sys.modules.get("scipy")) is not None and vars(scipy).get("signal") is empty:
            del scipy.signal  # scipy imports the real one when it is asked for


with without_scipy_signal():
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.utilities.distributed import (
        _destroy_dist_connection as destroy_group_at_exit,
    )
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from pytorch_lightning import (
        Callback,
        LightningDataModule,
        LightningModule,
        Trainer,
        seed_everything,
    )
    from pytorch_lightning.callbacks import Checkpoint, ProgressBar
    from pytorch_lightning.loggers import Logger
    from pytorch_lightning.plugins import CheckpointIO
    from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
    from pytorch_lightning.trainer.connectors import checkpoint_connector

__all__ = [
    "Callback",
    "Checkpoint",
    "CheckpointIO",
    "ClusterEnvironment",
    "DDPStrategy",
    "LightningDataModule",
    "LightningEnvironment",
    "LightningModule",
    "Logger",
    "MisconfigurationException",
    "ModelParallelStrategy",
    "ProgressBar",
    "SLURMEnvironment",
    "Strategy",
    "TorchElasticEnvironment",
    "Trainer",
    "checkpoint_connector",
    "destroy_group_at_exit",
    "seed_everything",
]
