"""The same sweep on a Ray cluster of this machine: the same trials and folders, retried and stopped
as anywhere.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer.errors import RunError
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.executors.engine import Engine
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import read_log, read_trials
from tests.sweeps.stub_sweeps import (
    RATE,
    parent,
    plan,
    printed,
    rates,
    starts,
    train_by_stub,
    trials_by_rate,
    wait_until,
    write_sweep,
)


def test_without_ray_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"'\.\[ray\]'"):
        run_sweep(
            read_sweep(write_sweep(tmp_path, rates(0.1))),
            tmp_path / "run",
            1,
            Engine("ray", "local"),
        )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which the stub trains, and Ray."""
    ray = pytest.importorskip("ray")
    train_by_stub(tmp_path, monkeypatch)
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    plan(tmp_path)
    yield tmp_path
    ray.shutdown()


def test_a_sweep_runs_on_a_cluster(home: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    plan(home, **{"0.1": {"kills": 1}, "0.2": {"fails": 1}, "0.9": {"pause": 3.0}})
    rest = (
        "seeds: [1]\nset: {training.max_steps: 500}\nprune: {median: {min_steps: 200, trials: 2}}"
    )
    file = write_sweep(home, rates(0.1, 0.2, 0.3, 0.9), rest)
    assert run_sweep(read_sweep(file), home / "run", 1, Engine("ray", "local")) == 1
    result = trials_by_rate(home / "run")
    assert [result[rate].status for rate in (0.1, 0.2, 0.3, 0.9)] == [
        "finished",
        "failed",
        "finished",
        "pruned",
    ]
    assert "the loss is NaN" in (result[0.2].error or "")
    assert result[0.9].records[1].status == "interrupted"
    assert [rate for rate, _ in starts(home)] == [0.1, 0.1, 0.2, 0.3, 0.9]
    assert signal.getsignal(signal.SIGTERM) == handler, "Ray's own is left behind"


def test_a_killed_sweep_leaves_no_workers_and_resumes_without_a_cluster(home: Path) -> None:
    plan(home, **{"0.1": {"pause": 120.0}, "0.2": {"pause": 120.0}})
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1]")
    child = parent(file, home / "run", "ray=local")
    wait_until(lambda: len(list((home / "run").glob("trials/*/seed-1/metrics.jsonl"))) == 2, 120.0)
    child.kill()
    child.join()
    plan(home)
    # once the trainings there have ended
    assert run_sweep(read_sweep(file), home / "run", workers=2) == 0
    for trial in trials_by_rate(home / "run").values():
        assert trial.status == "finished"
        assert [row["step"] for row in read_log(trial, 1)] == [100, 200, 300, 400, 500]


def test_a_sweep_that_is_stopped_has_neither_failures_nor_retries(home: Path) -> None:
    plan(home, **{"0.1": {"pause": 120.0}})
    file = write_sweep(home, rates(0.1))
    child = parent(file, home / "run", "ray=local")
    wait_until(lambda: any((home / "run").glob("trials/*/seed-1/metrics.jsonl")), 120.0)
    child.terminate()
    child.join(60.0)
    assert child.exitcode == 143
    assert "stopped; run the same command to resume" in printed(child, home / "run")
    trials = trials_by_rate(home / "run")
    assert trials[0.1].status == "running"
    assert not trials[0.1].retries
    assert trials[0.1].records[1].status == "interrupted", "its training has written a checkpoint"


def test_relative_paths_are_those_of_the_sweep(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(home, rates(0.1))
    monkeypatch.chdir(home)
    assert run_sweep(read_sweep(Path("sweep.yaml")), Path("run"), 1, Engine("ray", "local")) == 0


def test_a_search_that_learns_goes_on_where_it_was(home: Path) -> None:
    axes = f"rate: {{{RATE}, uniform: [0.1, 0.9]}}"
    for trials in (2, 3):
        file = write_sweep(home, axes, f"search: {{tpe: {{trials: {trials}}}}}")
        assert run_sweep(read_sweep(file), home / "run", 2, Engine("ray", "local")) == 0
        assert [trial.status for trial in read_trials(home / "run")] == ["finished"] * trials


def test_an_address_without_a_cluster_is_refused(home: Path) -> None:
    with pytest.raises(RunError, match="no Ray cluster answers"):
        run_sweep(
            read_sweep(write_sweep(home, rates(0.1))), home / "run", 1, Engine("ray", "127.0.0.1:1")
        )


def test_a_trial_goes_to_the_node_that_it_fits_and_on_when_that_is_lost(home: Path) -> None:
    from ray.cluster_utils import Cluster

    plan(home, **{"0.1": {"pause": 3.0}, "0.2": {"pause": 3.0}})
    file = write_sweep(home, rates(0.1, 0.2), "resources: {cpus: 2}")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    large = cluster.add_node(num_cpus=2)
    child = parent(file, home / "run", f"ray={cluster.address}")
    try:
        wait_until(lambda: len(starts(home)) == 1, 120.0)
        cluster.remove_node(large, allow_graceful=False)
        plan(home)
        cluster.add_node(num_cpus=4)
        child.join(200)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
        cluster.shutdown()
    assert {trial.status for trial in trials_by_rate(home / "run").values()} == {"finished"}
    assert sorted(rate for rate, _ in starts(home)) in ([0.1, 0.1, 0.2], [0.1, 0.2, 0.2])


def test_a_trial_that_fits_on_no_node_is_reported_at_once(home: Path) -> None:
    file = write_sweep(home, rates(0.1), "resources: {cpus: 999}")
    with pytest.raises(RunError, match=r"no node of the cluster has 999 CPUs.*; its nodes have"):
        run_sweep(read_sweep(file), home / "run", 1, Engine("ray", "local"))
