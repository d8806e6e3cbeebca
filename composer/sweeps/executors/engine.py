"""The engine that a sweep's trainings run on, as the command line names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from composer.sweeps.executors.local import LocalExecutor
from composer.sweeps.executors.ray import ray_executor
from composer.sweeps.executors.slurm import SlurmExecutor, job_parameters
from composer.sweeps.executors.training import Executor
from composer.sweeps.sweep import Resources


@dataclass(frozen=True)
class Engine:
    """This machine, Slurm, or the Ray cluster at an `address`."""

    kind: Literal["local", "ray", "slurm"] = "local"
    address: str = ""

    @property
    def has_machines(self) -> bool:
        """True if trainings may run on other machines than this one."""
        return self.kind != "local"


LOCAL = Engine()


@contextmanager
def open_executor(
    engine: Engine, name: str, workers: int, resources: Resources
) -> Iterator[Executor]:
    """Open an executor of trainings that each need some resources; `name` is the sweep's.

    Raises RunError if the engine is not there, or has too little for one training.
    """
    if engine.kind == "slurm":
        yield SlurmExecutor(name, resources)
    elif engine.kind == "ray":
        with ray_executor(engine.address, resources) as executor:
            yield executor
    else:
        yield LocalExecutor(workers, resources)


def describe_request(engine: Engine, name: str, workers: int, resources: Resources) -> str:
    """Say what would be submitted, and how much of it at once. Raises RunError."""
    if engine.kind == "slurm":
        options = []
        for key, value in job_parameters(name, resources).items():
            if key != "setup":
                options.append(f"--{key.replace('_', '-')}={value}")
        return f"sbatch {' '.join(options)}, at most {workers} jobs at once"
    if engine.kind == "ray":
        what = f"tasks of {resources.describe()}"
        if resources.gpus is None:
            what += ", and 1 GPU where the cluster has any"
        return f"{what}, at most {workers} at once, on the Ray cluster {engine.address}"
    slots = LocalExecutor(workers, resources).slots
    text = f"at most {len(slots)} at once on this machine"
    gpus = [slot["CUDA_VISIBLE_DEVICES"] for slot in slots if "CUDA_VISIBLE_DEVICES" in slot]
    if gpus:
        text += f", with the GPUs {' | '.join(own or 'none' for own in gpus)}"
    return text
