"""Trainings that are ended from within, as a kill or Ctrl-C would end them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from composer.training.callback import TrainingLoopCallback


class Killed(BaseException):
    """What a kill is to the code that is running."""


def die(*_: Any) -> None:
    """End as a kill does."""
    raise Killed


@contextmanager
def killed_in_batch(number: int) -> Iterator[None]:
    """Have the training inside end abruptly in the batch of this number, counted in this training."""
    left, real = [number], TrainingLoopCallback.on_train_batch_end

    def act(self: TrainingLoopCallback, *given: Any) -> None:
        left[0] -= 1
        (real if left[0] else die)(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoopCallback, "on_train_batch_end", act)
        with pytest.raises(Killed):
            yield


@contextmanager
def killed_at_step(number: int) -> Iterator[None]:
    """Have the training inside end abruptly at this step."""
    real = TrainingLoopCallback.on_train_batch_end

    def act(self: TrainingLoopCallback, trainer: Any, *given: Any) -> None:
        (die if trainer.global_step == number else real)(self, trainer, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoopCallback, "on_train_batch_end", act)
        with pytest.raises(Killed):
            yield


@contextmanager
def interrupted_at_step(number: int) -> Iterator[None]:
    """Have SIGINT arrive in this step of the training inside."""

    def receive(self: TrainingLoopCallback) -> int:
        return 2 if self.progress.step == number else 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoopCallback, "received_signal", receive)
        with pytest.raises(KeyboardInterrupt):
            yield
