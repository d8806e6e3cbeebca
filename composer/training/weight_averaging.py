"""Exponential moving average of the weights (EMA) during a training: `training.ema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim.swa_utils import get_ema_multi_avg_fn

from composer.training.sharding import full_state, local_part, own_part


class WeightAverage(Callback):
    """Callback that averages the weights of all steps, and validates with the average.

    It comes before `TrainingLoopCallback`, which saves a checkpoint at the end of a validation. That holds the weights
    of the training as its `state_dict`, so that a resumed one goes on with them, and the average as the state of this
    callback. Lightning's `WeightAveraging` does not work with sharded models.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.step = decay, 0
        self.average: dict[str, Tensor] = {}  # by the first name of each parameter, in 32 bits or more
        self.names: dict[str, str] = {}  # the first name of a parameter, by each of its names: weights can be tied
        self.backup: list[Tensor] = []
        self.loaded: Mapping[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin with the initial weights, or with the average of the checkpoint."""
        self.step, self.parameters = trainer.global_step, dict(pl_module.model.named_parameters())
        first = {id(parameter): name for name, parameter in self.parameters.items()}
        every = pl_module.model.named_parameters(remove_duplicate=False)
        self.names = {name: first[id(parameter)] for name, parameter in every}
        for name, parameter in self.parameters.items():
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            loaded = local_part(self.loaded[name], parameter) if self.loaded else parameter
            self.average[name] = loaded.detach().to(parameter.device, dtype, copy=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the average towards the weights after each step, faster in the first ones."""
        if trainer.global_step == self.step:
            return  # gradients accumulate
        self.step = trainer.global_step
        average = [own_part(value) for value in self.average.values()]
        weights = [own_part(value).to(old.dtype) for value, old in zip(self.parameters.values(), average, strict=True)]
        get_ema_multi_avg_fn(min(self.decay, (1 + self.step) / (10 + self.step)))(average, weights, self.step)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the average in the place of the weights."""
        self.backup = [own_part(parameter).clone() for parameter in self.parameters.values()]
        self._set_weights(pl_module, [own_part(value) for value in self.average.values()])

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the weights back."""
        self._set_weights(pl_module, self.backup)
        self.backup = []

    def _set_weights(self, module: Any, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters.values(), values, strict=True):
            own_part(parameter).copy_(value)
        for unit in module.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()  # what was gathered for the last forward pass is no longer true

    def state_dict(self) -> dict[str, Any]:
        """Return the average by every name of a parameter, whole; a collective call."""
        full = full_state(self.average)
        return {"average": {name: full[first] for name, first in self.names.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["average"]
