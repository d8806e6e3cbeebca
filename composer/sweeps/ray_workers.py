"""Workers on the machines of a Ray cluster. The one door to Ray.

Ray carries commands to machines, says how they end, and counts processors and graphics cards; what is tried next and
what is ended early stays with the study of the sweep. Ray Tune would bring a search, a pruning and a record of trials
of its own, and with them a second meaning for the same file; this way a sweep gives the same trials, folders and
leaderboard wherever it runs, and can be stopped on a cluster and go on without one. All machines see the run folders
on a file system that they share, and have this package installed.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.errors import RunError
from composer.sweeps.workers import Job, LocalJob

LOST = -int(signal.SIGKILL)
"""The status of a command whose machine or keeper is gone."""


ANSWER = 10.0
"""Seconds in which a cluster must answer."""


class Keeper:
    """Runs where Ray has found room, and keeps one command there; it is asked through Ray what any job is asked."""

    def __init__(self, command: Sequence[str], log: str, folder: str) -> None:
        os.chdir(folder)
        self.job = LocalJob(command, Path(log), dict(os.environ))

    def poll(self) -> int | None:
        return self.job.poll()

    def stop(self, number: int) -> None:
        self.job.stop(number)


class RayJob:
    """A command somewhere in the cluster. While Ray looks for a place, it runs and has no status."""

    def __init__(self, ray: Any, keeper: Any) -> None:
        self.ray, self.keeper = ray, keeper
        self.answer = keeper.poll.remote()
        self.status: int | None = None

    def poll(self) -> int | None:
        """What the keeper has answered; the next question is on its way when this one is answered."""
        if self.status is None and self.ray.wait([self.answer], timeout=0)[0]:
            try:
                self.status = self.ray.get(self.answer)
            except self.ray.exceptions.RayError:
                self.status = LOST
            if self.status is None:
                self.answer = self.keeper.poll.remote()
            else:
                self.ray.kill(self.keeper)
        return self.status

    def stop(self, number: int) -> None:
        if self.status is None:
            self.keeper.stop.remote(number)


class RayCrew:
    """A Ray cluster: `auto` is the one that runs here, `local` one that is started for this sweep, else an address.

    Raises RunError where Ray is not installed or the cluster does not answer.
    """

    def __init__(self, address: str, workers: int) -> None:
        self.ray = imported()
        heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        must_answer(address)
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=True)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError, self.ray.exceptions.RayError) as error:
            raise silent(address, error) from None
        for number, handler in heard.items():  # Ray has put its own in their place, with exit statuses of its own
            signal.signal(number, handler)
        there = self.ray.cluster_resources()
        self.needs = share(there.get("CPU", 1), there.get("GPU", 0), workers)

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        threads, cards = self.needs
        keeper = self.ray.remote(Keeper).options(num_cpus=threads, num_gpus=cards, max_restarts=0)
        return RayJob(self.ray, keeper.remote(list(command), str(log.absolute()), os.getcwd()))

    def close(self) -> None:
        self.ray.shutdown()


def must_answer(address: str) -> None:
    """Raises RunError where nobody listens at HOST:PORT; Ray itself would ask for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise silent(address, error) from None


def silent(address: str, error: Exception) -> RunError:
    """No cluster is where one was told to be."""
    fix = "start one with `ray start --head` and write its address, `--ray auto` for the one here, or `--ray local`"
    return RunError.of(f"no Ray cluster answers at `{address}`: {error}", fix)


def share(processors: float, cards: float, workers: int) -> tuple[int, float]:
    """The processors and graphics cards of one worker; where there are fewer cards than workers, they are shared."""
    own = cards // workers if cards >= workers else cards / workers
    return max(1, int(processors // workers)), own


def imported() -> Any:
    """Ray, or RunError with what to install."""
    try:
        import ray
    except ImportError:
        raise RunError.of("Ray is not installed", "`pip install 'seqcomposer[ray]'`, or leave `--ray` away") from None
    return ray
