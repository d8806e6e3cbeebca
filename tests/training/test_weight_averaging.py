"""`training.ema`: validations and final weights are of a moving average, which resumes to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer.errors import RecipeError
from composer.inference.run import open_run
from composer.recipe.recipe import load
from composer.run_dir import checkpoint_path, checkpoint_weights, list_checkpoints, read_checkpoint, read_metrics
from composer.training.callback import TrainingLoopCallback
from composer.training.checkpointing import WeightAverage
from composer.training.train import train
from tests.training.tiny_recipes import Tiny, same_weights

EMA = "training.ema={decay: 0.6}"


class Killed(BaseException):
    """What a kill is to the code that is running."""


def trained_weights(path: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): value for name, value in read_checkpoint(path)["state_dict"].items()}


def test_the_average_of_all_steps(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with one that is computed from the weights after each step."""
    steps: list[dict[str, torch.Tensor]] = []
    real = TrainingLoopCallback.on_train_batch_end

    def record(self: TrainingLoopCallback, trainer: Any, module: Any, *rest: Any) -> None:
        if trainer.global_step > self.progress.step:
            steps.append({name: value.clone() for name, value in module.model.state_dict().items()})
        real(self, trainer, module, *rest)

    monkeypatch.setattr(TrainingLoopCallback, "on_train_batch_end", record)
    initial = []
    monkeypatch.setattr(
        TrainingLoopCallback,
        "on_fit_start",
        lambda _, trainer, module: initial.append({n: v.clone() for n, v in module.model.state_dict().items()}),
        raising=False,
    )
    train(tiny(EMA, "training.accumulate=2", "training.max_steps=8"), tmp_path / "run")
    average = initial[0]
    for number, weights in enumerate(steps, start=1):
        decay = min(0.6, (1 + number) / (10 + number))
        average = {name: decay * value + (1 - decay) * weights[name] for name, value in average.items()}
    path = checkpoint_path(tmp_path / "run" / "checkpoints", 8)
    weights = checkpoint_weights(path)
    assert weights.keys() == trained_weights(path).keys()  # tied ones by both their names
    assert all(torch.allclose(value, average[name], atol=1e-6) for name, value in weights.items())
    assert all(torch.equal(value, steps[-1][name]) for name, value in trained_weights(path).items())
    assert any(not torch.allclose(value, steps[-1][name], atol=1e-3) for name, value in weights.items())


def test_validations_and_final_weights_are_of_the_average(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    record = train(tiny(EMA), run).record
    (best,) = record["checkpoints_used"]["checkpoints"]
    final = open_run(run).model.state_dict()
    average = checkpoint_weights(run / "checkpoints" / best)
    assert all(torch.equal(value, average[name]) for name, value in final.items())
    assert any(
        not torch.equal(value, final[name]) for name, value in trained_weights(run / "checkpoints" / best).items()
    )
    (row,) = [
        row for row in read_metrics(run / "metrics.jsonl") if f"step-{row['step']:08d}" in best and "val/loss" in row
    ]
    assert open_run(run).evaluate("val")["val/loss"] == pytest.approx(row["val/loss"], rel=1e-5)
    train(tiny(), tmp_path / "plain")
    plain, own = (trained_weights(list_checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("plain", "run"))
    assert all(torch.equal(value, own[name]) for name, value in plain.items())  # it changes nothing in the training


def test_it_resumes_to_the_bit_and_is_repeated(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(EMA), tmp_path / "whole")
    real, left = TrainingLoopCallback.on_train_batch_end, [6]

    def dies(self: TrainingLoopCallback, *rest: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        real(self, *rest)

    monkeypatch.setattr(TrainingLoopCallback, "on_train_batch_end", dies)
    with pytest.raises(Killed):
        train(tiny(EMA), tmp_path / "cut")
    train(tiny(EMA), tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    names = ("val/loss", "train/loss")
    rows = [
        [row.get(name) for name in names for row in read_metrics(tmp_path / run / "metrics.jsonl")]
        for run in ("whole", "cut")
    ]
    assert rows[0] == rows[1]
    again = train(load(tmp_path / "cut" / "recipe.yaml"), tmp_path / "again").record
    assert again["reproduces"]["same"] is True


def test_half_precision_is_averaged_in_32_bits(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(EMA, "training.precision=bf16-true"), tmp_path / "run")
    (path, *_) = list_checkpoints(tmp_path / "run" / "checkpoints")
    average = read_checkpoint(path)["callbacks"]["WeightAverage"]["average"]
    assert {value.dtype for value in average.values()} == {torch.float32}
    assert {value.dtype for value in checkpoint_weights(path).values()} == {torch.bfloat16}


def test_without_a_validation_the_weights_come_back(tiny: Tiny) -> None:
    module = nn.Module()
    module.model = nn.Linear(2, 2)
    callback, before = WeightAverage(0.9), module.model.weight.detach().clone()
    trainer: Any = type("Trainer", (), {"global_step": 0})()
    callback.on_train_start(trainer, module)
    with torch.no_grad():
        module.model.weight += 1.0
    callback.on_validation_start(trainer, module)
    assert torch.equal(module.model.weight, before)
    callback.on_validation_end(trainer, module)
    assert torch.equal(module.model.weight, before + 1.0)


def test_two_averages_are_refused(tiny: Tiny) -> None:
    with pytest.raises(RecipeError, match="`ema` averages the weights of all steps already") as raised:
        tiny(EMA, "training.average_checkpoints=2")
    assert raised.value.faults[0].path == "training.average_checkpoints"
    tiny("training.ema=null", "training.average_checkpoints=2")
    for decay in (0, 1, 1.5):
        with pytest.raises(RecipeError, match="decay"):
            tiny(f"training.ema={{decay: {decay}}}")


def test_fingerprints_without_it_stay(tiny: Tiny) -> None:
    assert tiny().fingerprints == tiny("training.ema=null").fingerprints
    assert tiny().fingerprints["run"] != tiny(EMA).fingerprints["run"]
