"""Many processes share a sweep: whatever is killed, each trial ends once, and the leaderboard is as of one process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from composer.errors import RunError
from composer.sweeps.directory import lock_sweep
from composer.sweeps.leaderboard import open_leaderboard
from composer.sweeps.leases import RELEASED, claim, num_claims
from composer.sweeps.scheduler import Scheduler, check_sweep, run_sweep
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import SweepDir
from composer.sweeps.trial import read_log, read_trials
from composer.sweeps.workers import LocalJob, LocalWorkerPool
from tests.sweeps.stub_sweeps import RATE, parent, plan, rates, starts, stub, trials_by_rate, wait_until, write_sweep

DRAWN = f"rate: {{{RATE}, log_uniform: [0.001, 1.0]}}"


@contextmanager
def ended(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Kill what is left of some processes."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ranked(folder: Path) -> list[tuple[int | None, str, float | None]]:
    """The rank, the fingerprint and the score of every trial."""
    return [(one.rank, one.trial.fingerprint, one.trial.value) for one in open_leaderboard(folder).results]


def numbered(count: int) -> str:
    """An axis of so many rates."""
    return rates(*(round(0.001 * number, 3) for number in range(1, count + 1)))


def run_killed(home: Path, file: Path, workers: int, pause: float, seconds: float, *more: str) -> int:
    """Run workers, of which one is killed and begun anew every `pause` seconds; return how many were killed."""
    processes = [parent(file, home / "run", "worker", *more) for _ in range(workers)]
    chance, until, killed = random.Random(1), time.monotonic() + seconds, 0
    with ended(processes):
        while any(process.poll() is None for process in processes) and time.monotonic() < until:
            time.sleep(pause)
            at = chance.randrange(workers)
            if processes[at].poll() is None:
                processes[at].kill()
                processes[at].communicate()
                processes[at] = parent(file, home / "run", "worker", *more)
                killed += 1
        assert [process.wait(timeout=seconds) for process in processes] == workers * [0]
    return killed


def expect_one_result_each(home: Path, file: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = read_trials(home / "run")
    assert Counter(trial.status for trial in trials) == {"finished": count}
    assert len({trial.number for trial in trials}) == count
    plan(home)
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    assert run_sweep(read_sweep(file), home / "alone") == 0
    assert ranked(home / "run") == ranked(home / "alone")


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_train_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    plan(tmp_path, all={"pause": 0.2})
    file = write_sweep(tmp_path, numbered(12))
    processes = [parent(file, tmp_path / "run", "worker") for _ in range(3)]
    with ended(processes):
        wait_until(lambda: len(starts(tmp_path)) >= 2)
        processes[0].kill()
        assert [process.wait(timeout=100) for process in processes[1:]] == [0, 0]
    expect_one_result_each(tmp_path, file, 12, monkeypatch)


def test_a_stopped_worker_gives_its_trial_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    plan(tmp_path, all={"pause": 0.5})
    file = write_sweep(tmp_path, rates(0.1))
    first = parent(file, tmp_path / "run", "worker")
    with ended([first]):
        wait_until(lambda: bool(starts(tmp_path)))
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=60) == 143
    plan(tmp_path)
    second = parent(file, tmp_path / "run", "worker")
    with ended([second]):
        printed = second.communicate(timeout=60)[0].decode()
    assert "trial 0 goes on here from what is there (claim 2)" in printed
    assert trials_by_rate(tmp_path / "run")[0.1].status == "finished"
    assert num_claims(trials_by_rate(tmp_path / "run")[0.1].folder) == 2


def test_a_sweep_that_runs_is_joined_with_worker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    plan(tmp_path)
    sweep = read_sweep(write_sweep(tmp_path, rates(0.1, 0.2)))
    with lock_sweep(SweepDir(tmp_path / "run")):
        with pytest.raises(RunError, match="add `--worker` to train some of its trials here"):
            run_sweep(sweep, tmp_path / "run")
        assert run_sweep(sweep, tmp_path / "run", joins=True) == 0
    assert sorted(starts(tmp_path)) == [(0.1, 1), (0.2, 1)]


def test_a_worker_stops_a_training_whose_lease_it_has_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    monkeypatch.setattr("composer.sweeps.leases.RENEWED_EVERY", 0.05)
    plan(tmp_path, all={"pause": 60.0})
    sweep, run = read_sweep(write_sweep(tmp_path, rates(0.1))), tmp_path / "run"
    jobs: list[LocalJob] = []
    start = LocalWorkerPool.start

    def start_and_take_over(self: LocalWorkerPool, command: Sequence[str], log: Path, slot: int) -> LocalJob:
        jobs.append(start(self, command, log, slot))
        if len(jobs) > 1:  # it may train now
            return jobs[-1]
        wait_until(lambda: bool(starts(tmp_path)))
        plan(tmp_path)
        other = next(run.glob("trials/*/lease-1")).with_name("lease-2")
        other.touch()
        os.utime(other, (RELEASED, RELEASED))  # the other worker has given it back
        return jobs[0]

    monkeypatch.setattr(LocalWorkerPool, "start", start_and_take_over)
    assert run_sweep(sweep, run) == 0
    assert jobs[0].process.wait(timeout=10) == -signal.SIGKILL
    assert len(jobs) == 2


@pytest.mark.parametrize(
    ("count", "workers"),
    [pytest.param(30, 4, marks=pytest.mark.slow), pytest.param(200, 8, marks=pytest.mark.exhaustive)],
)
def test_workers_of_which_one_is_killed_every_three_seconds(
    count: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    plan(tmp_path, all={"pause": 0.2})
    file = write_sweep(tmp_path, numbered(count))
    assert run_killed(tmp_path, file, workers, pause=3.0, seconds=1500.0) >= 3
    expect_one_result_each(tmp_path, file, count, monkeypatch)


REAL = """
set:
  data.generate.reverse: {symbols: 12, min_length: 4, max_length: 12, train: 4000, val: 200, test: 100}
  model.width: 64
  training.max_steps: 1500
  training.validate_every: 250
  training.tokens_per_batch: 1000
"""
"""Trainings of some ten seconds each, of the recipe that the stub only pretends to train."""
AXES = "cell: {set: model.decoder.0.rnn.cell, values: [gru, lstm, tanh, min_gru]}\n  " + rates(0.0005, 0.001, 0.002)


@pytest.mark.exhaustive
def test_twelve_trainings_of_two_workers_of_which_one_is_killed_every_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About ten minutes. The trainings are real, and so are their scores, to the last digit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = write_sweep(tmp_path, AXES, REAL)
    assert run_killed(tmp_path, file, 2, 60.0, 3000.0, "real") >= 2
    trials = read_trials(tmp_path / "run")
    assert [trial.status for trial in trials] == ["finished"] * 12
    for trial in trials:
        steps = [row["step"] for row in read_log(trial, 1) if "train/loss" in row]
        assert steps == sorted(set(steps)), "a step was logged twice"
    alone = parent(file, tmp_path / "alone", "real")
    with ended([alone]):
        assert alone.wait(timeout=3000) == 0
    assert ranked(tmp_path / "run") == ranked(tmp_path / "alone")


def test_workers_that_add_seeds_at_once_train_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    plan(tmp_path)
    file = write_sweep(tmp_path, numbered(12), "seeds: [1]")
    assert run_sweep(read_sweep(file), tmp_path / "run", workers=4) == 0
    file = write_sweep(tmp_path, numbered(12), "seeds: [1, 2]")
    processes = [parent(file, tmp_path / "run", "worker") for _ in range(4)]
    with ended(processes):
        assert [process.wait(timeout=200) for process in processes] == [0, 0, 0, 0]
    assert len(starts(tmp_path)) == len(set(starts(tmp_path))) == 24
    assert {trial.status for trial in read_trials(tmp_path / "run")} == {"finished"}


def test_workers_that_begin_a_sweep_at_once_all_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    plan(tmp_path)
    sweep, home = read_sweep(write_sweep(tmp_path, rates(0.1))), SweepDir(tmp_path / "run")
    lease = claim(home.opening)  # by a worker that was killed before it wrote what sweep it is
    assert lease is not None
    lease.release()
    assert run_sweep(sweep, home.path, joins=True) == 0


def test_a_search_that_grows_has_all_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is trained again, for a seed or a retry, is no further one."""
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    plan(tmp_path, all={"fails": 1})
    for trials, rest, status in ((3, "seeds: [1]", 1), (5, "seeds: [1]", 0), (7, "seeds: [1, 2]", 0)):
        file = write_sweep(tmp_path, DRAWN, f"search: {{tpe: {{trials: {trials}}}}}\n{rest}")
        assert run_sweep(read_sweep(file), tmp_path / "run", retry=True) == status
        assert len(read_trials(tmp_path / "run")) == trials
        plan(tmp_path)
    assert {trial.status for trial in read_trials(tmp_path / "run")} == {"finished"}


def scheduler_of(file: Path, folder: Path, retry: bool = False) -> Scheduler:
    """A worker that has opened the study and trains nothing yet."""
    sweep, home = read_sweep(file), SweepDir(folder)
    points, _ = check_sweep(sweep, home)
    scheduler = Scheduler(sweep, home, points, LocalWorkerPool(1, sweep.resources))
    scheduler.open_study(4, retry)
    return scheduler


def test_a_retry_reaches_a_worker_that_has_seen_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr("composer.sweeps.workers.train_command", stub)
    plan(tmp_path, all={"fails": 1})
    file = write_sweep(tmp_path, rates(0.1))
    assert run_sweep(read_sweep(file), tmp_path / "run") == 1
    old = scheduler_of(file, tmp_path / "run")
    assert old.trials[read_trials(tmp_path / "run")[0].fingerprint].status == "failed"
    scheduler_of(file, tmp_path / "run", retry=True)
    queued = old.study.ask_queued()
    assert queued is not None
    runner = old.start_trial(queued, 0)
    assert runner is not None
    runner.lease.release()


def test_a_point_that_two_workers_are_given_is_trained_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", str(tmp_path))
    file = write_sweep(tmp_path, rates(0.1))
    one, other = (scheduler_of(file, tmp_path / "run") for _ in range(2))
    queued = one.study.ask_queued()
    assert queued is not None
    adopted = other.next_suggestion()  # nobody holds it yet
    assert adopted is not None
    runner = other.start_trial(adopted, 0)
    assert runner is not None
    assert one.start_trial(queued, 0) is None
    assert one.study.running() == {0: runner.trial.fingerprint}, "who does not hold it tells nothing"
    runner.lease.release()
