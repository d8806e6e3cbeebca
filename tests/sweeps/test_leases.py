"""One worker holds a trial at a time, whatever happens to the others."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from composer.sweeps import leases
from composer.sweeps.leases import EXPIRES, Lease, claim, is_claimed, num_claims
from tests.sweeps.stub_sweeps import wait_until

CLAIM = """
import sys, time
from pathlib import Path
from composer.sweeps.leases import claim
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
print(claim(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""


def age(lease: Lease, seconds: float) -> None:
    """Make a lease look as if it was renewed so long ago."""
    renewed = lease.file.stat().st_mtime - seconds
    os.utime(lease.file, (renewed, renewed))


def claimed(folder: Path) -> Lease:
    lease = claim(folder)
    assert lease is not None
    return lease


def test_a_trial_is_held_once_until_it_is_given_back(tmp_path: Path) -> None:
    lease = claimed(tmp_path / "trial")
    assert claim(tmp_path / "trial") is None
    assert is_claimed(tmp_path / "trial")
    lease.release()
    assert not is_claimed(tmp_path / "trial")
    assert claim(tmp_path / "trial") is not None
    assert num_claims(tmp_path / "trial") == 2


def test_one_of_many_workers_gets_a_trial(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path / "trial"), str(tmp_path / "go")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(6)]  # type: ignore[call-overload]
    try:
        (tmp_path / "go").touch()
        answers = [worker.stdout.readline().strip() for worker in workers]
        assert sorted(answers) == ["False"] * 5 + ["True"]
        assert claim(tmp_path / "trial") is None
        holder = workers[answers.index("True")]
        holder.kill()
        holder.wait()
        assert claim(tmp_path / "trial") is not None, (
            "a worker of this machine that is gone holds nothing"
        )
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process be found, as of another machine."""
    monkeypatch.setattr(leases, "_start_of", lambda process: None)


@pytest.mark.usefixtures("elsewhere")
def test_a_lease_that_is_not_renewed_expires_and_its_holder_has_lost_it(tmp_path: Path) -> None:
    lease = claimed(tmp_path)
    age(lease, EXPIRES - 10)
    assert claim(tmp_path) is None
    age(lease, 20)
    other = claimed(tmp_path)
    assert not lease.renew()
    assert other.renew()


@pytest.mark.usefixtures("elsewhere")
def test_a_renewed_lease_stays(tmp_path: Path) -> None:
    lease = claimed(tmp_path)
    age(lease, EXPIRES + 10)
    assert lease.renew(), "nobody has claimed it meanwhile"
    assert claim(tmp_path) is None


@pytest.mark.usefixtures("elsewhere")
def test_a_lease_is_renewed_by_itself_until_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.02)
    lease = claimed(tmp_path)
    age(lease, EXPIRES + 10)
    wait_until(lambda: is_claimed(tmp_path))
    assert not lease.is_lost
    (tmp_path / "lease-2").touch()
    wait_until(lambda: lease.is_lost)
    lease.release()
    assert is_claimed(tmp_path), "it was another's to give back"


def test_the_lease_on_a_removed_trial_is_lost(tmp_path: Path) -> None:
    lease = claimed(tmp_path)
    lease.file.unlink()
    assert not lease.renew()


def test_a_file_system_that_does_not_answer_is_given_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(tmp_path)

    def fail(*_: object) -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(os, "utime", fail)
    assert lease.renew()
    monkeypatch.setattr(leases, "EXPIRES", 0.0)
    assert not lease.renew()


def test_a_lease_that_cannot_be_read_is_not_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(type(lease.file), "read_text", fail)
    assert is_claimed(tmp_path)
    assert claim(tmp_path) is None


def test_a_folder_that_cannot_be_listed_is_no_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.02)
    monkeypatch.setattr(leases, "EXPIRES", 0.5)
    lease = claimed(tmp_path)

    def fail(*_: object) -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(leases, "_leases", fail)
    wait_until(lambda: lease.is_lost)


def test_a_worker_that_wakes_after_its_lease_knows_at_once(tmp_path: Path) -> None:
    lease = claimed(tmp_path)
    lease._renewed -= EXPIRES + 1  # as after a while in which no thread of it ran
    assert lease.is_lost


def test_a_lease_is_given_back_beside_a_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.01)
    utime, renewing = os.utime, threading.Event()

    def slow_utime(file: Path, times: tuple[float, float] | None = None) -> None:
        if times is None:
            renewing.set()
            time.sleep(0.1)
        utime(file, times)

    monkeypatch.setattr(os, "utime", slow_utime)
    lease = claimed(tmp_path)
    assert renewing.wait(10)
    lease.release()
    assert not is_claimed(tmp_path)


def test_who_may_only_read_sees_who_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claimed(tmp_path)
    age(lease, EXPIRES / 2 + 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    assert is_claimed(tmp_path)
