"""Trainings as tasks of a Ray cluster, each on a node with room for it.

All nodes see the run folders on a shared file system, and have this package installed.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from composer.errors import RunError, one_line_error
from composer.processes.python import secure_children
from composer.processes.signals import collected_signals
from composer.sweeps.executors.training import LOST, TrainingCommand, TrainingProcess
from composer.sweeps.sweep import Resources

PACKAGES = Path(__file__).parents[3]
"""The folder that this package is imported from."""
ANSWER_SECONDS = 10.0
POLL_SECONDS = 0.1


def run_training(training: TrainingCommand) -> int:
    """Train in a process of the task's own; a cancelled task waits for the checkpoint."""
    with collected_signals() as signals:  # `ray.cancel` is a SIGINT
        process = TrainingProcess(training, {})
        while (status := process.status()) is None:
            if signals and not process.is_cancelled:
                process.cancel()
            time.sleep(POLL_SECONDS)
        return status


class RayExecutor:
    """Tasks of a cluster; nodes may join and leave. Raises RunError if no node has room for one."""

    def __init__(self, ray: Any, resources: Resources) -> None:
        self.ray, self.jobs = ray, dict[str, Any]()
        self.cancelled = set[str]()
        self.needs = task_needs(resources, self.nodes())
        options = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
        self.task = ray.remote(run_training).options(
            **{option: self.needs[name] for option, name in options.items()}, max_retries=0
        )

    def nodes(self) -> list[Mapping[str, float]]:
        """Return the resources of each node."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def submit(self, training: TrainingCommand) -> str:
        task = self.task.remote(training)
        job = str(task.hex())
        self.jobs[job] = task
        return job

    def state(self, job: str) -> int | None:
        if not self.ray.wait([self.jobs[job]], timeout=0)[0]:
            return None
        try:
            return int(self.ray.get(self.jobs[job]))
        except self.ray.exceptions.TaskCancelledError:
            return -int(signal.SIGTERM)
        except self.ray.exceptions.RayTaskError as error:
            message = f"a node cannot start trainings: {one_line_error(error.cause)}"
            hint = "it needs this package, and the folders of this machine"
            raise RunError.of(message, hint) from None
        except self.ray.exceptions.RayError:  # its node or its worker has died
            return LOST

    def cancel(self, job: str) -> None:
        # a killed worker takes its training along, which then saves a checkpoint
        self.ray.cancel(self.jobs[job], force=job in self.cancelled)
        self.cancelled.add(job)

    def capacity(self) -> int:
        """Return the number for which the nodes have room, at least 1: a node may join."""
        return max(1, sum(room(node, self.needs) for node in self.nodes()))


@contextmanager
def ray_executor(address: str, resources: Resources) -> Iterator[RayExecutor]:
    """Connect to a cluster; `auto` finds one that runs here, `local` starts one.

    Raises RunError if Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ImportError:
        hint = "`pip install -c constraints.txt '.[ray]'`, or omit `--ray`"
        raise RunError.of("Ray is not installed", hint) from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        # Ray itself would try for minutes
        if colon and port.isdecimal():
            place = (host.strip("[]"), int(port))
            socket.create_connection(place, timeout=ANSWER_SECONDS).close()
        # Ray lets its workers import from the current folder, which must be this package's
        with secure_children(), chdir(PACKAGES):
            ray.init(
                address=address, log_to_driver=False, logging_level="error", configure_logging=True
            )
    except (OSError, ValueError, OverflowError, RuntimeError, ray.exceptions.RayError) as error:
        message = f"no Ray cluster answers at `{address}`: {error}"
        hint = "start one with `ray start --head` and write its address, or write `--ray auto`"
        raise RunError.of(message, f"{hint} or `--ray local`") from None
    try:
        # Ray has installed its own handlers, with other exit statuses
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        yield RayExecutor(ray, resources)
    except ray.exceptions.RayError as error:
        message = f"the Ray cluster does not answer any more: {one_line_error(error)}"
        raise RunError.of(message, "run the same command again") from None
    finally:
        ray.shutdown()


def task_needs(resources: Resources, nodes: list[Mapping[str, float]]) -> dict[str, float]:
    """Return the needs of a trial by Ray's names, by default one CPU, and one GPU if there is any.

    Raises RunError if no node has as much.
    """
    gpus = resources.gpus
    if gpus is None:
        gpus = float(any(node.get("GPU") for node in nodes))
    cpus, memory = float(resources.cpus or 1), float(resources.memory or 0)
    needs = {"CPU": cpus, "GPU": gpus, "memory": memory}
    if not any(room(node, needs) for node in nodes):
        available = []
        for node in nodes:
            has = Resources(node.get("GPU"), int(node.get("CPU", 0)), int(node.get("memory", 0)))
            available.append(has.describe())
        message = f"no node of the cluster has {resources.describe()}; its nodes have"
        message += f" {'; '.join(available) or 'nothing'}"
        hint = "write less under `resources`, or add a node with `ray start --address ...`"
        raise RunError.of(message, hint)
    return needs


def room(node: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return the number of trials that fit on a node of a cluster."""
    shares = [node.get(name, 0.0) / need for name, need in needs.items() if need]
    return int(min(shares) + 1e-6)  # 1 / 0.2 is 5
