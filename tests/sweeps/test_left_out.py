"""What a leaderboard must not pass over: changed data, missing records, trials that wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from composer.run_dir import RunDir
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.directory import lock_sweep
from composer.sweeps.leaderboard.board import open_leaderboard
from composer.sweeps.spec import read_sweep
from composer.sweeps.status import sweep_status
from composer.sweeps.sweep import SweepDir
from composer.sweeps.trial import read_trials, write_trial
from tests.run_records import change_record
from tests.sweeps.stub_sweeps import rates, write_sweep


def test_data_that_have_changed_during_a_sweep_are_a_warning(home: Path) -> None:
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1, 2]")
    assert run_sweep(read_sweep(file), home / "run") == 0
    assert not open_leaderboard(home / "run").warnings
    trial = read_trials(home / "run")[0]
    record = RunDir(trial.run(2))
    prints = dict(record.read().fingerprints or {}) | {"data": "1" * 64}
    change_record(record, fingerprints=prints)
    board = open_leaderboard(home / "run")
    (warning,) = board.warnings
    assert warning.startswith("The data have changed during this sweep: ")
    assert str(trial.run(2)) in warning
    assert warning in " ".join(board.text().split())
    assert warning in board.as_json()["notes"]
    assert warning in sweep_status(home / "run").text()


def test_axes_of_data_are_no_change_of_data(home: Path) -> None:
    axes = "train: {set: data.generate.reverse.train, values: [80, 90]}"
    assert run_sweep(read_sweep(write_sweep(home, axes)), home / "run") == 0
    trial = read_trials(home / "run")[0]
    record = RunDir(trial.run(1))
    prints = dict(record.read().fingerprints or {}) | {"data": "1" * 64}
    change_record(record, fingerprints=prints)
    assert not open_leaderboard(home / "run").warnings


def test_a_folder_without_its_trial_is_not_left_out_silently(home: Path) -> None:
    assert run_sweep(read_sweep(write_sweep(home, rates(0.1, 0.2))), home / "run") == 0
    trial = read_trials(home / "run")[0]
    (trial.folder / "trial.json").unlink()
    (warning,) = open_leaderboard(home / "run").warnings
    assert warning.startswith(f"{trial.folder} has no trial.json")


def test_a_trial_that_waits_is_on_the_leaderboard(home: Path) -> None:
    assert run_sweep(read_sweep(write_sweep(home, rates(0.1, 0.2))), home / "run") == 0
    trial = read_trials(home / "run")[0]
    write_trial(replace(trial, status="running", value=None))
    change_record(RunDir(trial.run(1)), status="running")
    with lock_sweep(SweepDir(home / "run")):
        board = open_leaderboard(home / "run")
    assert [result.state for result in board.results] == ["finished", "waiting"]
    assert "1 waiting" in board.text()
