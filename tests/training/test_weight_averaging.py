"""`training.ema`, `training.asgd`: validations and final weights are of an average, which resumes
to the bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer.errors import RecipeError
from composer.inference.run import open_run
from composer.recipe.recipe import load
from composer.run_dir import (
    RunDir,
    checkpoint_path,
    checkpoint_step,
    checkpoint_weights,
    list_checkpoints,
    read_checkpoint,
    read_metrics,
)
from composer.training.callback import TrainingLoopCallback
from composer.training.train import train
from composer.training.weight_average import WeightAverage
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

NO_SAMPLE = "training.validation_sample.lines=0"
EMA = ("training.ema={decay: 0.6}",)
STALLING = (
    "training.optimizer={sgd: 9}",
    "training.validate_every=1",
    "training.asgd={patience: 1}",
    NO_SAMPLE,
)
"""Steps so large that the validation loss rises in between."""


def trained_weights(path: Path) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("model."): value
        for name, value in read_checkpoint(path)["state_dict"].items()
    }


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The weights after each step of what trains in a test."""
    steps: list[dict[str, torch.Tensor]] = []
    real = TrainingLoopCallback.on_train_batch_end

    def record(self: TrainingLoopCallback, trainer: Any, module: Any, *rest: Any) -> None:
        if trainer.global_step > self.progress.step:
            steps.append({name: value.clone() for name, value in module.model.state_dict().items()})
        real(self, trainer, module, *rest)

    monkeypatch.setattr(TrainingLoopCallback, "on_train_batch_end", record)
    return steps


@pytest.mark.parametrize("precision", [32, 64])
def test_the_average_of_all_steps(
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[dict[str, torch.Tensor]],
    precision: int,
) -> None:
    """Compared with one that is computed from the weights after each step."""
    initial = []
    monkeypatch.setattr(
        TrainingLoopCallback,
        "on_fit_start",
        lambda _, trainer, module: initial.append(
            {n: v.clone() for n, v in module.model.state_dict().items()}
        ),
        raising=False,
    )
    settings = "training.accumulate=2", "training.max_steps=8", f"training.precision={precision}"
    train(tiny(*EMA, *settings), tmp_path / "run")
    average = initial[0]
    for number, weights in enumerate(steps, start=1):
        decay = min(0.6, (1 + number) / (10 + number))
        average = {
            name: decay * value + (1 - decay) * weights[name] for name, value in average.items()
        }
    path = checkpoint_path(tmp_path / "run" / "checkpoints", 8)
    weights = checkpoint_weights(path)
    assert weights.keys() == trained_weights(path).keys()  # tied ones by both their names
    assert all(torch.allclose(value, average[name], atol=1e-6) for name, value in weights.items())
    assert all(torch.equal(value, steps[-1][name]) for name, value in trained_weights(path).items())
    assert any(
        not torch.allclose(value, steps[-1][name], atol=1e-3) for name, value in weights.items()
    )


@pytest.mark.parametrize("precision", [pytest.param(32, marks=pytest.mark.slow), 64])
def test_the_mean_since_the_validation_has_stalled(
    tiny: Tiny, tmp_path: Path, steps: list[dict[str, torch.Tensor]], precision: int
) -> None:
    """Algorithm 1 of Merity et al. 2018, written down for the losses that were measured."""
    train(tiny(*STALLING, f"training.precision={precision}"), tmp_path / "run")
    logs: list[float] = []
    trigger = None
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        if trigger is None and "val/loss" in row:
            trigger = row["step"] if len(logs) > 1 and row["val/loss"] > min(logs[:-1]) else None
            logs.append(row["val/loss"])
    assert trigger is not None
    assert 2 < trigger < 10
    for path in list_checkpoints(tmp_path / "run" / "checkpoints"):
        step, weights = checkpoint_step(path) or 0, checkpoint_weights(path)
        averaged = steps[trigger:step] or steps[step - 1 : step]
        assert len(averaged) == max(1, step - trigger)
        for name, value in weights.items():
            torch.testing.assert_close(
                value, torch.stack([one[name] for one in averaged]).mean(0), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("precision", [32, 64])
def test_the_final_weights_are_the_mean_of_checkpoints(
    tiny: Tiny, tmp_path: Path, precision: int
) -> None:
    """Of tied weights as of all others: their names are of one tensor."""
    settings = f"training.precision={precision}", "training.average_checkpoints=3"
    train(tiny(*settings), tmp_path / "run")
    states = [
        checkpoint_weights(path) for path in list_checkpoints(tmp_path / "run" / "checkpoints")
    ]
    assert len(states) == 3
    for name, value in open_run(tmp_path / "run").model.state_dict().items():
        mean = torch.stack([state[name].double() for state in states]).mean(0)
        assert torch.allclose(value.double(), mean, atol=1e-6)


def test_validations_and_final_weights_are_of_the_average(
    tiny: Tiny, undisturbed: Undisturbed
) -> None:
    run, plain = undisturbed(tiny(*EMA)), undisturbed(tiny())
    (best,) = RunDir(run).read().checkpoints_used.checkpoints
    final = open_run(run).model.state_dict()
    average = checkpoint_weights(run / "checkpoints" / best)
    assert all(torch.equal(value, average[name]) for name, value in final.items())
    assert any(
        not torch.equal(value, final[name])
        for name, value in trained_weights(run / "checkpoints" / best).items()
    )
    (row,) = [
        row
        for row in read_metrics(run / "metrics.jsonl")
        if f"step-{row['step']:08d}" in best and "val/loss" in row
    ]
    assert open_run(run).evaluate("val")["val/loss"] == pytest.approx(row["val/loss"], rel=1e-5)
    other, own = (
        trained_weights(list_checkpoints(one / "checkpoints")[-1]) for one in (plain, run)
    )
    # it changes nothing in the training
    assert all(torch.equal(value, own[name]) for name, value in other.items())


@pytest.mark.parametrize(("overrides", "killed_after"), [(EMA, 6), (STALLING, 3), (STALLING, 9)])
def test_it_resumes_to_the_bit_and_is_repeated(
    tiny: Tiny,
    tmp_path: Path,
    undisturbed: Undisturbed,
    overrides: tuple[str, ...],
    killed_after: int,
) -> None:
    reference, run = undisturbed(tiny(*overrides)), tmp_path / "cut"
    with killed_in_batch(killed_after):
        train(tiny(*overrides), run)
    train(tiny(*overrides), run, resume=True)
    assert same_weights(reference, run)
    names = ("val/loss", "train/loss")
    rows = [
        [row.get(name) for name in names for row in read_metrics(one / "metrics.jsonl")]
        for one in (reference, run)
    ]
    assert rows[0] == rows[1]
    if overrides is EMA:
        again = train(load(run / "recipe.yaml"), tmp_path / "again").record
        assert again.reproduces.same is True


def test_half_precision_is_averaged_in_32_bits(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(*EMA, "training.precision=bf16-true", "training.max_steps=4"), tmp_path / "run")
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
    for settings, path in [
        (("ema={}", "average_checkpoints=2"), "average_checkpoints"),
        (("asgd={}", "average_checkpoints=2"), "average_checkpoints"),
        (("ema={}", "asgd={}"), "asgd"),
    ]:
        with pytest.raises(
            RecipeError, match=f"`{settings[0][:3]}.*` averages the weights already"
        ) as raised:
            tiny(*(f"training.{setting}" for setting in settings))
        assert [fault.path for fault in raised.value.faults] == [f"training.{path}"]
    tiny("training.ema=null", "training.average_checkpoints=2")
    for decay in (0, 1, 1.5):
        with pytest.raises(RecipeError, match="decay"):
            tiny(f"training.ema={{decay: {decay}}}")


def test_fingerprints_without_it_stay(tiny: Tiny) -> None:
    assert tiny().fingerprints == tiny("training.ema=null", "training.asgd=null").fingerprints
    assert (
        len(
            {tiny(*overrides).fingerprints["run"] for overrides in ((), EMA, ("training.asgd={}",))}
        )
        == 3
    )
