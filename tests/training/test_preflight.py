"""Settings that the budget never reaches are warnings; what only this machine cannot do is left out
on request.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from composer.api import check
from composer.checks import machine
from composer.checks.planner import plan
from composer.cli import main
from composer.data.sources import DataSource
from composer.errors import RecipeError
from composer.model.machine import available_memory
from composer.training import trainer
from composer.training.dry_run import dry_run
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.training.tiny_recipes import TINY, Tiny

STOPPING = "training.early_stopping"
UNREACHED = [
    (
        "training.schedule",
        ["training.schedule={cosine: {warmup_steps: 50}}", "training.max_steps=40"],
        "takes 50 steps",
    ),
    (
        "training.schedule",
        ["training.schedule=inverse_sqrt", "training.max_epochs=1"],
        "takes 400 steps",
    ),
    (
        "training.schedule",
        ["training.schedule={cosine: {warmup_steps: 10}}", "training.max_steps=40"],
        "rises during 25%",
    ),
    (
        "training.schedule",
        ["training.schedule={linear: {warmup_steps: 0.3}}", "training.max_minutes=1"],
        "during 30%",
    ),
    (
        "training.schedule",
        [
            "training.schedule={plateau: {patience: 4}}",
            "training.max_steps=40",
            "training.validate_every=10",
        ],
        "5 validations before the last one, and there are 3",
    ),
    (
        "training.schedule",
        ["training.schedule={epoch_decay: {after: 4}}", "training.max_epochs=4"],
        "there are 4 epoch",
    ),
    (
        "training.asgd",
        ["training.asgd={patience: 2}", "training.max_epochs=4"],
        "4 validations before the last one",
    ),
    (
        STOPPING,
        [f"{STOPPING}={{patience: 3}}", "training.max_epochs=4"],
        "4 validations before the last one",
    ),
    (
        "training.average_checkpoints",
        ["training.average_checkpoints=9", "training.max_epochs=3"],
        "more than 3 checkp",
    ),
    (
        "training.curriculum",
        ["training.curriculum={start: 1}", "training.max_epochs=2"],
        "raise its level to 1",
    ),
    (
        "training.max_steps",
        ["training.max_epochs=2", "training.max_steps=9999"],
        "the other budget always ends",
    ),
    (
        "training.max_epochs",
        ["training.max_epochs=999", "training.max_steps=12"],
        "the other budget always ends",
    ),
]


@pytest.mark.parametrize(("path", "overrides", "message"), UNREACHED)
def test_a_setting_that_the_budget_never_reaches(
    tiny: Tiny, path: str, overrides: list[str], message: str
) -> None:
    everything = ["training.max_steps=null", "training.validate_every=null", *overrides]
    (warning,) = check_recipe(tiny(*everything)).warnings
    assert (warning.severity, warning.code, warning.line) == ("warning", "budget", 1)
    assert warning.path.startswith(path)
    assert message in warning.message


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.schedule={cosine: {warmup_steps: 8}}", "training.max_steps=40"],
        ["training.schedule={cosine: {warmup_steps: 0.2}}", "training.max_steps=40"],
        ["training.schedule=inverse_sqrt", "training.max_minutes=1"],
        [f"{STOPPING}={{patience: 2}}", "training.max_epochs=4"],
        [f"{STOPPING}={{goal: 0.1}}", "training.max_epochs=2"],
        ["training.average_checkpoints=3", "training.max_epochs=3"],
        ["training.curriculum={start: 1, step: 90}", "training.max_epochs=3"],
    ],
)
def test_a_setting_that_the_budget_reaches(tiny: Tiny, overrides: list[str]) -> None:
    assert (
        check_recipe(
            tiny("training.max_steps=null", "training.validate_every=null", *overrides)
        ).warnings
        == ()
    )


@pytest.mark.parametrize("train_", [False, True])
def test_epochs_of_an_endless_task_are_not_all_as_long_as_the_first(
    tiny: Tiny, tmp_path: Path, train_: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has one step, and others have two: there are validations to be waited for."""
    task = "{train: 40, val: 4, test: 4, min_length: 1, max_length: 3, symbols: 9}"
    overrides = [
        f"data={{generate: {{reverse: {task}}}, tokenizer: char, max_length: 3}}",
        "training.max_steps=null",
        "training.max_epochs=5",
        "training.tokens_per_batch=20",
        "training.schedule=constant",
        "training.validate_every=3",
        "training.early_stopping={patience: 1, min_delta: 0.5}",
        "model.output.tie=[]",
    ]
    if not train_:
        assert check_recipe(tiny(*overrides)).warnings == ()
        return
    result = train(tiny(*overrides), tmp_path / "run")
    assert "warning[budget]" not in capsys.readouterr().out
    assert result.record.steps > 5


def test_a_curriculum_over_an_endless_task_whose_first_pairs_are_of_one_length(tiny: Tiny) -> None:
    task = (
        "data={generate: {copy: {train: 2, val: 2, test: 2, max_length: 3, seed: %d}}, tokenizer:"
        " char}"
    )
    curriculum = [
        "training.curriculum={start: 1, by: source}",
        "training.validate_every=null",
        "model.output.tie=[]",
    ]
    for seed in range(1, 30):
        recipe = tiny(task % seed, *curriculum)
        sample = dry_run(DataSource(recipe, []))
        assert sample is not None
        assert sample.data.train is not None
        if len({*sample.data.train.lengths("source")}) == 1:
            break
    else:
        pytest.fail("no seed gives two pairs of one length")
    assert not any("all pairs have" in warning.message for warning in check_recipe(recipe).warnings)


def test_a_curriculum_over_pairs_of_one_length_is_a_warning(tiny: Tiny) -> None:
    lengths = [
        "data.generate.reverse.min_length=6",
        "data.tokenizer={word: {joint: true}}",
        "training.curriculum={start: 1}",
    ]
    (warning,) = check_recipe(tiny(*lengths)).warnings
    assert (warning.code, warning.path, warning.severity) == (
        "unused",
        "training.curriculum",
        "warning",
    )
    assert "all pairs have 6 tokens" in warning.message


def test_a_task_of_very_many_pairs_is_a_warning(tiny: Tiny) -> None:
    recipe = tiny("data.generate.reverse.train=50000000")
    (warning,) = (fault for fault in check_recipe(recipe).warnings if "drawing" in fault.message)
    assert (warning.path, warning.severity) == ("data.generate.reverse.train", "warning")
    assert "about 17 minutes and 23.3 GiB of memory" in warning.message


def test_a_curriculum_that_starts_with_all_pairs_is_a_warning(tiny: Tiny) -> None:
    longest = 6  # of the target, eos not counted
    (warning,) = check_recipe(tiny(f"training.curriculum={{start: {longest + 20}}}")).warnings
    assert (warning.code, warning.path, warning.severity) == (
        "unused",
        "training.curriculum",
        "warning",
    )
    assert "no pair has more than" in warning.message
    rising = check_recipe(tiny("training.curriculum={start: 2, step: 9}")).warnings
    assert not any(fault.code == "unused" for fault in rising)


def test_check_and_plan_print_the_warning_and_exit_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text(
        TINY.replace("warmup_steps: 2", "warmup_steps: 50"), encoding="utf-8"
    )
    for arguments in (["check"], ["plan"], ["check", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main.main([*arguments, str(tmp_path / "r.yaml")])
        out, err = capsys.readouterr()
        assert ended.value.code == 0
        if "--json" in arguments:
            assert [(fault["code"], fault["severity"]) for fault in json.loads(out)] == [
                ("budget", "warning")
            ]
        else:
            assert err.startswith(f"{tmp_path / 'r.yaml'}:15:")
            assert "warning[budget]: the learning rate never reaches" in err


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_strict_check_exits_with_2_for_a_warning(more: list[str], tmp_path: Path) -> None:
    (tmp_path / "warned.yaml").write_text(
        TINY.replace("warmup_steps: 2", "warmup_steps: 50"), encoding="utf-8"
    )
    (tmp_path / "clean.yaml").write_text(TINY, encoding="utf-8")
    for name, status in (("warned", 2), ("clean", 0)):
        with pytest.raises(SystemExit) as ended:
            main.main(["check", "--strict", *more, str(tmp_path / f"{name}.yaml")])
        assert ended.value.code == status


def test_train_prints_the_warning(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(
        tiny("training.schedule={cosine: {warmup_steps: 50}}", "training.max_steps=2"),
        tmp_path / "run",
    )
    assert "warning[budget]: the learning rate never reaches" in capsys.readouterr().out


@pytest.mark.parametrize("override", ["training.precision=16-mixed", "trainer.accelerator=gpu"])
def test_what_this_machine_cannot_do(
    tiny: Tiny, override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for better in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(better, "is_available", lambda: False)
    (fault,) = check(tiny(override))
    assert fault.message.startswith("on this machine, ")
    assert "--any-machine" in fault.hint
    assert check(tiny(override), any_machine=True) == []


def test_bf16_mixed_is_checked_without_lightning(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import would take more than all the rest of `check`."""
    monkeypatch.setattr(trainer, "build_trainer", lambda _: pytest.fail("not needed"))
    assert check(tiny("training.precision=bf16-mixed")) == []


def test_what_a_gpu_does_not_decode_with(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    override = "decoding.precision=int8"
    assert check(tiny(override)) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "available_memory", lambda: 1e12)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1e12)
    )
    (fault,) = check(tiny(override))
    assert fault.message == "on this machine, a GPU decodes in `float32` or `bfloat16`"
    assert fault.path == "decoding.greedy.precision"
    assert check(tiny(override, "trainer.accelerator=cpu")) == []


def test_a_model_that_the_memory_cannot_train(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights fit, and with gradients and Adam's two means of each they do not."""
    sample = dry_run(DataSource(tiny(), []))
    assert sample is not None
    parameters = plan(tiny(), sample.data.tokenizers.sizes).parameters
    monkeypatch.setattr(machine, "available_memory", lambda: 8.0 * parameters)
    assert available_memory() > 8.0 * parameters
    (fault,) = check(tiny())
    assert (fault.code, fault.path) == ("memory", "model.width")
    assert check(tiny(), any_machine=True) == check(tiny("training.optimizer=sgd")) == []
    with pytest.raises(RecipeError, match="GiB of memory"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
