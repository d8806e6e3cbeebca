"""Budgets that change when a run is resumed, and runs that are finished early."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer.atomic_io import sha256_of_file
from composer.errors import RunError
from composer.inference.run import open_run
from composer.recipe.choices import Progress
from composer.recipe.recipe import load
from composer.run_dir import RunDir, read_metrics
from composer.runs.record import Budget, RunRecord
from composer.training import callback
from composer.training.budget import replace_budget
from composer.training.callback import TrainingLoopCallback
from composer.training.train import train
from tests.training.interruptions import (
    Killed,
    die,
    interrupted_at_step,
    killed_at_step,
    killed_in_batch,
)
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

UNTIL_6 = Budget(6, until_step=6, validated=True)


def repeat(run: Path, to: Path) -> RunRecord:
    """Reproduce a run, and return the reproduction's run.json."""
    return train(load(run / "recipe.yaml"), to).record


@pytest.fixture
def finished(tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed) -> Path:
    """A copy of a run of six steps that is finished."""
    return Path(shutil.copytree(undisturbed(tiny("training.max_steps=6")), tmp_path / "run"))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (
            "training.validate_every=null",
            "training.early_stopping={patience: 9}",
            "training.schedule=plateau",
        ),
        ("training.accumulate=2", "training.average_checkpoints=3"),
    ],
)
def test_an_extended_run_is_repeated_to_the_bit(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, overrides: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    first = train(tiny("training.max_steps=6", *overrides), run).record
    record = train(tiny("training.max_steps=11", *overrides), run, resume=True).record
    assert record.budgets == (UNTIL_6, Budget(11))
    assert (record.steps, record.status) == (11, "finished")
    assert record.fingerprints["run"] != first.fingerprints["run"]
    rates = [
        row["train/learning_rate"]
        for row in read_metrics(run / "metrics.jsonl")
        if "train/learning_rate" in row
    ]
    assert overrides or rates[1] < rates[2]  # the cosine of the larger budget
    assert any(
        row["step"] == 6 and "epoch" not in row for row in read_metrics(run / "metrics.jsonl")
    )
    again = repeat(run, tmp_path / "again")
    assert again.reproduces.same is True
    assert again.budgets == record.budgets
    assert again.fingerprints == record.fingerprints
    assert overrides or not same_weights(run, undisturbed(tiny("training.max_steps=11")))


def test_an_interrupted_run_with_a_new_budget_is_repeated(
    tiny: Tiny, tmp_path: Path, interrupted: Path
) -> None:
    record = train(tiny("training.max_steps=10"), interrupted, resume=True).record
    assert record.budgets == (Budget(12, until_step=7, validated=False), Budget(10))
    with interrupted_at_step(9):  # while the reproduction is under way, in its second budget
        repeat(interrupted, tmp_path / "again")
    recipe = load(interrupted / "recipe.yaml")
    assert train(recipe, tmp_path / "again", resume=True).record.reproduces.same is True


class Hare:
    """A clock that is never as fast twice."""

    runs = 0

    def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
        Hare.runs += 1
        self.now, self.pace = before, 0.01 + 0.003 * Hare.runs

    def minutes(self) -> float:
        self.now += self.pace
        return self.now


def test_a_budget_in_minutes_is_extended_and_repeated(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback, "Clock", Hare)
    minutes = ("training.max_steps=null", "training.validate_every=5", "training.max_minutes")
    run = tmp_path / "run"
    train(tiny(*minutes[:2], f"{minutes[2]}=0.2"), run)
    record = train(tiny(*minutes[:2], f"{minutes[2]}=0.5"), run, resume=True).record
    first, second = record.budgets
    assert (first.max_minutes, second) == (0.2, Budget(max_minutes=0.5))
    assert 0 < first.until_step < record.steps
    again = repeat(run, tmp_path / "again")
    assert (again.steps, again.reproduces.same) == (record.steps, True)


def test_a_smaller_budget_ends_at_once_and_says_so(
    tiny: Tiny, tmp_path: Path, interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = interrupted
    record = train(tiny("training.max_steps=5"), run, resume=True).record
    assert (
        "no further step after step 7: the budget (max_steps 5) is spent; it ends with the best"
        in (" ".join(capsys.readouterr().out.split()))
    )
    assert (record.steps, record.checkpoints_used.checkpoints) == (7, ("step-00000004.ckpt",))
    again = repeat(run, tmp_path / "again")
    assert (again.steps, again.reproduces.same) == (7, True)
    train(tiny("training.max_steps=3"), run, resume=True)
    assert "already finished" in capsys.readouterr().out
    assert RunDir(run).read() == record


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """What was printed since the last call, on one line."""
    return lambda: " ".join(capsys.readouterr().out.split())


def test_an_interrupted_run_goes_on_with_its_own_budget(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, printed: Any
) -> None:
    run = tmp_path / "run"
    with interrupted_at_step(7):
        train(tiny("training.max_steps=8"), run)
    record = train(tiny(), run, resume=True).record
    assert (record.steps, record.budgets, record.recipe_budget) == (8, (Budget(8),), Budget(12))
    assert load(run / "recipe.yaml").training.max_steps == 8
    assert "budget: 8 steps, as the run has it (the recipe: 12)" in printed()
    assert same_weights(run, undisturbed(tiny("training.max_steps=8")))


def test_a_finished_run_is_finished_without_its_override(
    tiny: Tiny, finished: Path, printed: Any
) -> None:
    record = RunDir(finished).read()
    printed()
    assert train(tiny(), finished, resume=True).record == record
    lines = printed()
    assert "has already finished" in lines
    assert "a larger budget continues it, such as `--resume training.max_steps=12`" in lines
    train(tiny("training.max_steps=4"), finished, resume=True)
    assert "such as `--resume training.max_steps=12`" in printed()
    assert RunDir(finished).read() == record


def test_a_limit_of_the_command_line_is_new(tiny: Tiny, finished: Path, printed: Any) -> None:
    run = finished
    record = train(tiny("training.max_epochs=1"), run, resume=True).record
    assert record.budgets == (Budget(6),)
    assert "budget: no limit -> 1 epochs (from the command line)" in printed()
    record = train(tiny("training.max_steps=8"), run, resume=True).record
    assert (record.steps, record.budgets) == (8, (UNTIL_6, Budget(8)))
    assert "budget: 6 -> 8 steps (from the command line)" in printed()
    train(tiny("training.max_steps=12"), run, resume=True)  # what the recipe says, too
    assert "budget: 8 -> 12 steps (from the command line)" in printed()
    record = train(
        tiny("training.max_steps=null", "training.max_epochs=2"), run, resume=True
    ).record
    assert record.budgets[-1] == Budget(max_epochs=2)
    assert "budget: 12 -> no limit of steps (from the command line)" in printed()


def test_a_limit_that_was_edited_in_the_recipe_is_new(
    tiny: Tiny, tmp_path: Path, printed: Any
) -> None:
    run, file = tmp_path / "run", tiny().file
    train(tiny("training.max_steps=4"), run)
    file.write_text(file.read_text().replace("max_steps: 12", "max_steps: 8"))
    record = train(tiny(), run, resume=True).record
    assert (record.steps, record.recipe_budget) == (8, Budget(8))
    assert "budget: 4 -> 8 steps (from the recipe)" in printed()
    train(tiny("training.max_steps=9"), run, resume=True)
    train(load(run / "recipe.yaml", ["training.max_steps=10"]), run, resume=True)
    assert train(tiny(), run, resume=True).record.steps == 10


def test_the_default_budget_gives_way(tiny: Tiny, tmp_path: Path) -> None:
    file = tiny().file
    file.write_text(file.read_text().replace("  max_steps: 12\n", ""))
    record = train(tiny("training.max_epochs=1"), tmp_path / "run").record
    assert train(tiny(), tmp_path / "run", resume=True).record.epochs == record.epochs == 1
    extended = train(tiny("training.max_steps=11"), tmp_path / "run", resume=True).record
    assert extended.budgets[-1] == Budget(11)


def test_what_was_finished_stays_while_a_run_is_extended(
    tiny: Tiny, tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, before = finished, RunDir(finished).read()
    weights, outputs = sha256_of_file(run / "model.safetensors"), open_run(run).translate(["a b c"])
    for step in (7, 10):
        with killed_at_step(step):
            train(tiny("training.max_steps=12"), run, resume=True)
        record = RunDir(run).read()
        assert record.status != "finished"
        assert record.scores == before.scores
        assert sha256_of_file(run / "model.safetensors") == weights
        assert open_run(run).translate(["a b c"]) == outputs
        notes = capsys.readouterr().err
        assert (
            "of step 6, and there are newer checkpoints, to step 8: `--checkpoint best` takes"
            in notes
        ) == (step > 8)
    record = train(tiny(), run, resume=True).record  # it has 12 of the command line by now
    assert record.budgets == (UNTIL_6, Budget(12))
    assert repeat(run, tmp_path / "again").reproduces.same is True


def test_finish_ends_a_run_that_was_stopped(
    tiny: Tiny, tmp_path: Path, interrupted: Path, cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, step in ((interrupted, 7), (cut, 4)):
        record = train(tiny(), run, finish=True).record
        assert (record.status, record.finished_early, record.steps) == ("finished", True, step)
        assert record.checkpoints_used.checkpoints == ("step-00000004.ckpt",)
        assert {"val/loss", "test/loss", "test/exact_match"} <= record.scores.keys()
        assert train(tiny(), run, finish=True).record == record
        assert "there is nothing to do; a larger budget continues it" in " ".join(
            capsys.readouterr().out.split()
        )
        again = repeat(run, tmp_path / f"{run.name} again")
        assert (again.steps, again.reproduces.same, again.finished_early) == (step, True, True)
        assert again.fingerprints == record.fingerprints
    longer = train(tiny("training.max_steps=6"), cut, resume=True).record
    assert (longer.steps, longer.finished_early, len(longer.budgets)) == (6, False, 2)


def test_the_status_is_right_at_once_after_a_resume(
    tiny: Tiny, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RunDir(interrupted).read().ended_at is not None
    seen = []
    monkeypatch.setattr(
        TrainingLoopCallback,
        "on_train_start",
        lambda *_: seen.append(RunDir(interrupted).read()) or die(),
    )
    with pytest.raises(Killed):
        train(tiny(), interrupted, resume=True)
    assert [(record.status, record.ended_at) for record in seen] == [("running", None)]


def test_finish_with_another_budget_records_the_one_that_was_in_force(
    tiny: Tiny, tmp_path: Path, interrupted: Path
) -> None:
    record = train(tiny("training.max_steps=6"), interrupted, finish=True).record
    assert record.budgets == (Budget(12, until_step=7, validated=False),)
    assert repeat(interrupted, tmp_path / "again").reproduces.same is True
    assert train(tiny("training.max_steps=9"), interrupted, resume=True).record.steps == 9


def test_nothing_to_finish(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to finish"):
        train(tiny(), tmp_path / "nothing", finish=True)
    assert not (tmp_path / "nothing").exists()
    with killed_in_batch(2):
        train(tiny(), tmp_path / "run")
    with pytest.raises(RunError, match="nothing of this training has been saved"):
        train(tiny(), tmp_path / "run", finish=True)


def test_a_long_warmup_is_known_at_the_end_of_a_budget_in_minutes(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callback, "Clock", Hare)
    monkeypatch.setattr(Hare, "runs", 0)
    minutes = (
        "training.max_steps=null",
        "training.max_minutes=0.2",
        "training.schedule.cosine.warmup_steps",
    )
    for warmup, note in (
        (1, ""),
        (4, "rises during"),
        (400, "never reaches its value: that takes 400 steps, not "),
    ):
        train(tiny(*minutes[:2], f"{minutes[2]}={warmup}"), tmp_path / str(warmup))
        printed = " ".join(capsys.readouterr().out.split())
        assert (f"note: the learning rate {note}" in printed) == bool(note)


def test_the_minutes_of_a_run_are_without_its_last_evaluation(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks: list[Any] = []

    class Clock(Hare):
        def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
            super().__init__(on_cpu, before)
            clocks.append(self)

        def minutes(self) -> float:
            return self.now

    def evaluate(*arguments: Any) -> dict[str, Any]:
        clocks[-1].now += 5.0
        return {}

    monkeypatch.setattr(callback, "Clock", Clock)
    monkeypatch.setattr("composer.training.finalize.evaluate_pairs", evaluate)
    assert train(tiny("training.max_steps=1"), tmp_path / "run").record.minutes == 0.0


@pytest.mark.parametrize("limit", ["max_steps", "max_minutes"])
def test_of_several_processes_the_next_budget_is_not_spent_at_once(tiny: Tiny, limit: str) -> None:
    class TwoRanks:
        world = 2

        def gather(self, value: float) -> list[float]:
            return [value, value]

    budgets = [Budget(**{limit: 7}, until_step=7, validated=True), Budget(**{limit: 14})]
    loop = TrainingLoopCallback(
        tiny(), SimpleNamespace(epochs=lambda: 1.0), Path(), budgets=budgets
    )  # type: ignore[arg-type]
    loop.ranks, loop.clock = TwoRanks(), SimpleNamespace(minutes=lambda: 7.0)  # type: ignore[assignment]
    loop.progress = Progress(7, 1.0)
    loop.next_budget(SimpleNamespace(global_step=7, should_stop=True), SimpleNamespace())  # type: ignore[arg-type]
    assert loop.progress.spent == 0.5
    assert not loop.is_over()


def test_minutes_that_are_spent_are_not_estimated_again(tiny: Tiny) -> None:
    """A reproduction would read the new estimate when its original had ended by the old one."""
    recipe = tiny("training.max_steps=null", "training.max_minutes=10.0")
    loop = TrainingLoopCallback(recipe, SimpleNamespace(epochs=lambda: 1.0), Path())  # type: ignore[arg-type]
    loop.clock = SimpleNamespace(minutes=lambda: 9.0)  # type: ignore[assignment]
    loop.planned_steps = {95: 100}
    for step, estimate, spent in ((99, False, 0.99), (100, False, 1.0), (100, True, 1.0)):
        trainer: Any = SimpleNamespace(global_step=step)
        loop.update_progress(trainer, SimpleNamespace(), estimate)  # type: ignore[arg-type]
        assert loop.progress.spent == spent
    assert loop.planned_steps == {95: 100}


def test_minutes_are_estimated_after_each_tenth_more_steps(tiny: Tiny) -> None:
    recipe = tiny("training.max_steps=null", "training.max_minutes=10.0")
    loop = TrainingLoopCallback(recipe, SimpleNamespace(epochs=lambda: 1.0), Path())  # type: ignore[arg-type]
    for step in range(1, 100):
        loop.clock = SimpleNamespace(minutes=lambda step=step: step / 20)  # type: ignore[assignment]
        loop.update_progress(SimpleNamespace(global_step=step), SimpleNamespace())  # type: ignore[arg-type]
        assert loop.progress.spent == step / 200
    assert [*loop.planned_steps][18:] == [
        19,
        20,
        22,
        24,
        26,
        28,
        30,
        33,
        36,
        39,
        42,
        46,
        50,
        55,
        60,
        66,
        72,
        79,
        86,
        94,
    ]


def test_budgets_in_order() -> None:
    first, second, third = (Budget(max_steps=steps) for steps in (10, 20, 30))
    extended = replace_budget([first], second, 10, True)
    assert extended == [
        Budget(10, until_step=10, validated=True),
        Budget(20),
    ]
    # nothing was trained with the second; or the checkpoints after step 4 are lost; or all of them
    assert replace_budget(extended, third, 10, True) == [extended[0], third]
    assert replace_budget(extended, third, 4, False) == [Budget(max_steps=10, until_step=4), third]
    assert replace_budget(extended, third, 0, False) == [third]


def test_a_validation_that_uses_up_the_minutes_is_the_last(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowValidation(Hare):
        def minutes(self) -> float:
            return self.now

    real = TrainingLoopCallback.on_validation_epoch_end

    def validate(self: TrainingLoopCallback, *rest: Any) -> None:
        self.clock.now += 1.0
        real(self, *rest)

    monkeypatch.setattr(callback, "Clock", SlowValidation)
    monkeypatch.setattr(TrainingLoopCallback, "on_validation_epoch_end", validate)
    recipe = tiny("training.max_steps=null", "training.max_minutes=2.0")
    assert train(recipe, tmp_path / "run").record.steps == 8
    validated = [
        row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val/loss" in row
    ]
    assert validated == [4, 8]
    assert repeat(tmp_path / "run", tmp_path / "again").reproduces.same is True
