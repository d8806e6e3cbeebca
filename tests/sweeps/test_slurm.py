"""Workers as jobs of a real Slurm: submitted as an array, preempted, killed, and none of their
trials lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer import api
from composer.cli.main import app
from composer.errors import RunError
from composer.sweeps.trial import read_trials
from tests.sweeps.stub_sweeps import rates, wait_until, write_sweep

START = Path(__file__).with_name("start_slurm.sh")
FOUR = rates(0.001, 0.002, 0.003, 0.004)


def test_without_submitit_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(RunError, match=r"'\.\[slurm\]'"):
        api.submit_sweep(write_sweep(tmp_path, FOUR), run=tmp_path / "run")


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


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_a_preempted_and_a_killed_worker_lose_nothing(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, FOUR, "resources: {cpus: 1, memory: 400M, minutes: 10}")
    long = ["training.max_steps=4000", "training.validate_every=500"]
    number, folder = api.submit_sweep(file, long, workers=2, run=tmp_path / "run")
    wait_until(
        lambda: (
            len(jobs("running")) == 2
            and len(list(folder.glob("trials/*/seed-1/metrics.jsonl"))) > 1
        ),
        200.0,
    )
    # what submitit takes for a preemption
    subprocess.run(["scancel", "--signal=USR2", f"{number}_0"], check=True)
    subprocess.run(["scancel", f"{number}_1"], check=True)
    wait_until(lambda: len(statuses(folder)) == 4 and set(statuses(folder)) == {"finished"}, 600.0)
    wait_until(lambda: not jobs(), 60.0)
    logs = "".join(log.read_text(encoding="utf-8") for log in (folder / "slurm").glob("*.out"))
    assert "goes on here" in logs
    time.sleep(1.0)  # the last line is written after the last trial
    assert {trial.records[1].status for trial in read_trials(folder)} == {"finished"}


@pytest.mark.parametrize("other", ["--dry-run", "--status", "--ray=local", "--worker", "--retry"])
def test_nothing_is_submitted_beside_other_flags(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    monkeypatch.setattr(api, "submit_sweep", lambda *arguments: submitted.append(arguments))
    file = write_sweep(tmp_path, FOUR)
    with pytest.raises(SystemExit) as ended:
        app(["sweep", str(file), "--slurm", other])
    assert not submitted
    assert ended.value.code == 2
