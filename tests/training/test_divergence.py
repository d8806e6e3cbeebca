"""A training that diverges says in which step, and at which block of the recipe, the numbers
stopped being finite.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pytorch_lightning import Trainer

from composer.errors import RunFailed
from composer.training.callback import TrainingLoopCallback
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.tiny_recipes import Tiny


def test_the_block_of_the_first_bad_gradient_is_named(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TrainingLoopCallback.on_before_optimizer_step

    def bad_at_the_third(
        self: TrainingLoopCallback,
        trainer: Trainer,
        module: Seq2SeqModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        if trainer.global_step == 2:
            for parameter in module.model.decoder.blocks[0].parameters():  # type: ignore[union-attr, operator]
                parameter.grad = torch.full_like(parameter, torch.nan)
        real(self, trainer, module, optimizer)

    monkeypatch.setattr(TrainingLoopCallback, "on_before_optimizer_step", bad_at_the_third)
    with pytest.raises(RunFailed) as raised:
        train(tiny("training.clip_norm=null"), tmp_path / "run")
    (fault,) = raised.value.faults
    assert fault.path == "model.decoder[0].rnn"
    assert "the gradient of step 3 was the first that was not finite" in fault.message
    assert "the last block in which it was not is `rnn`" in fault.message


def test_the_step_of_the_first_bad_loss_is_named(tiny: Tiny, tmp_path: Path) -> None:
    rate = "training.optimizer={sgd: {learning_rate: 1e12}}"
    with pytest.raises(RunFailed) as raised:
        train(tiny(rate, "training.clip_norm=null", "training.schedule=constant"), tmp_path / "run")
    (fault,) = raised.value.faults
    assert "was the first that was not finite" in fault.message
    assert "lower the learning rate" in fault.hint
