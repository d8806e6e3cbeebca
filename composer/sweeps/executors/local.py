"""Trainings as processes of this machine, within its CPUs, GPUs and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from composer.errors import RunError
from composer.model.machine import available_memory, visible_cpus, visible_gpus
from composer.sweeps.executors.training import TrainingCommand, TrainingProcess
from composer.sweeps.sweep import Resources


class LocalExecutor:
    """Runs at most `workers` trainings at once, fewer where the machine is too small.

    Raises RunError if it is too small for one.
    """

    def __init__(self, workers: int, resources: Resources) -> None:
        gpus = visible_gpus(os.environ)
        slots = min(workers, num_that_fit(resources, gpus))
        self.slots = slot_environments(os.environ, slots, gpus, resources)
        self.jobs: dict[str, TrainingProcess] = {}
        self.slot_of: dict[str, int] = {}

    def submit(self, training: TrainingCommand) -> str:
        """Start a process in the first free slot."""
        slot = min({*range(len(self.slots))} - {*self.slot_of.values()})
        process = TrainingProcess(training, self.slots[slot])
        job = str(process.process.pid)
        self.jobs[job], self.slot_of[job] = process, slot
        return job

    def state(self, job: str) -> int | None:
        status = self.jobs[job].status()
        if status is not None:
            self.slot_of.pop(job, None)
        return status

    def cancel(self, job: str) -> None:
        self.jobs[job].cancel()

    def capacity(self) -> int:
        return len(self.slots)


def num_that_fit(resources: Resources, gpus: Sequence[str]) -> int:
    """Return the number of trials that this machine has room for. Raises RunError if none fits."""
    cpus, memory = visible_cpus(), available_memory()
    room: list[float] = [math.inf]
    if resources.cpus:
        room.append(cpus // resources.cpus)
    if resources.memory:
        room.append(memory // resources.memory)
    if resources.gpus:
        room.append(len(gpus) * resources.trials_per_gpu // math.ceil(resources.gpus))
    if min(room) >= 1:
        return int(min(*room, 1 << 20))
    available = Resources(len(gpus), cpus, None if math.isinf(memory) else int(memory))
    message = f"a trial needs {resources.describe()}, and this machine has {available.describe()}"
    hint = "write less under `resources`, or use a larger machine, `--slurm` or `--ray ADDRESS`"
    raise RunError.of(message, hint)


def slot_environments(
    environment: Mapping[str, str], slots: int, gpus: Sequence[str], resources: Resources
) -> list[dict[str, str]]:
    """Return the environment variables of the trainings that run at once: threads and GPUs."""
    variables: list[dict[str, str]] = []
    for slot in range(slots):
        own = {}
        if "OMP_NUM_THREADS" not in environment:
            own["OMP_NUM_THREADS"] = str(resources.cpus or max(1, visible_cpus() // slots))
        if (chosen := slot_gpus(slot, slots, gpus, resources)) is not None:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
        variables.append(own)
    return variables


def slot_gpus(
    slot: int, slots: int, gpus: Sequence[str], resources: Resources
) -> Sequence[str] | None:
    """Return the GPUs of one of the slots; None if it has all.

    Without `gpus` in the resources, slots divide the machine's; a share is never split over two.
    """
    if not gpus:
        return None
    if resources.gpus is None:
        if slots == 1:
            return None
        return gpus[slot::slots] or [gpus[slot % len(gpus)]]
    needed = math.ceil(resources.gpus)
    first = slot // resources.trials_per_gpu * needed
    return gpus[first : first + needed]
