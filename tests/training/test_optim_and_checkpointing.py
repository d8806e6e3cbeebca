"""Schedules, optimizers, budgets, checkpoints, metrics and progress, tested without a training."""

from __future__ import annotations

import io
import itertools
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from urllib.parse import urlparse

import numpy as np
import pytest
import torch
import wandb
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from composer.errors import RunError
from composer.fingerprint import versions
from composer.formatting import format_duration
from composer.inference.run import Sample
from composer.model.trained_parameters import TrainedParameters
from composer.recipe.choices import Optimizer, Progress
from composer.recipe.sections import EarlyStopping, WandB
from composer.run_dir import (
    RunDir,
    checkpoint_path,
    is_intact,
    latest_checkpoint,
    list_checkpoints,
    read_metrics,
)
from composer.runs.record import RunRecord
from composer.training import loggers
from composer.training.budget import Budget, Clock
from composer.training.checkpointing import AtomicCheckpointIO, CheckpointManager, has_finite_state
from composer.training.early_stopping import should_stop
from composer.training.loggers import JsonLinesWriter, ProgressDisplay
from composer.training.optimizers import OPTIMIZERS, RmsProp, Sgd
from composer.training.random_state import capture_rng_state, restore_rng_state
from composer.training.schedules import SCHEDULES
from composer.training.wandb_logger import is_logged_in, wandb_mode
from composer.training.weight_average import average_weights

# -------------------------------------------------------------------------------------------
# schedules


@pytest.mark.parametrize("name", SCHEDULES)
@given(step=st.integers(0, 100_000), spent=st.floats(0, 1))
def test_a_schedule_is_a_factor(name: str, step: int, spent: float) -> None:
    assert 0 <= SCHEDULES[name]().factor_at(Progress(step, spent)) <= 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_warms_up(name: str) -> None:
    factors = [
        SCHEDULES[name](warmup_steps=10).factor_at(Progress(step, 0.0)) for step in range(10)
    ]
    assert factors == pytest.approx([(step + 1) / 10 for step in range(10)])


@pytest.mark.parametrize("name", ["inverse_sqrt", "cosine", "linear"])
@pytest.mark.parametrize(
    ("warmup_steps", "budget"), [(10, 40), (0.25, 40), (10, 40.7), (39, 40), (0.9, 40)]
)
def test_a_schedule_reaches_the_stated_rate_and_decays_from_there(
    name: str, warmup_steps: float, budget: float
) -> None:
    factors = [
        SCHEDULES[name](warmup_steps=warmup_steps).factor_at(Progress(step, step / budget))
        for step in range(41)
    ]
    end = warmup_steps - 1 if warmup_steps >= 1 else math.ceil(warmup_steps * budget)
    assert factors[end] == pytest.approx(1, abs=0.05)
    assert factors[: end + 1] == sorted(factors[: end + 1])
    assert factors[end:] == sorted(factors[end:], reverse=True)
    if name != "inverse_sqrt":
        assert factors[40] == pytest.approx(0, abs=0.03)


def test_a_warm_up_in_steps_is_the_same_share_of_a_budget_in_minutes() -> None:
    in_steps = [
        SCHEDULES["cosine"](warmup_steps=10).factor_at(Progress(step, step / 40))
        for step in range(41)
    ]
    in_minutes = [
        SCHEDULES["cosine"](warmup_steps=10).factor_at(Progress(step, step * 0.15 / 6))
        for step in range(41)
    ]
    assert in_minutes == pytest.approx(in_steps)


def test_schedules_equal_values_by_hand() -> None:
    assert SCHEDULES["inverse_sqrt"](warmup_steps=100).factor_at(
        Progress(399, 0.0)
    ) == pytest.approx(0.5)
    assert SCHEDULES["cosine"](final=0.2).factor_at(Progress(9, 0.5)) == pytest.approx(0.6)
    assert SCHEDULES["cosine"](final=0.2).factor_at(Progress(9, 1.0)) == pytest.approx(0.2)
    assert SCHEDULES["linear"]().factor_at(Progress(9, 0.25)) == pytest.approx(0.75)
    assert SCHEDULES["constant"]().factor_at(Progress(9, 0.9)) == 1
    stairs = [
        SCHEDULES["staircase"](shares=[0.2, 0.5, 0.5]).factor_at(Progress(9, at))
        for at in (0.1, 0.2, 0.4, 0.5, 1.0)
    ]
    assert stairs == [1, 0.5, 0.5, 0.125, 0.125]
    losses = (3.0, 2.0, 2.5, 2.1, 1.9, 2.0, 2.0, 2.0, 2.0)
    assert [
        SCHEDULES["plateau"]().factor_at(Progress(9, 0.5, losses[:n]))
        for n in range(len(losses) + 1)
    ] == [
        1,
        1,
        1,
        1,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
        0.125,
    ]


def test_the_schedule_of_kim_2016() -> None:
    """The rule of its train script: halved if the perplexity is not 1.0 below that of the epoch
    before.
    """
    kim = {"patience": 1, "monitor": "perplexity", "threshold": 1.0, "compare_with": "previous"}
    perplexities = [300.0, 150.0, 120.0, 119.5, 117.0, 118.0, 116.5, 116.2, 115.5, 115.0, 110.0]
    rate, rates = 1.0, [1.0, 1.0]
    for before, now in itertools.pairwise(perplexities):
        rate *= 0.5 if before - now < 1.0 else 1.0
        rates.append(rate)
    losses = tuple(map(math.log, perplexities))
    assert [
        SCHEDULES["plateau"](**kim).factor_at(Progress(9, 0.5, losses[:n]))
        for n in range(len(losses) + 1)
    ] == rates
    best = SCHEDULES["plateau"](**kim | {"compare_with": "best"}).factor_at(
        Progress(9, 0.5, losses[:7])
    )
    # 116.5 is 1.5 below the epoch before, and 0.5 below the best
    assert (best, rates[7]) == (0.125, 0.25)
    # infinite perplexities
    assert SCHEDULES["plateau"](**kim).factor_at(Progress(9, 0.5, (1000.0, 999.0))) == 0.5


@pytest.mark.parametrize(
    ("after", "factor", "epochs"), [(4, 0.5, 13), (6, 1 / 1.2, 39), (14, 1 / 1.15, 55)]
)
def test_the_schedules_of_zaremba_2014(after: int, factor: float, epochs: int) -> None:
    rate = 1.0
    for epoch in range(1, epochs + 1):  # from 1, as the paper counts
        rate *= factor if epoch > after else 1.0
        for done in (0.0, 0.5, 0.999):
            at = Progress(9, 0.5, epochs=epoch - 1 + done)
            assert SCHEDULES["epoch_decay"](after=after, factor=factor).factor_at(
                at
            ) == pytest.approx(rate)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_decreases_the_loss(name: str) -> None:
    x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = OPTIMIZERS[name](learning_rate=0.05).build(TrainedParameters([x]))
    before = float(x.detach().square().sum())
    for _ in range(50):
        optimizer.zero_grad()
        x.square().sum().backward()
        optimizer.step()
    assert float(x.detach().square().sum()) < before


WITH_MORE = [Sgd(momentum=0.9), RmsProp(momentum=0.9), RmsProp(momentum=0.9, centered=True)]


@pytest.mark.parametrize("kind", [*(kind() for kind in OPTIMIZERS.values()), *WITH_MORE], ids=str)
def test_an_optimizer_remembers_as_many_numbers_as_it_says(kind: Optimizer) -> None:
    sizes = (3, 2), (4, 5), (2, 3, 4), (6,)
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
    trained = TrainedParameters(parameters, hidden={id(parameters[0])})
    optimizer = kind.build(trained)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    count = 0
    for state in optimizer.state.values():
        tensors = [value for value in state.values() if torch.is_tensor(value)]
        count += sum(tensor.numel() for tensor in tensors if tensor.ndim)  # a step has none
    assert count == kind.count_states(trained)


# ------------------------------------------------------------------------------------------- budget


def test_the_spent_budget_is_the_largest_fraction() -> None:
    assert Budget(max_steps=10, max_epochs=4).spent(2, 3.0, 9.0) == 0.75
    assert Budget(max_minutes=2.0).spent(2, 3.0, 9.0) == 1.0
    assert Budget(max_steps=10).spent(0, 0.0, 0.0) == 0.0


def test_a_clock_counts_processor_time() -> None:
    clock = Clock(on_cpu=True, before=5.0)
    time.sleep(0.05)
    idle = clock.minutes()
    assert 5.0 <= idle < 5.0 + 0.04 / 60
    while clock.minutes() == idle:
        math.factorial(2000)
    assert Clock(on_cpu=False, before=1.0).minutes() >= 1.0


def test_the_minutes_of_a_training_are_known_when_its_threads_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several processes on one CPU share its threads while they train, and the first has all of
    them afterwards.
    """
    monkeypatch.setattr(time, "process_time", lambda: 60.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    clock = Clock(on_cpu=True, before=5.0)
    monkeypatch.setattr(time, "process_time", lambda: 180.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert clock.minutes() == 6.0


# -------------------------------------------------------------------------------------------
# checkpoints


def test_an_optimizer_may_count_its_steps_in_main_memory() -> None:
    model, device = torch.nn.Linear(3, 2, device="meta"), torch.device("meta")  # stands for a GPU
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    assert {
        value.device.type for state in optimizer.state.values() for value in state.values()
    } == {"cpu", "meta"}
    strategy = SimpleNamespace(
        root_device=device, reduce=lambda value, reduce_op: value.device != device
    )
    trainer: Any = SimpleNamespace(
        optimizers=[optimizer], lightning_module=model, strategy=strategy
    )
    assert has_finite_state(trainer)


def test_a_saved_checkpoint_is_loaded_unchanged(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 12)
    AtomicCheckpointIO().save_checkpoint({"a": torch.arange(3), "b": [1, "x", None]}, path)
    found = AtomicCheckpointIO().load_checkpoint(path)
    assert found["b"] == [1, "x", None]
    assert torch.equal(found["a"], torch.arange(3))
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"{path.name}.sha256"}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "no digest"])
def test_the_newest_intact_checkpoint_is_the_latest(tmp_path: Path, damage: str) -> None:
    for step in (1, 2):
        AtomicCheckpointIO().save_checkpoint({"step": step}, checkpoint_path(tmp_path, step))
    newest = checkpoint_path(tmp_path, 2)
    content = newest.read_bytes()
    if damage == "no digest":
        (tmp_path / f"{newest.name}.sha256").unlink()
    else:
        flipped = content[:50] + bytes([content[50] ^ 1]) + content[51:]
        newest.write_bytes({"cut": content[:-9], "flip": flipped, "empty": b""}[damage])
    told: list[str] = []
    assert latest_checkpoint(tmp_path, told.append) == checkpoint_path(tmp_path, 1)
    assert len(told) == 1
    with pytest.raises(RunError, match="damaged"):
        AtomicCheckpointIO().load_checkpoint(newest)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    AtomicCheckpointIO().save_checkpoint({"a": 1}, path)
    with pytest.raises(Exception, match="pickle"):
        AtomicCheckpointIO().save_checkpoint({"a": lambda: 0}, path)
    assert is_intact(path)
    assert AtomicCheckpointIO().load_checkpoint(path) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (Path(tmp_path, "ran").touch, ())

    path = checkpoint_path(tmp_path, 1)
    AtomicCheckpointIO().save_checkpoint({"a": Bad()}, path)
    with pytest.raises(Exception, match=r"[Ww]eights"):
        AtomicCheckpointIO().load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_the_mean_of_checkpoints_keeps_types(tmp_path: Path) -> None:
    for step in (1, 3):
        state = {
            "model.w": torch.full((2,), float(step), dtype=torch.bfloat16),
            "model.n": torch.tensor(7),
        }
        AtomicCheckpointIO().save_checkpoint({"state_dict": state}, checkpoint_path(tmp_path, step))
    mean = average_weights(list_checkpoints(tmp_path))
    assert mean["w"].dtype == torch.bfloat16
    assert mean["w"].tolist() == [2.0, 2.0]
    assert mean["n"] == 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_mean_of_tied_weights_is_that_of_each_name(tmp_path: Path, dtype: torch.dtype) -> None:
    for step in (1, 3, 8):
        tied = torch.full((2,), float(step), dtype=dtype)
        AtomicCheckpointIO().save_checkpoint(
            {"state_dict": {"model.a": tied, "model.b": tied}}, checkpoint_path(tmp_path, step)
        )
    mean = average_weights(list_checkpoints(tmp_path))
    assert mean["a"].tolist() == mean["b"].tolist() == [4.0, 4.0]


def test_pruning_leaves_the_last_checkpoints_and_the_best(tmp_path: Path) -> None:
    class Writes:
        is_global_zero = True
        optimizers = ()
        lightning_module = torch.nn.Linear(1, 1)
        strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)

        def save_checkpoint(self, path: Path) -> None:
            AtomicCheckpointIO().save_checkpoint({}, path)

    manager, history = CheckpointManager(tmp_path, metric="val/bleu"), []
    for step, bleu in ((5, 1.0), (10, 9.0), (15, float("nan")), (20, 3.0), (25, 4.0)):
        history.append({"step": float(step), "val/bleu": bleu})
        manager.save(Writes(), step, history)  # type: ignore[arg-type]
    manager.save(Writes(), 27, history)  # type: ignore[arg-type]
    assert [path.stem for path in list_checkpoints(tmp_path)] == [
        f"step-{step:08d}" for step in (10, 20, 25, 27)
    ]
    assert manager.best(history) == checkpoint_path(tmp_path, 10)
    assert manager.best([{"step": 1.0}]) is None


def test_early_stopping_counts_validations_without_improvement() -> None:
    losses = [{"val/loss": value} for value in (3.0, 2.0, 2.1, 1.95, 1.94)]
    assert not should_stop(
        EarlyStopping(metric="val/loss", patience=2, min_delta=0.0, goal=None), losses
    )
    assert should_stop(
        EarlyStopping(metric="val/loss", patience=3, min_delta=0.1, goal=None), losses
    )
    falling = [{"val/bleu": value} for value in (3.0, 2.0, 1.0)]
    assert should_stop(
        EarlyStopping(metric="val/bleu", patience=2, min_delta=0.0, goal=None), falling
    )


def test_random_states_are_restored() -> None:
    def draw() -> list[float]:
        return [torch.rand(()).item(), random.random(), float(np.random.rand()), random.gauss(0, 1)]

    draw()
    states = capture_rng_state()
    buffer = io.BytesIO()
    torch.save(states, buffer)
    buffer.seek(0)
    first = draw()
    restore_rng_state(torch.load(buffer, weights_only=True))
    assert draw() == first


# ------------------------------------------------------------------------------------------- what
# is written


def test_metrics_are_read_back_and_later_rows_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = JsonLinesWriter(path)
    for step in (10, 20, 30):
        log.write({"step": step, "epoch": 1.0, "train/loss": float("nan") if step == 20 else 1.5})
    log.close()
    with path.open("a") as file:
        file.write('{"step": 40, "tra')
    assert [row["step"] for row in read_metrics(path)] == [10, 20, 30]
    assert read_metrics(path)[1]["train/loss"] is None
    JsonLinesWriter(path, after=20).close()
    assert [row["step"] for row in read_metrics(path)] == [10, 20]


def test_run_json_is_written_updated_and_read(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        folder.read()
    folder.write(RunRecord(status="running"))
    folder.write(replace(folder.read(), status="finished", steps=3))
    assert (folder.read().status, folder.read().steps) == ("finished", 3)
    folder.record.write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        folder.read()
    assert versions()["torch"]


# ------------------------------------------------------------------------------------------- what
# is shown

ROW = {"step": 20, "epoch": 0.5, "train/loss": 2.5, "train/tokens_per_second": 1234.0}


def shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> str:
    monkeypatch.setenv("TERM", "xterm")
    display = ProgressDisplay()
    display.console = Console(force_terminal=terminal, width=120)
    display.begin(0.0)
    display.began = (time.monotonic() - 30, 0.0)
    display.row(ROW, 0.25)
    display.row(ROW, 0.26)
    display.validating(20, 0.26)
    display.validated(
        {"step": 20, "val/loss": 2.0, "val/bleu": 12.34}, [Sample("[a]", "b", "c" * 500)]
    )
    display.close()
    return capsys.readouterr().out


def a_full_disk() -> IO[str]:
    return open("/dev/full", "w")


def a_closed_pipe() -> IO[str]:
    reads, writes = os.pipe()
    os.close(reads)
    return os.fdopen(writes, "w")


@pytest.mark.parametrize("lost", [a_full_disk, a_closed_pipe])
def test_a_closed_or_full_output_is_ignored(
    monkeypatch: pytest.MonkeyPatch, lost: Callable[[], IO[str]]
) -> None:
    with lost() as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        display = ProgressDisplay()
        for _ in range(3):
            display.say("a line")
        display.row(ROW, 0.25)
        display.close()


def test_output_without_a_terminal_is_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(monkeypatch, capsys, terminal=False)
    assert "\x1b" not in said
    assert said.count("tokens/s") == 1
    assert "loss 2.500" in said
    assert "1:30 left" in said
    assert "BLEU 12.34" in said
    assert "    [a]\n      -> ccc" in said


def test_scores_are_always_shown_and_translations_occasionally(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ProgressDisplay()
    for step, loss in enumerate([2.0, 1.5, 1.75], start=1):
        display.validated({"step": step, "val/loss": loss}, [Sample("a", "b", f"try {step}")])
    said = capsys.readouterr().out
    assert [said.count(f"validation at step {step}") for step in (1, 2, 3)] == [1, 1, 1]
    assert ("try 1" in said, "try 2" in said, "try 3" in said) == (True, False, False)
    assert [line.partition("  (")[2] for line in said.splitlines() if "validation" in line] == [
        "",
        "loss -0.500)",
        "loss +0.250)",
    ]
    monkeypatch.setattr(loggers, "SAMPLE_SECONDS", 0.0)
    display.validated({"step": 4, "val/loss": 1.0}, [Sample("a", "b", "try 4")])
    assert "try 4" in capsys.readouterr().out


def test_a_narrow_terminal_shows_the_first_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    display = ProgressDisplay()
    display.console = Console(force_terminal=True, width=80, color_system=None)
    display.scores = "loss 2.000  bleu 12.3"
    display.begin(0.0)
    display.began = (time.monotonic() - 30, 0.0)
    display.row({**ROW, "step": 120_000, "epoch": 99.5}, 0.25)
    display.close()
    said = capsys.readouterr().out
    assert "1:30 left  step 120,000  epoch 99.50  loss 2.500  val loss" in said


def test_a_terminal_shows_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loggers, "LIVE_SECONDS", 0.0)
    said = shown(monkeypatch, capsys, terminal=True)
    assert "\x1b[" in said
    assert " 25%" in said
    assert "1,234 tokens/s" in said
    assert "step 20  validating ..." in said
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(monkeypatch, capsys, terminal=True)


def test_durations_are_formatted_as_hours_minutes_seconds() -> None:
    assert [format_duration(seconds) for seconds in (0, 59.6, 3725)] == ["0:00", "1:00", "1:02:05"]


# ------------------------------------------------------------------------------------------- W&B's
# mode


@pytest.mark.parametrize(
    ("settings", "variable", "logged_in", "mode"),
    [
        (None, "", True, "offline"),
        (None, "online", True, "online"),
        (None, "online", False, "offline"),
        (None, "disabled", True, "disabled"),
        (False, "online", True, "disabled"),
        (WandB(), "", True, "online"),
        (WandB(), "", False, "offline"),
        (WandB(project="p"), "offline", True, "offline"),
        (WandB(mode="offline"), "", True, "offline"),
        (WandB(mode="disabled"), "", True, "disabled"),
        (WandB(mode="online"), "", False, "offline"),
    ],
)
def test_the_wandb_mode_depends_on_recipe_variable_and_login(
    settings: Any,
    variable: str,
    logged_in: bool,
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    key = {"WANDB_API_KEY": "x"} if logged_in else {}
    assert wandb_mode(settings, {"WANDB_MODE": variable, **key}) == mode
    if not variable:
        assert wandb_mode(settings, key) == mode


def test_wandb_login_is_read_from_environment_and_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not is_logged_in({})
    assert is_logged_in({"WANDB_API_KEY": "x"})
    default = urlparse(wandb.Settings.model_fields["base_url"].default).hostname
    for host in (default, "api.wandb.ai"):  # W&B takes the key of its earlier default, too
        (tmp_path / ".netrc").write_text(f"machine {host}\n  login user\n  password x\n")
        (tmp_path / ".netrc").chmod(0o600)
        assert is_logged_in({})
        assert is_logged_in({"WANDB_BASE_URL": f"https://{default}"})
        assert not is_logged_in({"WANDB_BASE_URL": "https://wandb.example.org"})
    (tmp_path / ".netrc").write_text("machine wandb.example.org\n  login user\n  password x\n")
    assert not is_logged_in({})
    assert is_logged_in({"WANDB_BASE_URL": "https://wandb.example.org"})
