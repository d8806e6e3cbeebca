"""Whatever is killed, each trial ends once, and the leaderboard is that of an undisturbed sweep."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from composer.errors import RunError
from composer.run_dir import RunDir, locked
from composer.sweeps import trial_course
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.directory import lock_sweep
from composer.sweeps.executors.local import LocalExecutor
from composer.sweeps.executors.training import LOST, TrainingProcess
from composer.sweeps.leaderboard.board import open_leaderboard
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import SweepDir
from composer.sweeps.trial import read_log, read_trials
from tests.sweeps.stub_sweeps import (
    RATE,
    parent,
    plan,
    rates,
    starts,
    trials_by_rate,
    wait_until,
    write_sweep,
)

DRAWN = f"rate: {{{RATE}, log_uniform: [0.001, 1.0]}}"


@contextmanager
def ended(processes: Sequence[ForkServerProcess]) -> Iterator[None]:
    """Kill what is left of some processes."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def ranked(folder: Path) -> list[tuple[int | None, str, float | None]]:
    """The rank, the fingerprint and the score of every trial."""
    return [
        (one.rank, one.trial.fingerprint, one.trial.value)
        for one in open_leaderboard(folder).results
    ]


def numbered(count: int) -> str:
    """An axis of so many rates."""
    return rates(*(round(0.001 * number, 3) for number in range(1, count + 1)))


def run_killed(home: Path, file: Path, pause: float, seconds: float, *more: str) -> int:
    """Run a sweep that is killed and begun anew every `pause` seconds; return how many times."""
    until, killed = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        process = parent(file, home / "run", *more)
        with ended([process]):
            process.join(pause)
            if process.exitcode is not None:
                assert process.exitcode == 0
                return killed
        killed += 1
    pytest.fail(f"the sweep has not ended after {killed} kills")


def expect_one_result_each(home: Path, file: Path, count: int) -> None:
    trials = read_trials(home / "run")
    assert Counter(trial.status for trial in trials) == {"finished": count}
    assert len({trial.number for trial in trials}) == count
    plan(home)
    assert run_sweep(read_sweep(file), home / "alone") == 0
    assert ranked(home / "run") == ranked(home / "alone")


@pytest.mark.parametrize(
    ("count", "workers", "seconds"),
    [
        # so long that no machine is through before the third kill
        pytest.param(32, 4, 2.5, marks=pytest.mark.slow),
        pytest.param(200, 8, 1.0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_sweep_that_is_killed_every_few_seconds(
    count: int, workers: int, seconds: float, home: Path
) -> None:
    """Each trial takes at least so many seconds."""
    plan(home, all={"pause": seconds / 5})
    file = write_sweep(home, numbered(count))
    assert run_killed(home, file, 3.0, 1500.0, f"workers={workers}") >= 3
    expect_one_result_each(home, file, count)


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_a_sweep_of_which_a_training_is_killed_every_moment(count: int, home: Path) -> None:
    """Each trial takes half a second, and is killed at most twice."""
    chance, begun = random.Random(1), time.monotonic()
    killed = {chance.randrange(1, count + 1): chance.randrange(1, 3) for _ in range(count // 2)}
    plan(
        home,
        **{str(round(0.001 * number, 3)): {"kills": times} for number, times in killed.items()},
        all={"pause": 0.02},
    )
    file = write_sweep(home, numbered(count))
    assert run_sweep(read_sweep(file), home / "run", workers=4) == 0
    assert len(starts(home)) == count + sum(killed.values())
    expect_one_result_each(home, file, count)
    assert time.monotonic() - begun < 1500.0


REAL = """
set:
  data.generate.reverse: {symbols: 12, min_length: 4, max_length: 12, train: 4000, val: 200, test: 100}
  model.width: 64
  training.max_steps: 1500
  training.validate_every: 250
  training.tokens_per_batch: 1000
"""
"""Trainings of some ten seconds each, of the recipe that the stub only pretends to train."""
AXES = "cell: {set: model.decoder.0.rnn.cell, values: [gru, lstm, tanh, min_gru]}\n  " + rates(
    0.0005, 0.001, 0.002
)


@pytest.mark.exhaustive
def test_twelve_trainings_of_a_sweep_that_is_killed_every_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About ten minutes. The trainings are real, and so are their scores, to the last digit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = write_sweep(tmp_path, AXES, REAL)
    assert run_killed(tmp_path, file, 60.0, 3000.0, "real") >= 2
    trials = read_trials(tmp_path / "run")
    assert [trial.status for trial in trials] == ["finished"] * 12
    for trial in trials:
        steps = [row["step"] for row in read_log(trial, 1) if "train/loss" in row]
        assert steps == sorted(set(steps)), "a step was logged twice"
    (tmp_path / "alone").mkdir()
    assert run_killed(tmp_path / "alone", file, 3000.0, 3000.0, "real") == 0
    assert ranked(tmp_path / "run") == ranked(tmp_path / "alone" / "run")


def test_the_second_of_two_sweeps_is_told_who_holds_the_folder(home: Path) -> None:
    sweep = read_sweep(write_sweep(home, rates(0.1)))
    with (
        lock_sweep(SweepDir(home / "run")),
        pytest.raises(RunError, match=r"another sweep is writing .*: process \d+ on .*, since 20"),
    ):
        run_sweep(sweep, home / "run")
    assert run_sweep(sweep, home / "run") == 0


def test_a_training_that_its_engine_has_lost_is_never_trained_twice_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine says of every first job that it is dead, while it lives on."""
    plan(home, all={"pause": 0.3})
    state = LocalExecutor.state
    alive: list[TrainingProcess] = []

    def lying(executor: LocalExecutor, job: str) -> int | None:
        if len(alive) < 2:
            wait_until(lambda: any((home / "run").glob("trials/*/seed-1/metrics.jsonl")))
            alive.append(executor.jobs[job])
            executor.slot_of.pop(job)
            return LOST
        return state(executor, job)

    monkeypatch.setattr(LocalExecutor, "state", lying)
    file = write_sweep(home, rates(0.1, 0.2))
    assert run_sweep(read_sweep(file), home / "run", workers=2) == 0
    assert len(alive) == 2
    for process in alive:
        process.process.wait(60.0)
    for trial in trials_by_rate(home / "run").values():
        assert [retry.cause for retry in trial.retries] == ["killed"]
        steps = [row["step"] for row in read_log(trial, 1)]
        assert steps == [100, 200, 300, 400, 500], "two trainings have written into one folder"
    expect_one_result_each(home, file, 2)


def test_a_folder_that_another_process_never_gives_back_loses_the_trial(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_course, "PATIENCE", 0.1)
    file = write_sweep(home, rates(0.1, 0.2))
    assert run_sweep(read_sweep(file), home / "run") == 0
    trial = trials_by_rate(home / "run")[0.1]
    (trial.folder / "trial.json").unlink()
    RunDir(trial.run(1)).record.unlink()
    with locked(RunDir(trial.run(1))):
        assert run_sweep(read_sweep(file), home / "run") == 1
    trial = trials_by_rate(home / "run")[0.1]
    assert trial.error == (
        "its training was lost 5 times without a new checkpoint, another process trains it"
    )
    assert [retry.cause for retry in trial.retries] == ["lost"] * 4
    assert len(read_log(trial, 1)) == 5, "there was a second writer"


def test_seeds_that_are_added_are_trained_at_once(home: Path) -> None:
    file = write_sweep(home, numbered(6), "seeds: [1]")
    assert run_sweep(read_sweep(file), home / "run", workers=4) == 0
    file = write_sweep(home, numbered(6), "seeds: [1, 2, 3]")
    assert run_sweep(read_sweep(file), home / "run", workers=4) == 0
    assert len(starts(home)) == len(set(starts(home))) == 18
    assert {trial.status for trial in read_trials(home / "run")} == {"finished"}


def test_the_seeds_of_one_point_are_trained_at_once(home: Path) -> None:
    plan(home, all={"pause": 0.3})
    file = write_sweep(home, rates(0.1), "seeds: [1, 2]")
    process = parent(file, home / "run", "workers=2")
    with ended([process]):
        wait_until(lambda: len(starts(home)) == 2)
        assert not read_trials(home / "run")[0].finished_seeds
        process.join(60.0)
    assert read_trials(home / "run")[0].status == "finished"


def test_the_other_seeds_of_a_failed_one_are_stopped(home: Path) -> None:
    plan(home, **{"0.1": {"fails": 2, "pause": 20.0}})
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1, 2]")
    assert run_sweep(read_sweep(file), home / "run", workers=2) == 1
    trial = trials_by_rate(home / "run")[0.1]
    assert (trial.status, trial.records[1].status) == ("failed", "interrupted")
    assert trials_by_rate(home / "run")[0.2].status == "finished"


def test_a_search_that_grows_has_all_its_trials(home: Path) -> None:
    """A trial that is trained again, for a seed or a retry, is no further one."""
    plan(home, all={"fails": 1})
    for trials, rest, status in (
        (2, "seeds: [1]", 1),
        (3, "seeds: [1]", 0),
        (4, "seeds: [1, 2]", 0),
    ):
        file = write_sweep(home, DRAWN, f"search: {{tpe: {{trials: {trials}}}}}\n{rest}")
        assert run_sweep(read_sweep(file), home / "run", retry=True) == status
        assert len(read_trials(home / "run")) == trials
        plan(home)
    assert {trial.status for trial in read_trials(home / "run")} == {"finished"}


def test_what_a_process_that_was_killed_has_written_first_is_resumed(home: Path) -> None:
    """It was killed between sweep.json and the rest, or in the middle of a line of the study."""
    file = write_sweep(home, rates(0.1, 0.2))
    assert run_sweep(read_sweep(file), home / "run") == 0
    SweepDir(home / "run").sweep.unlink()
    with SweepDir(home / "run").study.open("ab") as journal:
        journal.write(b'{"op_code": 5, "work')
    (home / "run" / "study.journal.lock").symlink_to("study.journal")
    begun = time.monotonic()
    assert run_sweep(read_sweep(file), home / "run") == 0
    assert time.monotonic() - begun < 20.0, "it has waited for the lock of the killed process"
    assert SweepDir(home / "run").sweep.exists()
    assert len(starts(home)) == 2


def test_a_stopped_sweep_gives_its_trials_back(home: Path) -> None:
    plan(home, all={"pause": 60.0})
    file = write_sweep(home, rates(0.1))
    first = parent(file, home / "run")
    with ended([first]):
        wait_until(lambda: bool(starts(home)))
        first.terminate()
        first.join(60.0)
        assert first.exitcode == 128 + signal.SIGTERM
    plan(home)
    assert run_sweep(read_sweep(file), home / "run") == 0
    assert trials_by_rate(home / "run")[0.1].status == "finished"
