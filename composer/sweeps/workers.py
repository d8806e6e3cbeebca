"""Workers: processes that train, on this machine. What the engine asks of them is start, poll and stop."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from composer.run_dir import LOCK

SET_PARENT_DEATH_SIGNAL = 1
"""prctl's PR_SET_PDEATHSIG."""
CARDS = Path("/proc/driver/nvidia/gpus")


class Job(Protocol):
    """One command that runs somewhere."""

    def poll(self) -> int | None:
        """Its exit status, negative where a signal ended it; None while it runs."""
        ...

    def stop(self, number: int) -> None:
        """Sends it a signal; SIGKILL ends all processes that it has started."""
        ...


class WorkerPool(Protocol):
    """Whoever starts commands: this machine, or a cluster."""

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        """Starts a command, which writes what it has to say at the end of `log`."""
        ...

    def close(self) -> None:
        """Gives back what was taken; no job runs any more."""
        ...


class LocalJob:
    """A process of this machine, and of the group that it leads."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
                preexec_fn=ends_with_parent(),
            )

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)


class LocalCrew:
    """Workers on this machine: each has a share of its processors, and of its graphics cards where there are any."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # ignored in a shell's background job; trainings listen

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        return LocalJob(command, log, {**os.environ, **share(os.environ, slot, self.workers, cards(os.environ))})

    def close(self) -> None:
        """Nothing was taken."""


def training(recipe: Path, run: Path, settings: Sequence[str], data: Path | None) -> list[str]:
    """The command that trains a recipe into a run folder, from where a killed one stopped."""
    told = [sys.executable, "-m", "composer.cli.main", "train", str(recipe), *settings, "--run", str(run), "--resume"]
    return told + (["--data", str(data)] if data is not None else [])


def ends_with_parent() -> Callable[[], object] | None:
    """What a child does before it begins: it asks to be told to end when its parent is gone, SIGKILL included.

    Elsewhere than on Linux there is no such thing: what goes on training then is waited for, by its lock.
    """
    if not sys.platform.startswith("linux"):
        return None
    return partial(ctypes.CDLL(None).prctl, SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def is_held(run: Path) -> bool:
    """Whether a training holds a run folder: one of a sweep that was killed, which has not ended yet."""
    try:
        import fcntl
    except ImportError:  # the system has no such locks
        return False
    try:
        with (run / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nothing is there, or a file system without locks
        return False
    return False


def cards(environment: Mapping[str, str]) -> list[str]:
    """The graphics cards that this process may use."""
    if (told := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [each.strip() for each in told.split(",") if each.strip() not in ("", "-1")]
    return [str(number) for number in range(len(list(CARDS.iterdir())))] if CARDS.is_dir() else []


def share(environment: Mapping[str, str], slot: int, workers: int, there: Sequence[str]) -> dict[str, str]:
    """What the environment tells a worker: its threads, and its cards where several workers must part them."""
    told = {}
    if "OMP_NUM_THREADS" not in environment:
        told["OMP_NUM_THREADS"] = str(max(1, processors() // workers))
    if there and workers > 1:
        own = there[slot % workers :: workers] if len(there) >= workers else [there[slot % len(there)]]
        told["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return told


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
