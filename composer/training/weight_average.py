"""Averages of weights: of checkpoints, exponential (EMA), of averaged SGD, of schedule-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from composer.recipe.recipe import Recipe
from composer.run_dir import checkpoint_weights
from composer.training.early_stopping import has_stalled
from composer.training.lightning import Callback, Trainer
from composer.training.sharding import full_state, local_part, own_part


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints, oldest first; integers are of the last one."""
    last = checkpoint_weights(paths[-1])
    floats = {name: value for name, value in last.items() if value.is_floating_point()}
    total = {name: value.double() for name, value in floats.items()}
    for path in paths[:-1]:
        weights = checkpoint_weights(path)
        # not in place: tied weights are one tensor under several names
        total = {name: value + weights[name] for name, value in total.items()}
    means = {name: (total[name] / len(paths)).to(value.dtype) for name, value in floats.items()}
    return last | means


def weight_averages(recipe: Recipe) -> list[WeightAverage]:
    """Return the callbacks of the averages that a recipe asks for."""
    ema, asgd = recipe.training.ema, recipe.training.asgd
    averages: list[WeightAverage] = []
    if recipe.training.optimizer.averages:
        averages.append(OptimizerAverage())
    if ema:
        averages.append(WeightAverage(decay=ema.decay))
    if asgd:
        averages.append(WeightAverage(patience=asgd.patience))
    return averages


class WeightAverage(Callback):
    """Callback that averages the weights of all steps, and validates with the average.

    With `decay` the average is exponential. With `patience` it is the weights themselves until the
    validation loss has stalled, and from then on the mean of those of all steps.

    It comes before `TrainingLoopCallback`, which saves a checkpoint at the end of a validation.
    That holds the weights of the training as its `state_dict`, so that a resumed one goes on with
    them, and the average as the state of this callback. Lightning's `WeightAveraging` does not work
    with sharded models.
    """

    def __init__(self, decay: float | None = None, patience: int = 0) -> None:
        self.decay, self.patience, self.step = decay, patience, 0
        self.stalled_at: int | None = None  # the step after which the mean begins
        # by the first name of each parameter, in 32 bits or more
        self.average: dict[str, Tensor] = {}
        # the first name of a parameter, by each of its names: weights can be tied
        self.names: dict[str, str] = {}
        self.backup: list[Tensor] = []
        self.loaded: Mapping[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin with the initial weights, or with the average of the checkpoint."""
        self.step = trainer.global_step
        self.take_parameters(pl_module)
        for name, parameter in self.parameters.items():
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            loaded = local_part(self.loaded[name], parameter) if self.loaded else parameter
            self.average[name] = loaded.detach().to(parameter.device, dtype, copy=True)

    def take_parameters(self, module: Any) -> None:
        """Take the parameters of a module, which may be sharded by now, by name."""
        self.parameters = dict(module.model.named_parameters())
        first = {id(parameter): name for name, parameter in self.parameters.items()}
        every = module.model.named_parameters(remove_duplicate=False)
        self.names = {name: first[id(parameter)] for name, parameter in every}

    def averages(self) -> dict[str, Tensor]:
        """Return the average now, by the first name of each parameter."""
        return self.average

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Move the average towards the weights after each step."""
        if trainer.global_step == self.step:
            return  # gradients accumulate
        self.step = trainer.global_step
        average = [own_part(value) for value in self.average.values()]
        weights = [
            own_part(value).to(old.dtype)
            for value, old in zip(self.parameters.values(), average, strict=True)
        ]
        torch._foreach_lerp_(average, weights, self.share(pl_module))

    def share(self, module: Any) -> float:
        """Return the share of the average that the weights of this step have."""
        if self.decay is not None:
            return 1 - min(self.decay, (1 + self.step) / (10 + self.step))
        if self.stalled_at is None and has_stalled(module.progress().losses, self.patience):
            self.stalled_at = self.step - 1
        return 1.0 if self.stalled_at is None else 1 / (self.step - self.stalled_at)

    def on_validation_start(self, trainer: Trainer, pl_module: object) -> None:
        """Put the average in the place of the weights."""
        self.backup = [own_part(parameter).clone() for parameter in self.parameters.values()]
        self._set_weights(pl_module, [own_part(value) for value in self.averages().values()])

    def on_validation_end(self, trainer: Trainer, pl_module: object) -> None:
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
        full = full_state(self.averages())
        average = {name: full[first] for name, first in self.names.items()}
        return {"average": average, "stalled_at": self.stalled_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded, self.stalled_at = state["average"], state["stalled_at"]


class OptimizerAverage(WeightAverage):
    """Callback that validates with the average x of `schedule_free`, and saves it.

    x = y + (1 - 1 / beta1) (z - y) of the weights y that are trained and the optimizer's z, as the
    package has it. It is computed beside y, so that the training goes on with the same bits.
    """

    @property
    def state_key(self) -> str:
        """Where a checkpoint has it: where any average is."""
        return WeightAverage.__name__

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the parameters and their optimizer, which has restored z from the checkpoint."""
        self.take_parameters(pl_module)
        (self.optimizer,) = trainer.optimizers

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Do nothing: the optimizer averages."""

    def averages(self) -> dict[str, Tensor]:
        """Return x of each parameter by its first name; the weights before the first step."""
        shares: dict[int, float] = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                shares[id(parameter)] = 1 - 1 / group["betas"][0]
        averages: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            y, z = parameter.detach(), self.optimizer.state[parameter].get("z")
            averages[name] = y if z is None else torch.lerp(y, z, shares[id(parameter)])
        return averages
