"""Lightning as its users know it: the recipe's module and data in a Trainer of their own, and their
parts in ours.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

import composer
from composer.errors import RecipeError
from composer.run_dir import read_metrics
from composer.training.datamodule import RecipeDataModule
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.tiny_recipes import EPOCHS, Tiny, Undisturbed, same_weights

QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}
SHORT = ("training.max_steps=6", "training.validate_every=3")


class Recorder(Callback):
    """A user's callback: the loss of every step, and what others see of the validation."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.validations: list[dict[str, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *batch: Any
    ) -> None:
        self.losses.append(float(outputs["loss"]))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.validations.append(
                {name: float(value) for name, value in trainer.callback_metrics.items()}
            )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_recipe_trains_in_a_user_s_trainer(tiny: Tiny, tmp_path: Path) -> None:
    recipe = tiny()
    seed_everything(recipe.training.seed, verbose=False)
    data = RecipeDataModule(recipe)
    module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
    recorder = Recorder()
    best = ModelCheckpoint(tmp_path / "checkpoints", monitor="val/loss")
    logger = CSVLogger(tmp_path, "csv", "")
    trainer = Trainer(
        max_epochs=4, callbacks=[recorder, best], logger=logger, log_every_n_steps=1, **QUIET
    )
    trainer.fit(module, datamodule=data)

    assert trainer.current_epoch == 4
    assert recorder.losses[-1] < recorder.losses[0]
    assert len(recorder.validations) == 4
    assert {"train/loss", "val/loss", "val/perplexity", "val/token_accuracy"} <= set(
        recorder.validations[0]
    )
    rows = rows_of(tmp_path / "csv" / "metrics.csv")
    losses = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    assert losses == pytest.approx(recorder.losses)
    rates = [float(row["train/learning_rate"]) for row in rows if row["train/learning_rate"]]
    # the recipe's warm-up, then its cosine down to 0 at the last step
    assert rates[0] == pytest.approx(1e-2 / 2)
    assert rates[-1] < 0.1 * max(rates)
    assert len([row for row in rows if row["val/loss"]]) == 4

    assert best.best_model_score == pytest.approx(
        min(seen["val/loss"] for seen in recorder.validations)
    )
    loaded = Seq2SeqModule.load_from_checkpoint(best.best_model_path, weights_only=True)
    assert loaded.recipe.fingerprints == recipe.fingerprints
    weights = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert all(
        torch.equal(value, weights[f"model.{name}"])
        for name, value in loaded.model.state_dict().items()
    )


def test_an_epoch_of_a_user_s_trainer_sees_every_pair_once_in_a_new_order(tiny: Tiny) -> None:
    class Rows(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, at: int
        ) -> None:
            rows.setdefault(trainer.current_epoch, []).extend(batch["rows"].tolist())

    rows: dict[int, list[int]] = {}
    recipe = tiny()
    data = RecipeDataModule(recipe)
    module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
    Trainer(
        max_epochs=2, callbacks=[Rows()], logger=False, enable_checkpointing=False, **QUIET
    ).fit(module, datamodule=data)
    assert [sorted(rows[epoch]) for epoch in (0, 1)] == [list(range(90))] * 2
    assert rows[0] != rows[1]


def test_a_trainer_keeps_its_limit_of_the_validation(tiny: Tiny) -> None:
    """Whatever it is used for next, it measures the same sample."""

    class Batches(Callback):
        def __init__(self) -> None:
            self.counts: list[list[int]] = []

        def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.counts.append([])

        def on_validation_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, *batch: Any
        ) -> None:
            self.counts[-1] += batch[1]["rows"].tolist()

    recipe, recorder = tiny("training.tokens_per_batch=40"), Batches()
    data = RecipeDataModule(recipe)
    module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
    settings = {
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        **QUIET,
    }
    trainer = Trainer(limit_val_batches=1, callbacks=[recorder], **settings)
    trainer.fit(module, datamodule=data)
    assert trainer.limit_val_batches == 1
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.validate(module, datamodule=RecipeDataModule(recipe), verbose=False)
    first, *others = recorder.counts
    assert others == [first, first]
    assert data.val is not None
    assert 0 < len(first) < len(data.val.lines)


def test_accumulation_is_that_of_the_user_s_trainer(tiny: Tiny) -> None:
    steps = {}
    for accumulate in (1, 2):
        recipe = tiny("training.optimizer=sgd", "model.dropout=0")
        data = RecipeDataModule(recipe)
        seed_everything(1, verbose=False)
        module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
        trainer = Trainer(
            max_epochs=1,
            accumulate_grad_batches=accumulate,
            logger=False,
            enable_checkpointing=False,
            **QUIET,
        )
        trainer.fit(module, datamodule=data)
        steps[accumulate] = trainer.global_step, module.model.state_dict()
    assert steps[1][0] == steps[2][0]
    for name, value in steps[1][1].items():
        torch.testing.assert_close(steps[2][1][name], value, atol=1e-5, rtol=1e-4)


def test_the_recipe_s_clip_norm_holds_in_a_user_s_trainer_unless_that_has_its_own(
    tiny: Tiny,
) -> None:
    class Norms(Callback):
        def __init__(self) -> None:
            self.norms: list[float] = []

        def on_before_zero_grad(
            self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
        ) -> None:
            gradients = [
                parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None
            ]
            if gradients:
                self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    for recipe, trainer_norm, expected in (
        (tiny("training.clip_norm=1e-3"), None, 1e-3),
        (tiny(), 1e-4, 1e-4),
    ):
        data, recorder = RecipeDataModule(recipe), Norms()
        module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
        settings = {
            "max_steps": 2,
            "callbacks": [recorder],
            "logger": False,
            "enable_checkpointing": False,
            **QUIET,
        }
        Trainer(gradient_clip_val=trainer_norm, **settings).fit(module, datamodule=data)
        assert recorder.norms == pytest.approx([expected] * len(recorder.norms), rel=1e-3)
        assert recorder.norms


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("curriculum={start: 2}", "follows a curriculum"),
        ("ema={}", "follows a moving average"),
        ("asgd={}", "follows an av"),
    ],
)
def test_what_only_our_training_follows_is_refused_outside(
    tiny: Tiny, setting: str, message: str
) -> None:
    recipe = tiny(f"training.{setting}")
    data = RecipeDataModule(recipe)
    module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
    with pytest.raises(RecipeError, match=message):
        Trainer(max_epochs=1, logger=False, enable_checkpointing=False, **QUIET).fit(
            module, datamodule=data
        )


def test_train_takes_a_user_s_callbacks_and_loggers(tiny: Tiny, tmp_path: Path) -> None:
    recorder, best = (
        Recorder(),
        ModelCheckpoint(tmp_path / "checkpoints", monitor="val_sample/bleu", mode="max"),
    )
    composer.train(
        tiny(*SHORT),
        tmp_path / "run",
        callbacks=[recorder, best],
        loggers=[CSVLogger(tmp_path, "csv", "")],
    )
    assert len(recorder.losses) == 6
    assert {
        "val/loss",
        "val/token_accuracy",
        "val_sample/exact_match",
        "val_sample/bleu",
        "val_sample/chrf",
    } <= set(recorder.validations[0])
    assert Path(best.best_model_path).exists()
    ours = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "epoch" in row]
    theirs = rows_of(tmp_path / "csv" / "metrics.csv")
    assert [int(row["step"]) for row in theirs] == [row["step"] for row in ours]
    for name in ("train/loss", "val/loss", "val_sample/bleu"):
        assert [float(row[name]) for row in theirs if row[name]] == [
            row[name] for row in ours if name in row
        ]


@pytest.mark.parametrize("whose", ["ours", "a user's"])
def test_tensorboard_gets_the_same_names(tiny: Tiny, tmp_path: Path, whose: str) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe, board = tiny(*SHORT), TensorBoardLogger(tmp_path, "board", "")
    if whose == "ours":
        train(recipe, tmp_path / "run", loggers=[board])
    else:
        data = RecipeDataModule(recipe)
        trainer = Trainer(
            max_epochs=1, logger=board, log_every_n_steps=1, enable_checkpointing=False, **QUIET
        )
        trainer.fit(Seq2SeqModule.from_recipe(recipe, data.tokenizers), datamodule=data)
        board.save()
    events = reading.EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert {"train/loss", "train/learning_rate", "val/loss", "val/token_accuracy"} <= set(
        events.Tags()["scalars"]
    )


def test_callbacks_and_loggers_change_no_result(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    train(tiny(), tmp_path / "watched", callbacks=[Recorder()], loggers=[CSVLogger(tmp_path)])
    assert same_weights(undisturbed(tiny()), tmp_path / "watched")


def test_a_user_s_early_stopping_ends_our_training_with_a_checkpoint(
    tiny: Tiny, tmp_path: Path
) -> None:
    stopping = EarlyStopping("val/loss", patience=1, min_delta=100.0)
    result = train(tiny("training.validate_every=2"), tmp_path / "run", callbacks=[stopping])
    assert result.record.steps == 4
    assert (tmp_path / "run" / "checkpoints" / "step-00000004.ckpt").exists()


def test_the_device_is_synchronised_only_when_a_row_is_logged(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[int] = []
    real = LightningModule.log

    def log(self: LightningModule, *arguments: Any, **settings: Any) -> None:
        logged.append(self.global_step)
        real(self, *arguments, **settings)

    monkeypatch.setattr(LightningModule, "log", log)
    train(tiny(*SHORT), tmp_path / "run", loggers=[CSVLogger(tmp_path)])
    assert set(logged) == {3, 6}  # the steps of the validations


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_a_resumed_run_validates_at_the_same_epochs(
    tiny: Tiny,
    tmp_path: Path,
    undisturbed: Undisturbed,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    """Here a run is killed so many steps after the end of its first epoch, which is its only
    checkpoint.
    """
    recipe = tiny(*EPOCHS)
    reference = undisturbed(recipe)
    validations = [row for row in read_metrics(reference / "metrics.jsonl") if "val/loss" in row]
    assert [row["epoch"] for row in validations[:2]] == [1.0, 2.0]
    killed_at = validations[0]["step"] + steps

    def step(self: Seq2SeqModule, *arguments: Any) -> Any:
        if self.trainer.global_step == killed_at:
            raise RuntimeError("killed")
        return real(self, *arguments)

    real = Seq2SeqModule.training_step
    monkeypatch.setattr(Seq2SeqModule, "training_step", step)
    with pytest.raises(RuntimeError, match="killed"):
        train(recipe, tmp_path / "cut")
    monkeypatch.setattr(Seq2SeqModule, "training_step", real)
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(reference, tmp_path / "cut")
    resumed = [row for row in read_metrics(tmp_path / "cut" / "metrics.jsonl") if "val/loss" in row]
    losses = [(row["step"], row["val/loss"]) for row in validations]
    assert [(row["step"], row["val/loss"]) for row in resumed] == losses


IMPORT = """
import sys, scipy
import composer.training.train
assert "pytorch_lightning" in sys.modules and "scipy.signal" not in sys.modules
print(scipy.signal.windows.hamming(3).tolist())
"""


@pytest.mark.slow
def test_a_training_does_not_import_scipys_signals_and_whoever_wants_them_has_them() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) == pytest.approx([0.08, 1.0, 0.08])
