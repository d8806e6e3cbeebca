"""The study of a sweep in a real PostgreSQL: shared, lost in the middle, refused, never needed."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest

from composer.errors import RunError
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import read_trials
from tests.sweeps.stub_sweeps import RATE, parent, plan, printed, starts, wait_until, write_sweep

pytestmark = pytest.mark.services
PROGRAMS = Path("/usr/lib/postgresql/15/bin")
PASSWORD = "a secret of the tests"
TPE = "search: {{tpe: {{trials: {}}}}}\nstudy: {{storage: 'postgresql://postgres@127.0.0.1:{}/postgres'}}"


@dataclass
class Server:
    """A PostgreSQL of this machine, in a folder and under a user of its own."""

    folder: Path
    port: int

    def run(self, program: str, *words: str) -> None:
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        command = [*user, str(PROGRAMS / program), "-D", str(self.folder / "data"), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        self.run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-m", "immediate", "stop")

    def sweep(self, home: Path, trials: int, port: int = 0) -> Path:
        axes = f"rate: {{{RATE}, uniform: [0.1, 0.9]}}"
        return write_sweep(home, axes, TPE.format(trials, port or self.port))


@pytest.fixture
def server() -> Iterator[Server]:
    # not in pytest's folder, which is for its user alone
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        subprocess.run(["chown", "-R", "postgres:", name], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Server(folder, port)
        server.run("initdb", "--auth=scram-sha-256", "--pwfile", str(folder / "password"))
        server.start()
        yield server
        if (folder / "data" / "postmaster.pid").exists():
            server.stop()


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.mark.usefixtures("password")
def test_two_sweeps_share_a_database_and_one_goes_on_after_a_kill(
    server: Server, home: Path
) -> None:
    plan(home, all={"pause": 0.3})
    file = server.sweep(home, 6)
    child = parent(file, home / "run")
    wait_until(lambda: len(starts(home)) >= 3)
    child.kill()
    child.join()
    assert run_sweep(read_sweep(file), home / "run", workers=2) == 0
    assert run_sweep(read_sweep(file), home / "other") == 0
    assert len(read_trials(home / "run")) == len(read_trials(home / "other")) == 6
    url = f"postgresql+psycopg2://postgres@127.0.0.1:{server.port}/postgres"
    studies = optuna.get_all_study_summaries(url)
    assert len(studies) == 2
    for study in studies:
        states = [
            one.state.name
            for one in optuna.load_study(study_name=study.study_name, storage=url).trials
        ]
        assert states.count("COMPLETE") == 6
        assert {*states} <= {"COMPLETE", "FAIL"}
    assert not (home / "run" / "study.journal").exists()
    written = [path.read_bytes() for path in (home / "run").glob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in text for text in written)


@pytest.mark.usefixtures("password")
def test_a_database_that_goes_away_ends_the_sweep_and_loses_nothing(
    server: Server, home: Path
) -> None:
    plan(home, all={"pause": 0.5})
    file = server.sweep(home, 4)
    child = parent(file, home / "run")
    wait_until(lambda: len(starts(home)) >= 3)
    server.stop()
    child.join(100.0)
    assert "the database of `study` does not answer" in printed(child, home / "run")
    assert child.exitcode != 0
    server.start()
    plan(home)
    assert run_sweep(read_sweep(file), home / "run") == 0
    assert [trial.status for trial in read_trials(home / "run")] == ["finished"] * 4


def test_wrong_credentials_and_addresses_are_one_error(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "another")
    with pytest.raises(RunError, match="password authentication failed") as error:
        run_sweep(read_sweep(server.sweep(home, 2)), home / "run")
    assert "PGPASSWORD" in error.value.faults[0].hint
    with pytest.raises(RunError, match="Connection refused"):
        run_sweep(read_sweep(server.sweep(home, 2, port=1)), home / "run")
    assert not starts(home)


@pytest.mark.usefixtures("password")
def test_a_sweep_may_change_between_a_database_and_its_journal(server: Server, home: Path) -> None:
    axes = f"rate: {{{RATE}, uniform: [0.1, 0.9]}}"
    for trials, file in ((2, write_sweep(home, axes, "search: {tpe: {trials: 2}}")), (3, None)):
        assert run_sweep(read_sweep(file or server.sweep(home, trials)), home / "run") == 0
        assert [trial.status for trial in read_trials(home / "run")] == ["finished"] * trials
    os.remove(home / "run" / "study.journal")
