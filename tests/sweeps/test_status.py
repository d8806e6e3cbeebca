"""What `sweep --status` says: of every trial its state, and what is left; it starts and writes
nothing.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from num2words import num2words

from composer.cli import main
from composer.errors import RunError
from composer.run_dir import RunDir, locked
from composer.sweeps import coordinator
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.directory import lock_sweep
from composer.sweeps.leaderboard.board import open_leaderboard
from composer.sweeps.spec import load_schema, read_sweep
from composer.sweeps.status import sweep_status
from composer.sweeps.sweep import SweepDir
from composer.sweeps.trial import MAX_KILLS, Trial, read_trials, retry_record, write_trial
from tests.run_records import change_record
from tests.sweeps.stub_sweeps import plan, rates, starts, train_by_stub, trials_by_rate, write_sweep

PRUNE = "prune: {median: {min_steps: 200, trials: 2}}\nset: {training.max_steps: 500}"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of five points: two finished, one failed, one pruned, one left."""
    home = tmp_path_factory.mktemp("tried")
    plan(home, **{"0.3": {"fails": 1}, "0.9": {"pause": 60.0, "from": 2}})
    file = write_sweep(home, rates(0.1, 0.2, 0.3, 0.9, 0.5), f"seeds: [1]\nretries: 1\n{PRUNE}")
    with pytest.MonkeyPatch.context() as patch:
        train_by_stub(home, patch)
        patch.chdir(home)
        assert run_sweep(read_sweep(file), home / "runs" / "tried") == 1
    shutil.rmtree(trials_by_rate(home / "runs" / "tried")[0.5].folder)
    return home


@pytest.fixture
def home(tried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which a test runs."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tried, tmp_path, dirs_exist_ok=True)
    return tmp_path


def command(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main.main(["sweep", *words])
    assert not left.value.code
    return capsys.readouterr().out


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_state_is_counted_and_nothing_is_started(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, begun = files_of(home), starts(home)
    status = json.loads(command(capsys, "sweep.yaml", "--status", "--json"))
    counts = {
        "finished": 2,
        "running": 0,
        "waiting": 0,
        "stopped": 0,
        "pruned": 1,
        "failed": 1,
        "left": 1,
    }
    assert status["counts"] == counts
    assert status["num_trials"] == 5
    (failed,) = [trial for trial in status["trials"] if trial["status"] == "failed"]
    assert failed["point"] == {"rate": 0.3}
    assert [retry["cause"] for retry in failed["retries"]] == ["failed"]
    text = command(capsys, "sweep.yaml", "--status")
    assert (
        "5 trials: 2 finished, 0 running, 0 waiting, 0 stopped, 1 pruned, 1 failed, 1 left" in text
    )
    assert (
        f"failed: trial {failed['fingerprint']}: rate=0.3; retried (1 failed); error[run]: the"
        " loss is NaN" in text
    )
    assert "it is not running" in text
    assert text.splitlines()[-2:] == [
        "retry failed trials with `--retry`",
        "resume with the same command without `--status`",
    ]
    assert command(capsys, "runs/tried", "--status") == text  # by its folder
    assert (files_of(home), starts(home)) == (before, begun)


def set_running(home: Path) -> Trial:
    """Let the first trial look as if a process had begun it."""
    trial = replace(read_trials(home / "runs/tried")[0], status="running", value=None)
    write_trial(trial)
    record = RunDir(trial.run(1))
    change_record(record, status="running")
    return trial


def test_a_trial_runs_while_its_sweep_or_its_training_does(home: Path) -> None:
    trial = set_running(home)
    status = sweep_status(home / "runs/tried")
    assert (status.counts["running"], status.counts["stopped"], status.is_running) == (0, 1, False)
    assert f"stopped: trial {trial.folder.name}: rate=0.1; at step 500" in status.text()
    assert ", 1 stopped" in open_leaderboard(home / "runs/tried").text()
    with locked(RunDir(trial.run(1))):  # its worker was killed, and the training was not
        status = sweep_status(home / "runs/tried")
        assert ", 1 running" in open_leaderboard(home / "runs/tried").text()
    assert (status.counts["running"], status.is_running) == (1, True)
    with lock_sweep(SweepDir(home / "runs/tried")):
        status = sweep_status(home / "sweep.yaml")
    assert (status.counts["running"], status.counts["waiting"], status.is_running) == (0, 1, True)
    assert "it is running" in status.text()
    assert "resume with" not in status.text()


def test_a_sweep_that_was_never_started_is_reported(home: Path) -> None:
    with pytest.raises(RunError, match="no sweep has run here"):
        sweep_status(home / "sweep.yaml", home / "elsewhere")


def test_retry_on_the_command_line_reaches_the_sweep(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Any] = []
    monkeypatch.setattr(coordinator, "run_sweep", lambda *given: received.append(given[-1]) or 0)
    for words in ([], ["--retry"]):
        with pytest.raises(SystemExit):
            main.main(["sweep", "sweep.yaml", *words])
    assert received == [False, True]


@pytest.mark.parametrize("place", ["schema", "help", "page"])
def test_the_bound_on_kills_is_stated(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = load_schema()["properties"]["retries"]["description"]
    if place == "page":
        text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    elif place == "help":
        with pytest.raises(SystemExit):
            main.main(["sweep", "--help"])
        text = capsys.readouterr().out
    assert f"killed {num2words(MAX_KILLS)} times in a row without a new" in " ".join(text.split())


def test_a_retry_that_is_no_retry_is_refused(home: Path) -> None:
    trial = read_trials(home / "runs/tried")[0]
    wrong: Any = "7"
    write_trial(replace(trial, retries=(replace(retry_record("killed", "SIGKILL"), step=wrong),)))
    with pytest.raises(RunError, match="cannot be read"):
        sweep_status(home / "runs/tried")
