"""A trial gets what the sweep's file says that it needs, and is refused where nobody has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from composer.errors import RecipeError, RunError
from composer.sweeps.points import list_points, point_recipe
from composer.sweeps.scheduler import with_planned_memory
from composer.sweeps.slurm import job_parameters
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Resources
from composer.sweeps.workers import LocalWorkerPool, fit_in_nodes, worker_environment
from composer.training.training_plan import plan_training
from tests.sweeps.stub_sweeps import rates, write_sweep

SMALL, LARGE = {"CPU": 2.0, "memory": 4e9}, {"CPU": 32.0, "memory": 64e9, "GPU": 4.0}


def test_the_resources_of_a_file(tmp_path: Path) -> None:
    file = write_sweep(
        tmp_path, rates(0.1), "resources: {gpus: 0.5, cpus: 4, memory: 1.5G, minutes: 90}"
    )
    assert read_sweep(file).resources == Resources(0.5, 4, 3 * 2**29, 90)
    without = write_sweep(tmp_path / "without", rates(0.1))
    assert read_sweep(without).resources == Resources()
    assert read_sweep(without).fingerprint == read_sweep(file).fingerprint, "they decide no result"


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("memory: 16", 21),
        ("gpus: -1", 19),
        ("gpus: 1.5", 19),
        ("cpus: 0", 19),
        ("minutes: long", 22),
        ("disk: 1G", 13),
    ],
)
def test_what_no_machine_has_is_refused_where_it_stands(
    tmp_path: Path, text: str, column: int
) -> None:
    with pytest.raises(RecipeError) as error:
        read_sweep(write_sweep(tmp_path, rates(0.1), f"resources: {{{text}}}"))
    (fault,) = error.value.faults
    assert (fault.line, fault.column, bool(fault.hint)) == (6, column, True)


@pytest.mark.parametrize(
    ("text", "size"), [("16G", 2**34), ("500M", 500 * 2**20), ("0.5K", 512), ("2T", 2**41)]
)
def test_sizes(text: str, size: int) -> None:
    assert Resources.read({"memory": text}) == Resources(memory=size)


def test_a_trial_is_placed_by_node() -> None:
    assert fit_in_nodes(Resources(), [SMALL, SMALL]) == {
        "num_cpus": 1.0,
        "num_gpus": 0.0,
        "memory": 0.0,
    }
    assert fit_in_nodes(Resources(), [SMALL, LARGE])["num_gpus"] == 1.0
    assert fit_in_nodes(Resources(gpus=0.25, cpus=8), [SMALL, LARGE])["num_gpus"] == 0.25
    assert fit_in_nodes(Resources(gpus=0), [LARGE])["num_gpus"] == 0.0


@pytest.mark.parametrize(
    "resources", [Resources(gpus=8), Resources(cpus=33), Resources(memory=2**37)]
)
def test_a_trial_that_fits_nowhere_is_reported_at_once_with_what_there_is(
    resources: Resources,
) -> None:
    with pytest.raises(RunError, match="no node of the cluster has") as error:
        fit_in_nodes(resources, [SMALL, LARGE])
    assert "its nodes have 2 CPUs, 3.73 GiB; 4 GPUs, 32 CPUs, 59.6 GiB" in str(error.value)


def test_two_nodes_do_not_add_up_to_one() -> None:
    with pytest.raises(RunError, match="has 3 CPUs"):
        fit_in_nodes(Resources(cpus=3), [SMALL, SMALL])


@pytest.mark.parametrize("resources", [Resources(cpus=9_999), Resources(memory=1 << 60)])
def test_a_trial_that_is_too_large_for_this_machine_is_reported_with_what_it_has(
    resources: Resources,
) -> None:
    with pytest.raises(RunError, match=r"a trial needs .*, and this machine has \d+ CPU.*GiB"):
        LocalWorkerPool(1, resources)


def test_workers_of_this_machine_share_its_gpus_as_their_trials_need() -> None:
    gpus = ["0", "1", "2", "3"]
    two = [worker_environment({}, slot, 2, gpus, Resources(gpus=2, cpus=3)) for slot in range(2)]
    assert [own["CUDA_VISIBLE_DEVICES"] for own in two] == ["0,1", "2,3"]
    assert {own["OMP_NUM_THREADS"] for own in two} == {"3"}
    halves = [worker_environment({}, slot, 3, gpus, Resources(gpus=0.5)) for slot in range(3)]
    assert [own["CUDA_VISIBLE_DEVICES"] for own in halves] == ["0", "0", "1"]
    of_five = [
        worker_environment({}, slot, 5, gpus, Resources(gpus=0.4))["CUDA_VISIBLE_DEVICES"]
        for slot in range(5)
    ]
    assert of_five == ["0", "0", "1", "1", "2"], "no GPU has more than it can"
    assert worker_environment({}, 0, 1, gpus, Resources(gpus=0))["CUDA_VISIBLE_DEVICES"] == ""


def test_more_gpus_than_there_are_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert LocalWorkerPool(4, Resources(gpus=0.5)).gpus == ["0", "1"]
    with pytest.raises(RunError, match="2 trials at once need 4 GPUs, and this machine has 2"):
        LocalWorkerPool(2, Resources(gpus=2))


def test_memory_that_nobody_wrote_is_planned_for_the_largest_point(tmp_path: Path) -> None:
    widths = "width: {set: model.width, values: [8, 64]}"
    sweep = read_sweep(write_sweep(tmp_path, widths))
    points, lines = list_points(sweep), list[str]()
    needs = with_planned_memory(sweep, points, lines.append)
    planned = plan_training(point_recipe(sweep, points[1].point)).memory.bytes
    assert needs.memory == int(1.5 * planned + 1.5 * 2**30)
    assert len(lines) == 1
    assert needs.describe() in lines[0]
    for known, resources in (
        ([], sweep.resources),
        (points, Resources(gpus=1)),
        (points, Resources(memory=2**30)),
    ):
        lines.clear()
        assert (
            with_planned_memory(replace(sweep, resources=resources), known, lines.append)
            == resources
        )
        assert not lines


def test_slurm_is_asked_for_what_a_trial_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SBATCH_TIMELIMIT", raising=False)
    parameters = job_parameters("tried", Resources(gpus=0.5, cpus=4, memory=2**34, minutes=90.5), 8)
    assert parameters == {
        "job_name": "tried",
        "array_parallelism": 8,
        "cpus_per_task": 4,
        "gpus_per_node": 1,
        "mem": "16384M",
        "time": 91,
        "setup": ["export PYTHONSAFEPATH=1"],
    }
    assert job_parameters("tried", Resources(), 1)["time"] == 24 * 60
    monkeypatch.setenv("SBATCH_TIMELIMIT", "10")
    assert "time" not in job_parameters("tried", Resources(), 1)
