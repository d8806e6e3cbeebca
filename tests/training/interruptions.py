"""Trainings that are ended from within, as a kill or Ctrl-C would end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import pytest
from pytorch_lightning import Trainer

from composer.training.callback import TrainingLoopCallback


class Killed(BaseException):
    """What a kill is to the code that is running."""


def die(*_: Any) -> None:
    """End as a kill does."""
    raise Killed


@contextmanager
def killed_when(is_time: Callable[[Trainer], bool]) -> Iterator[None]:
    """Have the training inside end abruptly after the first batch at which a function of the
    trainer says so.
    """
    real = TrainingLoopCallback.on_train_batch_end

    def act(self: TrainingLoopCallback, trainer: Trainer, *args: Any) -> None:
        (die if is_time(trainer) else real)(self, trainer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoopCallback, "on_train_batch_end", act)
        with pytest.raises(Killed):
            yield


def killed_in_batch(number: int) -> AbstractContextManager[None]:
    """End the training inside abruptly in this batch, counted in this training."""
    batches = count(1)
    return killed_when(lambda trainer: next(batches) == number)


def killed_at_step(number: int) -> AbstractContextManager[None]:
    """Have the training inside end abruptly at this step."""
    return killed_when(lambda trainer: trainer.global_step == number)


@contextmanager
def interrupted_at_step(number: int) -> Iterator[None]:
    """Have SIGINT arrive in this step of the training inside."""

    def receive(self: TrainingLoopCallback) -> int:
        return 2 if self.progress.step == number else 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoopCallback, "received_signal", receive)
        with pytest.raises(KeyboardInterrupt):
            yield
