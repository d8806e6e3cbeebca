"""Many processes share a sweep: whatever is killed, each trial ends once, and the leaderboard is as
of one process.
"""

from __future__ import annotations

import os
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
from composer.sweeps.directory import lock_sweep
from composer.sweeps.leaderboard import open_leaderboard
from composer.sweeps.leases import RELEASED, claim, num_claims
from composer.sweeps.scheduler import Scheduler, check_sweep, run_sweep
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import SweepDir
from composer.sweeps.trial import read_log, read_trials
from composer.sweeps.workers import LocalJob, LocalWorkerPool
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


def statuses(processes: Sequence[ForkServerProcess], seconds: float) -> list[int | None]:
    """How each process ended; None where that takes longer."""
    for process in processes:
        process.join(seconds)
    return [process.exitcode for process in processes]


def ranked(folder: Path) -> list[tuple[int | None, str, float | None]]:
    """The rank, the fingerprint and the score of every trial."""
    return [
        (one.rank, one.trial.fingerprint, one.trial.value)
        for one in open_leaderboard(folder).results
    ]


def numbered(count: int) -> str:
    """An axis of so many rates."""
    return rates(*(round(0.001 * number, 3) for number in range(1, count + 1)))


def run_killed(
    home: Path, file: Path, workers: int, pause: float, seconds: float, *more: str
) -> int:
    """Run workers, of which one is killed and begun anew every `pause` seconds; return how many
    were killed.
    """
    processes = [parent(file, home / "run", "worker", *more) for _ in range(workers)]
    chance, until, killed = random.Random(1), time.monotonic() + seconds, 0
    with ended(processes):
        while any(process.is_alive() for process in processes) and time.monotonic() < until:
            time.sleep(pause)
            at = chance.randrange(workers)
            if processes[at].is_alive():
                processes[at].kill()
                processes[at].join()
                processes[at] = parent(file, home / "run", "worker", *more)
                killed += 1
        assert statuses(processes, seconds) == workers * [0]
    return killed


def expect_one_result_each(home: Path, file: Path, count: int) -> None:
    trials = read_trials(home / "run")
    assert Counter(trial.status for trial in trials) == {"finished": count}
    assert len({trial.number for trial in trials}) == count
    plan(home)
    assert run_sweep(read_sweep(file), home / "alone") == 0
    assert ranked(home / "run") == ranked(home / "alone")


def test_a_stopped_worker_gives_its_trial_back(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(home, all={"pause": 60.0})
    file = write_sweep(home, rates(0.1))
    first = parent(file, home / "run", "worker")
    with ended([first]):
        wait_until(lambda: bool(starts(home)))
        first.terminate()
        assert statuses([first], 60.0) == [143]
    plan(home)
    assert run_sweep(read_sweep(file), home / "run", joins=True) == 0
    trial = trials_by_rate(home / "run")[0.1]
    assert (
        f"trial {trial.folder.name}: resumes here from its folder (claim 2)"
        in capsys.readouterr().out
    )
    assert trial.status == "finished"
    assert num_claims(trial.folder) == 2


def test_a_sweep_that_runs_is_joined_with_worker_alone(home: Path) -> None:
    sweep = read_sweep(write_sweep(home, rates(0.1, 0.2)))
    with lock_sweep(SweepDir(home / "run")):
        with pytest.raises(RunError, match="add `--worker` to train some of its trials here"):
            run_sweep(sweep, home / "run")
        assert run_sweep(sweep, home / "run", joins=True) == 0
    assert sorted(starts(home)) == [(0.1, 1), (0.2, 1)]


def test_a_worker_stops_a_training_whose_lease_it_has_lost(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.sweeps.leases.RENEWED_EVERY", 0.05)
    plan(home, all={"pause": 60.0})
    sweep, run = read_sweep(write_sweep(home, rates(0.1))), home / "run"
    jobs: list[LocalJob] = []
    start = LocalWorkerPool.start

    def start_and_take_over(
        self: LocalWorkerPool, command: Sequence[str], log: Path, slot: int
    ) -> LocalJob:
        jobs.append(start(self, command, log, slot))
        if len(jobs) > 1:  # it may train now
            return jobs[-1]
        wait_until(lambda: bool(starts(home)))
        plan(home)
        other = next(run.glob("trials/*/lease-1")).with_name("lease-2")
        other.touch()
        os.utime(other, (RELEASED, RELEASED))  # the other worker has given it back
        return jobs[0]

    monkeypatch.setattr(LocalWorkerPool, "start", start_and_take_over)
    assert run_sweep(sweep, run) == 0
    assert jobs[0].process.wait(timeout=10) == -signal.SIGKILL
    assert len(jobs) == 2


@pytest.mark.parametrize(
    ("count", "workers", "pause"),
    [
        pytest.param(32, 4, 2.0, marks=pytest.mark.slow),
        pytest.param(200, 8, 3.0, marks=pytest.mark.exhaustive),
    ],
)
def test_workers_of_which_one_is_killed_every_few_seconds(
    count: int, workers: int, pause: float, home: Path
) -> None:
    """Each trial takes a second."""
    plan(home, all={"pause": 0.2})
    file = write_sweep(home, numbered(count))
    assert run_killed(home, file, workers, pause, seconds=1500.0) >= 3
    expect_one_result_each(home, file, count)


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
        assert statuses([alone], 3000.0) == [0]
    assert ranked(tmp_path / "run") == ranked(tmp_path / "alone")


def test_workers_that_add_seeds_at_once_train_each_once(home: Path) -> None:
    file = write_sweep(home, numbered(6), "seeds: [1]")
    assert run_sweep(read_sweep(file), home / "run", workers=4) == 0
    file = write_sweep(home, numbered(6), "seeds: [1, 2]")
    processes = [parent(file, home / "run", "worker") for _ in range(4)]
    with ended(processes):
        assert statuses(processes, 200.0) == [0, 0, 0, 0]
    assert len(starts(home)) == len(set(starts(home))) == 12
    assert {trial.status for trial in read_trials(home / "run")} == {"finished"}


def test_workers_that_begin_a_sweep_at_once_all_have_it(home: Path) -> None:
    sweep, folder = read_sweep(write_sweep(home, rates(0.1))), SweepDir(home / "run")
    lease = claim(folder.opening)  # by a worker that was killed before it wrote what sweep it is
    assert lease is not None
    lease.release()
    assert run_sweep(sweep, folder.path, joins=True) == 0


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


def scheduler_of(file: Path, folder: Path, retry: bool = False) -> Scheduler:
    """A worker that has opened the study and trains nothing yet."""
    sweep, home = read_sweep(file), SweepDir(folder)
    points, _ = check_sweep(sweep, home)
    scheduler = Scheduler(sweep, home, points, LocalWorkerPool(1, sweep.resources))
    scheduler.open_study(4, retry)
    return scheduler


def test_a_retry_reaches_a_worker_that_has_seen_the_failure(home: Path) -> None:
    plan(home, all={"fails": 1})
    file = write_sweep(home, rates(0.1))
    assert run_sweep(read_sweep(file), home / "run") == 1
    old = scheduler_of(file, home / "run")
    assert old.trials[read_trials(home / "run")[0].fingerprint].status == "failed"
    scheduler_of(file, home / "run", retry=True)
    queued = old.study.ask_queued()
    assert queued is not None
    runner = old.start_trial(queued, 0)
    assert runner is not None
    runner.lease.release()


def test_a_point_that_two_workers_are_given_is_trained_by_one(home: Path) -> None:
    file = write_sweep(home, rates(0.1))
    one, other = (scheduler_of(file, home / "run") for _ in range(2))
    queued = one.study.ask_queued()
    assert queued is not None
    adopted = other.next_suggestion()  # nobody holds it yet
    assert adopted is not None
    runner = other.start_trial(adopted, 0)
    assert runner is not None
    assert one.start_trial(queued, 0) is None
    assert one.study.running() == {0: runner.trial.fingerprint}, (
        "who does not hold it tells nothing"
    )
    runner.lease.release()
