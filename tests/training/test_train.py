"""What a training writes, and what the keys of `training:` do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import composer
import composer.fingerprint
from composer.atomic_io import sha256_of_file
from composer.data import tokenizer_cache
from composer.errors import RecipeError, RunError
from composer.run_dir import UNVERIFIED, RunDir, checkpoint_weights, list_checkpoints, read_metrics
from composer.training import trainer
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.tiny_recipes import EPOCHS, Tiny, Undisturbed, same_weights

SHORT = ("training.max_steps=4", "training.validate_every=2")


def test_a_finished_run_folder_has_all_its_files(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    outcome = train(tiny(), run)
    assert {path.name for path in run.iterdir()} == {
        ".lock",
        "recipe.yaml",
        "run.json",
        "tokenizer.json",
        "metrics.jsonl",
        "checkpoints",
        "model.safetensors",
        "hypotheses.val.jsonl",
        "hypotheses.test.jsonl",
    }
    record = json.loads((run / "run.json").read_text())
    assert RunDir(run).read() == outcome.record
    assert record["status"] == "finished"
    assert record["steps"] == 12
    assert record["fingerprints"] == composer.fingerprint.fingerprints(run / "recipe.yaml")
    assert record["weights_sha256"] == sha256_of_file(run / "model.safetensors")
    assert record["tokenizer_sha256"] == composer.open_run(run).tokenizers.sha256
    assert {
        "val/loss",
        "val/perplexity",
        "val/token_accuracy",
        "val/exact_match",
        "val/bleu",
        "val/chrf",
        "test/loss",
        "test/exact_match",
        "test/bleu",
        "test/chrf",
    } <= set(record["scores"])
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows if "train/loss" in row] == [4, 8, 10, 12]
    assert [row["step"] for row in rows if "val/loss" in row] == [4, 8, 12]
    assert all(row["train/tokens_per_second"] > 0 for row in rows if "train/loss" in row)
    said = capsys.readouterr().out
    assert str(run) in said
    assert "validation at step 12" in said
    assert "test: BLEU" in said
    assert "; of a sample: BLEU" in said
    again = composer.evaluate(run, "val")
    assert {key: again[key] for key in ("val/bleu", "val/chrf")} == {
        key: outcome.scores[key] for key in ("val/bleu", "val/chrf")
    }


def test_the_weights_are_those_of_the_best_validation(tiny: Tiny, undisturbed: Undisturbed) -> None:
    run = undisturbed(tiny())
    record = RunDir(run).read()
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "val/loss" in row]
    best = min(rows, key=lambda row: row["val/loss"])
    (kept,) = record.checkpoints_used.checkpoints
    assert kept == f"step-{best['step']:08d}.ckpt"
    assert record.scores["val/loss"] == best["val/loss"]
    weights = checkpoint_weights(run / "checkpoints" / kept)
    for name, value in load_file(run / "model.safetensors").items():
        assert torch.equal(value, weights[name])


def test_the_last_checkpoints_are_averaged(tiny: Tiny, tmp_path: Path) -> None:
    outcome = train(
        tiny("training.average_checkpoints=3", "training.max_steps=4", "training.validate_every=1"),
        tmp_path / "run",
    )
    kept = [
        tmp_path / "run" / "checkpoints" / name
        for name in outcome.record.checkpoints_used.checkpoints
    ]
    assert [path.name for path in kept] == [
        "step-00000002.ckpt",
        "step-00000003.ckpt",
        "step-00000004.ckpt",
    ]
    item = [checkpoint_weights(path) for path in kept]
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        torch.testing.assert_close(value, sum(weights[name] for weights in item) / 3)
    last = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val/loss" in row][
        -1
    ]
    assert last["val/loss"] == outcome.scores["val/loss"]


def test_the_same_seed_gives_the_same_weights(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    for name, seed in (("one", 1), ("other", 4)):
        train(tiny(*SHORT, f"training.seed={seed}"), tmp_path / name)
    assert same_weights(tmp_path / "one", undisturbed(tiny(*SHORT)))
    assert not same_weights(tmp_path / "one", tmp_path / "other")


def test_a_second_training_takes_its_tokenizer_from_the_cache(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    settings = ("data.tokenizer={bpe: {size: 300}}", "training.max_steps=1")
    train(tiny(*settings), tmp_path / "first")
    monkeypatch.setattr(tokenizer_cache, "train_source_tokenizers", None)
    train(tiny(*settings), tmp_path / "second")
    assert same_weights(tmp_path / "first", tmp_path / "second")


def test_accumulation_gives_the_same_update(tiny: Tiny, tmp_path: Path) -> None:
    # Adam would make a step of the noise in a gradient that is zero
    for parts in (1, 3):
        overrides = (
            "training.max_steps=2",
            "training.optimizer=sgd",
            "model.dropout=0",
            f"training.accumulate={parts}",
        )
        train(tiny(*overrides), tmp_path / str(parts))
    one, three = (load_file(tmp_path / str(parts) / "model.safetensors") for parts in (1, 3))
    for name, value in one.items():
        torch.testing.assert_close(three[name], value, atol=1e-5, rtol=1e-4)
    first, second = (read_metrics(tmp_path / str(parts) / "metrics.jsonl") for parts in (1, 3))
    for row, other in zip(first, second, strict=True):
        assert row.get("train/loss", 0) == pytest.approx(other.get("train/loss", 0), rel=1e-4)


def test_logged_losses_have_the_expected_size(tiny: Tiny, tmp_path: Path) -> None:
    """val/loss at random weights is near log V, and so is the smoothed train/loss of the first
    step.
    """
    train(
        tiny("training.max_steps=1", "training.optimizer.adam.learning_rate=1e-9"), tmp_path / "run"
    )
    row, scored, *_ = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert row["train/loss"] == pytest.approx(math.log(11), abs=0.5)
    assert scored["val/loss"] == pytest.approx(math.log(11), abs=0.5)
    assert scored["val/perplexity"] == pytest.approx(math.exp(scored["val/loss"]))


def test_early_stopping_ends_a_training(tiny: Tiny, tmp_path: Path) -> None:
    outcome = train(
        tiny(
            "training.validate_every=1", "training.early_stopping={patience: 2, min_delta: 100.0}"
        ),
        tmp_path / "run",
    )
    assert outcome.record.steps == 3


def test_max_epochs_ends_a_training(tiny: Tiny, undisturbed: Undisturbed) -> None:
    run = undisturbed(tiny(*EPOCHS))
    assert RunDir(run).read().epochs == 2.0
    assert [row["epoch"] for row in read_metrics(run / "metrics.jsonl") if "val/loss" in row] == [
        1.0,
        2.0,
    ]


def test_max_minutes_ends_a_training(tiny: Tiny, tmp_path: Path) -> None:
    outcome = train(tiny("training.max_steps=null", "training.max_minutes=0.003"), tmp_path / "run")
    assert outcome.record.minutes >= 0.003
    assert outcome.record.steps > 0


def test_a_language_model_trains_without_sources(tiny: Tiny, tmp_path: Path) -> None:
    outcome = train(
        tiny(*SHORT, "model.encoder=null", "model.decoder=[rnn]", "model.output.tie=[target]"),
        tmp_path / "run",
    )
    assert "val/loss" in outcome.scores
    assert "val/bleu" not in outcome.scores


def test_training_starts_from_another_run(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    first = undisturbed(tiny(*SHORT))
    train(
        tiny("training.max_steps=1", "training.optimizer.adam.learning_rate=1e-12"),
        tmp_path / "second",
        start_from=first,
    )
    second = load_file(tmp_path / "second" / "model.safetensors")
    for name, value in load_file(first / "model.safetensors").items():
        torch.testing.assert_close(second[name], value)
    with pytest.raises(RunError, match="do not fit the model"):
        train(tiny("model.width=16"), tmp_path / "third", start_from=first)
    assert not (tmp_path / "third").exists()


def test_a_checkpoint_is_plain_and_holds_the_recipe(tiny: Tiny, undisturbed: Undisturbed) -> None:
    path = list_checkpoints(undisturbed(tiny(*SHORT)) / "checkpoints")[-1]
    content = torch.load(path, weights_only=True)
    assert set(content["hyper_parameters"]) == {"recipe", "tokenizer"}
    module = Seq2SeqModule.load_from_checkpoint(path, weights_only=True)
    weights = checkpoint_weights(path)
    assert all(
        torch.equal(value, weights[name]) for name, value in module.model.state_dict().items()
    )


@pytest.mark.parametrize("trainer", ["{accelerator: tpu}", "{accelerator: mps}"])
def test_a_trainer_setting_that_lightning_refuses_is_an_error_at_its_line(
    tiny: Tiny, tmp_path: Path, trainer: str
) -> None:
    with pytest.raises(RecipeError, match="Lightning refuses this configuration") as raised:
        train(tiny(f"trainer={trainer}"), tmp_path / "run")
    assert raised.value.faults[0].path == f"trainer.{trainer[1:].partition(':')[0]}"
    assert not (tmp_path / "run").exists()


def test_what_lightning_says_of_a_precision_is_an_error_at_its_line(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise ValueError("no plugin computes at this precision")

    monkeypatch.setattr(trainer, "Trainer", refuse)
    with pytest.raises(RecipeError, match="Lightning refuses this configuration") as raised:
        train(tiny("training.precision=64"), tmp_path / "run")
    assert raised.value.faults[0].path == "training.precision"


def test_progress_can_be_switched_off(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(
        tiny(*SHORT, "trainer={enable_progress_bar: false, log_every_n_steps: 1}"), tmp_path / "run"
    )
    assert not capsys.readouterr().out
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]


def test_scores_and_outputs_that_were_changed_are_reported(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    train(tiny("training.max_steps=2", "training.validate_every=2"), run.path)
    text, decoded = run.record.read_text(encoding="utf-8"), run.hypotheses("test")
    score = json.loads(text)["scores"]["test/loss"]
    changed = text.replace(json.dumps(score), json.dumps(score / 2), 1)
    run.record.write_text(changed, encoding="utf-8")
    with pytest.raises(
        RunError, match=r"the scores in run\.json are not those that the training wrote"
    ):
        run.read()
    with pytest.raises(RunError, match=r"the scores in run\.json"):
        composer.pack(run.path, tmp_path / "pack")
    monkeypatch.setenv(UNVERIFIED, "1")
    assert composer.open_run(run.path)
    monkeypatch.delenv(UNVERIFIED)
    run.record.write_text(text, encoding="utf-8")
    decoded.write_text(
        decoded.read_text(encoding="utf-8").replace('"mt": "', '"mt": "x', 1), encoding="utf-8"
    )
    with pytest.raises(RunError, match="its SHA-256 is not `hypotheses_sha256`") as refused:
        composer.report(run.path)
    assert refused.value.faults[0].file == str(decoded)
    decoded.unlink()
    assert composer.report(run.path)
    hashes = ("results_sha256", "hypotheses_sha256")
    of_before = {key: value for key, value in json.loads(changed).items() if key not in hashes}
    run.record.write_text(json.dumps(of_before), encoding="utf-8")
    assert composer.open_run(run.path)  # of a run of 0.1.0 nobody can say
