"""Trainings as jobs of a real Slurm: preempted, cancelled, found again, and none of them lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer import api
from composer.cli.main import app
from composer.errors import RunError
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.executors.engine import Engine
from composer.sweeps.executors.slurm import outside_of_jobs
from composer.sweeps.leaderboard.board import open_leaderboard
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import read_log, read_trials
from tests.sweeps.stub_sweeps import parent, printed, rates, wait_until, write_sweep

START = Path(__file__).with_name("start_slurm.sh")
SLURM = Engine("slurm")
FOUR = rates(0.001, 0.002, 0.003, 0.004)


def test_without_submitit_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(RunError, match=r"'\.\[slurm\]'"):
        api.sweep(write_sweep(tmp_path, FOUR), run=tmp_path / "run", slurm=True)


def test_a_cluster_that_takes_no_job_is_one_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(home))
    for name, text in (
        ("srun", ""),
        ("sbatch", "echo sbatch: error: invalid partition >&2; exit 1"),
    ):
        (home / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (home / name).chmod(0o755)
    file = write_sweep(home, FOUR)
    with pytest.raises(RunError, match=r"Slurm takes no job: .*invalid partition") as error:
        run_sweep(read_sweep(file), home / "run", 1, SLURM)
    assert "SBATCH_PARTITION" in error.value.faults[0].hint
    assert run_sweep(read_sweep(file), home / "run") == 0, "nothing is lost"


def test_a_job_has_nothing_of_the_job_that_submits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "600")
    monkeypatch.setenv("SLURM_CONF", "/etc/own.conf")
    monkeypatch.setenv("SBATCH_PARTITION", "long")
    before = dict(os.environ)
    with outside_of_jobs():
        assert "SLURM_MEM_PER_CPU" not in os.environ
        assert {"SLURM_CONF", "SBATCH_PARTITION"} <= os.environ.keys()
    assert os.environ == before


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm on this machine."""
    subprocess.run(["bash", str(START), str(tmp_path / "slurm")], check=True)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm" / "slurm.conf"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    subprocess.run(["scancel", "--user", "root"], check=False)
    wait_until(lambda: not jobs())
    for file in (tmp_path / "slurm").glob("*.pid"):
        os.kill(int(file.read_text(encoding="utf-8")), signal.SIGTERM)


def jobs(state: str = "pending,running,completing") -> list[str]:
    printed = subprocess.run(
        ["squeue", "-h", "-r", "-o", "%i", "-t", state], check=True, capture_output=True, text=True
    )
    return printed.stdout.split()


def statuses(folder: Path) -> list[str]:
    return [trial.status for trial in read_trials(folder)]


def steps_of(folder: Path) -> list[list[int]]:
    """The steps that each trial has logged, in order."""
    trials = read_trials(folder)
    return [[row["step"] for row in read_log(trial, 1) if "val/loss" in row] for trial in trials]


@pytest.mark.services
@pytest.mark.usefixtures("slurm")
def test_jobs_are_preempted_and_cancelled_and_the_sweep_is_killed(tmp_path: Path) -> None:
    """Nothing is lost: the leaderboard is that of an undisturbed sweep."""
    file = write_sweep(
        tmp_path,
        FOUR,
        "set: {training.max_steps: 4000, training.validate_every: 500}\n"
        "resources: {cpus: 1, memory: 400M, minutes: 10}",
    )
    folder = tmp_path / "run"
    first = parent(file, folder, "slurm", "real")
    wait_until(lambda: len(list(folder.glob("trials/*/seed-1/metrics.jsonl"))) > 1, 200.0)
    first.kill()
    first.join()
    preempted, cancelled = sorted(jobs("running"))
    # what submitit takes for a preemption
    subprocess.run(["scancel", "--signal=USR2", preempted], check=True)
    second = parent(file, folder, "slurm", "real")
    wait_until(lambda: "2 running" in printed(second, folder), 100.0)
    assert "lost" not in printed(second, folder), "a job that runs still is found again"
    subprocess.run(["scancel", cancelled], check=True)
    second.join(900.0)
    output = printed(second, folder)
    assert second.exitcode == 0, output
    assert output.count("killed by") == 1, "only what was cancelled is started again"
    wait_until(lambda: not jobs(), 60.0)
    assert statuses(folder) == ["finished"] * 4
    submitted = [
        len(list(path.glob("*_submitted.pkl"))) for path in folder.glob("trials/*/*.slurm")
    ]
    assert sorted(submitted) == [1, 1, 1, 2], "only the cancelled one was submitted again"
    assert steps_of(folder) == [list(range(500, 4001, 500))] * 4, "a step was logged twice"
    assert run_sweep(read_sweep(file), tmp_path / "alone", 2) == 0
    boards = [open_leaderboard(path).results for path in (folder, tmp_path / "alone")]
    ranks = [
        [(one.rank, one.trial.fingerprint, one.trial.value) for one in board] for board in boards
    ]
    assert ranks[0] == ranks[1]


@pytest.mark.services
@pytest.mark.usefixtures("slurm")
def test_a_job_that_no_node_can_run_is_refused_with_what_there_is(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, FOUR, "resources: {cpus: 999}")
    with pytest.raises(
        RunError, match=r"will never start this job: PartitionConfig; .* all\* has 1"
    ):
        run_sweep(read_sweep(file), tmp_path / "run", 1, SLURM)


@pytest.mark.services
@pytest.mark.usefixtures("slurm")
def test_a_sweep_that_is_stopped_cancels_its_jobs_with_a_checkpoint(tmp_path: Path) -> None:
    rest = "set: {training.max_steps: 400000, training.validate_every: 500}"
    file = write_sweep(tmp_path, FOUR, f"{rest}\nresources: {{cpus: 1, memory: 400M, minutes: 10}}")
    sweep = parent(file, tmp_path / "run", "slurm", "real")
    wait_until(lambda: len(list(tmp_path.glob("run/trials/*/seed-1/metrics.jsonl"))) > 1, 200.0)
    sweep.terminate()
    sweep.join(120.0)
    assert sweep.exitcode == 143
    wait_until(lambda: not jobs())
    assert {trial.records[1].status for trial in read_trials(tmp_path / "run")} == {"interrupted"}


@pytest.mark.parametrize("other", ["--status", "--ray=local"])
def test_nothing_is_submitted_beside_other_flags(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    monkeypatch.setattr(api, "sweep", lambda *arguments: submitted.append(arguments))
    file = write_sweep(tmp_path, FOUR)
    with pytest.raises(SystemExit) as ended:
        app(["sweep", str(file), "--slurm", other])
    assert not submitted
    assert ended.value.code == 2
