"""Which checkpoints a run keeps: the last ones and the best one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer
from torch import Tensor

from composer.errors import RunFailed
from composer.scores import worth
from composer.training.checkpoint import checkpoint_path, checkpoints, remove, remove_orphans

History = Sequence[Mapping[str, float]]
"""The scores of every validation so far, each with its `step`."""


@dataclass(frozen=True)
class Keeper:
    """Writes checkpoints into a folder and removes those that are no longer wanted.

    `metric` is what the best is judged by; `last` is how many are kept besides it.
    """

    folder: Path
    last: int = 2
    metric: str = "val/loss"

    def keep(self, trainer: Trainer, step: int, history: History) -> None:
        """Writes the checkpoint of `step` (on every device), then removes older ones (on one).

        Raises RunFailed, on every device, where there is nothing left that is worth keeping.
        """
        must_be_finite(trainer, step)
        trainer.save_checkpoint(checkpoint_path(self.folder, step))
        if trainer.is_global_zero:
            self.tidy(step, history)

    def tidy(self, step: int, history: History) -> None:
        """Removes the checkpoints that are no longer wanted after `step` steps."""
        wanted = {*self.recent(history), self.best(history), checkpoint_path(self.folder, step)}
        for path in checkpoints(self.folder):
            if path not in wanted:
                remove(path)
        remove_orphans(self.folder)

    def recent(self, history: History) -> list[Path]:
        """The checkpoints of the last validations, oldest first."""
        return [checkpoint_path(self.folder, int(scores["step"])) for scores in history[-self.last :]]

    def best(self, history: History) -> Path | None:
        """The checkpoint of the best validation, of equal ones that of the lowest loss; None without any."""
        if not any(self.metric in scores for scores in history):
            return None
        best = max(history, key=lambda scores: (worth(self.metric, scores), worth("val/loss", scores)))
        return checkpoint_path(self.folder, int(best["step"]))


def must_be_finite(trainer: Trainer, step: int) -> None:
    """Raises RunFailed where a weight, or what the optimizer remembers, is no number: one bad gradient is enough.

    The loss need not tell: it may have been finite in the step whose gradient was not.
    """
    values = list(kept_by(trainer))
    bad = torch.stack([~value.isfinite().all() for value in values]).sum()
    if not trainer.strategy.reduce(bad, reduce_op="sum"):
        return
    raise RunFailed.of(
        f"after {step} steps a weight, or what the optimizer remembers of it, is no finite number any more: "
        "a gradient since the last checkpoint was none",
        "lower the learning rate, give the schedule more `warmup_steps`, or set `training.clip_norm: 1.0`",
    )


def kept_by(trainer: Trainer) -> Iterator[Tensor]:
    """What a checkpoint has of numbers that training changes; of a tensor that devices share, this device's part."""
    remembered = (state for optimizer in trainer.optimizers for state in optimizer.state.values())
    known = (value for state in remembered for value in state.values() if isinstance(value, Tensor))
    for value in chain(trainer.lightning_module.parameters(), known):
        here: Any = getattr(value, "to_local", None)
        yield (here() if here else value).detach()
