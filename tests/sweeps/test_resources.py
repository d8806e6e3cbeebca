"""A trial gets what the sweep's file says that it needs, and is refused where nobody has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from composer.errors import RecipeError, RunError
from composer.sweeps.executors.local import LocalExecutor, num_that_fit, slot_environments
from composer.sweeps.executors.ray import room, task_needs
from composer.sweeps.executors.slurm import job_parameters
from composer.sweeps.planned_memory import with_planned_memory
from composer.sweeps.points import list_points, point_recipe
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Resources
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
    assert task_needs(Resources(), [SMALL, SMALL]) == {"CPU": 1.0, "GPU": 0.0, "memory": 0.0}
    assert task_needs(Resources(), [SMALL, LARGE])["GPU"] == 1.0
    assert task_needs(Resources(gpus=0.25, cpus=8), [SMALL, LARGE])["GPU"] == 0.25
    assert task_needs(Resources(gpus=0), [LARGE])["GPU"] == 0.0


def test_unequal_nodes_have_room_for_different_numbers() -> None:
    needs = task_needs(Resources(gpus=0, cpus=2, memory=2**31), [SMALL, LARGE])
    assert [room(node, needs) for node in (SMALL, LARGE)] == [1, 16]
    assert room(LARGE, task_needs(Resources(gpus=0.5), [LARGE])) == 8
    assert room(SMALL, task_needs(Resources(gpus=0.5), [LARGE])) == 0


@pytest.mark.parametrize(
    "resources", [Resources(gpus=8), Resources(cpus=33), Resources(memory=2**37)]
)
def test_a_trial_that_fits_nowhere_is_reported_at_once_with_what_there_is(
    resources: Resources,
) -> None:
    with pytest.raises(RunError, match="no node of the cluster has") as error:
        task_needs(resources, [SMALL, LARGE])
    assert "its nodes have 2 CPUs, 3.73 GiB; 4 GPUs, 32 CPUs, 59.6 GiB" in str(error.value)


def test_two_nodes_do_not_add_up_to_one() -> None:
    with pytest.raises(RunError, match="has 3 CPUs"):
        task_needs(Resources(cpus=3), [SMALL, SMALL])


@pytest.mark.parametrize("resources", [Resources(cpus=9_999), Resources(memory=1 << 60)])
def test_a_trial_that_is_too_large_for_this_machine_is_reported_with_what_it_has(
    resources: Resources,
) -> None:
    with pytest.raises(RunError, match=r"a trial needs .*, and this machine has \d+ CPU.*GiB"):
        LocalExecutor(1, resources)


def gpus_of(slots: int, gpus: list[str], resources: Resources) -> list[str | None]:
    """The GPUs of each slot; None for all."""
    slot_variables = slot_environments({}, slots, gpus, resources)
    return [own.get("CUDA_VISIBLE_DEVICES") for own in slot_variables]


def test_trainings_of_this_machine_share_its_gpus_as_they_need() -> None:
    gpus = ["0", "1", "2", "3"]
    assert gpus_of(2, gpus, Resources(gpus=2)) == ["0,1", "2,3"]
    assert gpus_of(3, gpus, Resources(gpus=0.5)) == ["0", "0", "1"]
    assert gpus_of(5, gpus, Resources(gpus=0.4)) == ["0", "0", "1", "1", "2"]
    assert gpus_of(1, gpus, Resources(gpus=0)) == [""]
    assert gpus_of(50, ["0", "1"], Resources(gpus=1 / 49))[48:] == ["0", "1"]
    threads = slot_environments({}, 2, gpus, Resources(cpus=3))
    assert [own["OMP_NUM_THREADS"] for own in threads] == ["3", "3"]


def test_as_many_trainings_run_at_once_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("composer.sweeps.executors.local.visible_cpus", lambda: 8)
    monkeypatch.setattr("composer.sweeps.executors.local.available_memory", lambda: 2.0**35)
    for resources, count in (
        (Resources(gpus=0.5), 4),
        (Resources(gpus=1), 2),
        (Resources(cpus=3), 2),
        (Resources(memory=2**33), 4),
        (Resources(), 5),
    ):
        assert LocalExecutor(5, resources).capacity() == count
    with pytest.raises(RunError, match=r"a trial needs 4 GPUs, .*, and this machine has 2 GPUs"):
        num_that_fit(Resources(gpus=4), ["0", "1"])


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
    parameters = job_parameters("tried", Resources(gpus=0.5, cpus=4, memory=2**34, minutes=90.5))
    assert parameters == {
        "job_name": "tried",
        "cpus_per_task": 4,
        "gpus_per_node": 1,
        "mem": "16384M",
        "time": 91,
        "setup": ["export PYTHONSAFEPATH=1"],
    }
    assert job_parameters("tried", Resources())["time"] == 24 * 60
    monkeypatch.setenv("SBATCH_TIMELIMIT", "10")
    assert "time" not in job_parameters("tried", Resources())
