"""Worker pools: training processes on this machine or on a Ray cluster. The one door to Ray.

Ray only starts commands, says how they ended, and counts CPUs and GPUs; suggestions and pruning stay with the sweep's
study. Ray Tune would bring a search, pruning and trial records of its own, and with them a second meaning of the same
sweep file; this way a sweep gives the same trials wherever it runs, and can be stopped on a cluster and resumed without
one. All machines see the run folders on a shared file system, and have this package installed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from composer.errors import RunError
from composer.run_dir import LOCK

SET_PARENT_DEATH_SIGNAL = 1
"""prctl's PR_SET_PDEATHSIG."""
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
LOST = -int(signal.SIGKILL)
"""The status of a command whose machine or actor died."""
CONNECT_TIMEOUT = 10.0
"""Seconds in which a cluster must answer."""


class Job(Protocol):
    """One running command."""

    def poll(self) -> int | None:
        """Return its exit status, negative if a signal ended it, or None while it runs."""
        ...

    def stop(self, number: int) -> None:
        """Send it a signal; SIGKILL ends all processes that it started."""
        ...


class WorkerPool(Protocol):
    """What starts commands: this machine, or a cluster."""

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        """Start a command, whose output is appended to `log`."""
        ...

    def close(self) -> None:
        """Release the pool's resources; no job runs any more."""
        ...


def train_command(recipe: Path, run: Path, settings: Sequence[str], data: Path | None) -> list[str]:
    """Return the command that trains a recipe into a run folder, resuming a run that was killed."""
    command = [sys.executable, "-m", "composer.cli.main", "train", str(recipe), *settings, "--run", str(run)]
    return [*command, "--resume", *(["--data", str(data)] if data is not None else [])]


# ------------------------------------------------------------------------------------------- this machine


class LocalJob:
    """A process of this machine, which leads a process group of its own."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
                preexec_fn=end_with_parent(),
            )

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)


class LocalWorkerPool:
    """Workers on this machine, each with a share of its CPUs, and of its GPUs if there are any."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # a shell's background jobs ignore SIGINT, and children would inherit that; trainings listen to it
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        own = worker_environment(os.environ, slot, self.workers, visible_gpus(os.environ))
        return LocalJob(command, log, {**os.environ, **own})

    def close(self) -> None:
        """Do nothing: no resource is held."""


def end_with_parent() -> Callable[[], object] | None:
    """Return what a child calls before it starts, to get SIGTERM when its parent dies, be it by SIGKILL.

    Only Linux has this. Elsewhere a training that outlives its sweep is waited for, by the lock on its run folder.
    """
    if not sys.platform.startswith("linux"):
        return None
    return partial(ctypes.CDLL(None).prctl, SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def is_locked(run: Path) -> bool:
    """Return whether a training holds a run folder: one whose sweep was killed, and which has not ended yet."""
    try:
        import fcntl
    except ImportError:  # the system has no such locks
        return False
    try:
        with (run / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the run has not started, or the file system has no locks
        return False
    return False


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that this process may use."""
    if (devices := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [device.strip() for device in devices.split(",") if device.strip() not in ("", "-1")]
    return [str(number) for number in range(len(list(NVIDIA_GPUS.iterdir())))] if NVIDIA_GPUS.is_dir() else []


def worker_environment(environment: Mapping[str, str], slot: int, workers: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables of one worker: its threads, and its GPUs if several workers share them."""
    own = {}
    if "OMP_NUM_THREADS" not in environment:
        own["OMP_NUM_THREADS"] = str(max(1, cpu_count() // workers))
    if gpus and workers > 1:
        share = gpus[slot % workers :: workers] if len(gpus) >= workers else [gpus[slot % len(gpus)]]
        own["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return own


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------------------------------- a Ray cluster


class CommandActor:
    """Runs on a machine of the cluster, and holds one command there; its methods are called through Ray."""

    def __init__(self, command: Sequence[str], log: str, folder: str) -> None:
        os.chdir(folder)
        self.job = LocalJob(command, Path(log), dict(os.environ))

    def poll(self) -> int | None:
        return self.job.poll()

    def stop(self, number: int) -> None:
        self.job.stop(number)


class RayJob:
    """A command somewhere in the cluster. While Ray still looks for a machine, it counts as running."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.reply = actor.poll.remote()
        self.status: int | None = None

    def poll(self) -> int | None:
        """Return the actor's last reply; the next request is sent once it has come, so that nothing waits here."""
        if self.status is None and self.ray.wait([self.reply], timeout=0)[0]:
            try:
                self.status = self.ray.get(self.reply)
            except self.ray.exceptions.RayError:
                self.status = LOST
            if self.status is None:
                self.reply = self.actor.poll.remote()
            else:
                self.ray.kill(self.actor)
        return self.status

    def stop(self, number: int) -> None:
        if self.status is None:
            self.actor.stop.remote(number)


class RayWorkerPool:
    """A Ray cluster: `auto` is the one that runs here, `local` one that is started for this sweep, else an address.

    Raises:
        RunError: If Ray is not installed or the cluster does not answer.
    """

    def __init__(self, address: str, workers: int) -> None:
        self.ray = import_ray()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        check_reachable(address)
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=True)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError, self.ray.exceptions.RayError) as error:
            raise no_cluster_error(address, error) from None
        for number, handler in handlers.items():  # Ray has put its own in their place, with exit statuses of its own
            signal.signal(number, handler)
        total = self.ray.cluster_resources()
        self.resources = resources_per_worker(total.get("CPU", 1), total.get("GPU", 0), workers)

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        cpus, gpus = self.resources
        actor = self.ray.remote(CommandActor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0)
        return RayJob(self.ray, actor.remote(list(command), str(log.absolute()), os.getcwd()))

    def close(self) -> None:
        self.ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise RunError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise no_cluster_error(address, error) from None


def no_cluster_error(address: str, error: Exception) -> RunError:
    """Return the error of an address at which no cluster answers."""
    hint = "start one with `ray start --head` and write its address, `--ray auto` for the one here, or `--ray local`"
    return RunError.of(f"no Ray cluster answers at `{address}`: {error}", hint)


def resources_per_worker(cpus: float, gpus: float, workers: int) -> tuple[int, float]:
    """Return the CPUs and GPUs of one worker; if there are fewer GPUs than workers, each gets a fraction."""
    own = gpus // workers if gpus >= workers else gpus / workers
    return max(1, int(cpus // workers)), own


def import_ray() -> Any:
    """Return the module `ray`. Raises RunError with what to install if it is missing."""
    try:
        import ray
    except ImportError:
        raise RunError.of("Ray is not installed", "`pip install 'seqcomposer[ray]'`, or leave `--ray` away") from None
    return ray
