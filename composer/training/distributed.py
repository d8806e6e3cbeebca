"""A process among those that train together: its rank, its launcher, its signals, its peers.

`launch` starts the processes of one machine; torchrun and srun start those of many.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import distributed

from composer.errors import MAX_LIBRARY_MESSAGE, ComposerError, RunFailed, one_line_error
from composer.processes.parent import end_with_parent
from composer.processes.signals import EARLY_SIGNALS, SAME_SIGNAL_SECONDS
from composer.run_dir import RESUME
from composer.training.lightning import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
    destroy_group_at_exit,
)

T = TypeVar("T")

RESUME_HINT = f"{RESUME} continues from the last checkpoint"
SHARE_FOLDER = "give all machines the same run folder, on a file system that they share"
"""Fix of a training whose processes see different folders."""
PEER_SECONDS = 3.0
"""Seconds that a process waits that has lost another, so that the launcher sees the other first."""
SIGNAL_SECONDS = 5.0
"""Seconds until all processes know of a signal to one of them, unless a step takes longer."""
HANDLED = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a training between two steps, after a checkpoint."""


def external_launcher() -> str:
    """Return the launcher of this process, `torchrun` or `srun`; "" for none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # inside an allocation the same variables are there without srun; then there is one process
    in_step = "SLURM_STEP_ID" in os.environ and "SLURM_PROCID" in os.environ
    return (
        "srun"
        if in_step and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")
        else ""
    )


def cluster_environment() -> ClusterEnvironment:
    """Return Lightning's environment, by which processes meet; SLURM requeues by itself."""
    started = external_launcher()
    if started == "srun":
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(launched_world()[0]))
        return SLURMEnvironment(auto_requeue=False)
    return TorchElasticEnvironment() if started == "torchrun" else LightningEnvironment()


def launched_world() -> tuple[int, int]:
    """Return the number of processes that the launcher started on each machine, and of machines."""
    if external_launcher() == "torchrun":
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    nodes = int(os.environ.get("SLURM_NNODES", "1"))
    return int(os.environ.get("SLURM_NTASKS", "1")) // nodes, nodes


def is_main_process() -> bool:
    """True in the process of rank 0; known before the processes meet."""
    if started := external_launcher():
        return os.environ["RANK" if started == "torchrun" else "SLURM_PROCID"] == "0"
    return os.environ.get("RANK", "0") == "0"


def exit_with_launcher() -> None:
    """Have the system end this process when torchrun is gone; nobody else would end it."""
    if external_launcher() == "torchrun":
        end_with_parent()


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, number of all that train together, and an exchange of objects."""

    rank: int = 0
    world: int = 1

    def gather(self, value: T) -> list[T]:
        """Return the value of every process, in the order of their ranks; a collective call."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value)
        return values


class TrainingInterrupted(Exception):
    """Raised when a training was asked to end and has written a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class PeerLost(SystemExit):
    """Raised to end this process since another has ended; its code is what the library says.

    The launcher tells how the other ended, if one did.
    """

    def __init__(self, message: str, time: int) -> None:
        super().__init__(message)
        self.time = time


class TrainingEnded(Exception):
    """Raised to end a training without a validation after its last step."""


class SignalHandler:
    """Handler that remembers the first signal; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received, self.time = 0, 0.0
        self.before = {number: signal.getsignal(number) for number in HANDLED}

    def listen(self) -> None:
        """Install the handler, over any that was installed since; only a main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                signal.signal(number, self._handle)
            if EARLY_SIGNALS and not self.received:
                self.received, self.time = EARLY_SIGNALS.pop(), time.monotonic()

    def restore(self) -> None:
        """Reinstall the handlers that were there when this was made."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received, self.time = number, time.monotonic()
        elif time.monotonic() - self.time > SAME_SIGNAL_SECONDS:
            raise SystemExit(128 + number)


class SignalPoll:
    """Agreement of all processes on a signal; they ask rarely, since each waits for all."""

    def __init__(self, ranks: Ranks, step: int, max_steps: int) -> None:
        self.ranks, self.step, self.time = ranks, step, time.monotonic()
        self.every, self.max_steps = 1, max_steps

    def ask(self, received: int, step: int) -> int:
        """Return the signal that any process has received; 0 if none, or if not asked."""
        steps, now = step - self.step, time.monotonic()
        if steps < self.every:
            return 0
        answers = self.ranks.gather((received, (now - self.time) / max(1, steps)))
        self.step, self.time = step, now
        slowest = max(seconds for _, seconds in answers)
        self.every = max(1, min(self.max_steps, int(SIGNAL_SECONDS / slowest)))
        return max(number for number, _ in answers)


def termination_requested() -> bool:
    """True if this process has received SIGTERM while it trained."""
    handler = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return isinstance(handler, SignalHandler) and handler.received == signal.SIGTERM


@contextmanager
def training_process(local: int) -> Iterator[None]:
    """Run a block that trains, as one of `local` processes of this machine.

    Raises RunFailed if another process does not answer, and ends this one if another has ended.
    """
    threads = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        # set here, or Lightning sets it: to the cores of the machine, whatever was chosen before
        os.environ["OMP_NUM_THREADS"] = str(max(1, threads // local))
        torch.set_num_threads(max(1, threads // local))
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning makes a plain 1 of it
            raise SystemExit(128 + signal.SIGINT) from None
        raise
    except TrainingInterrupted:
        raise
    except Exception as error:
        if is_peer_error(error):
            raise peer_error(error) from error
        raise explain_worker_death(error) from error.__cause__
    finally:
        # of several processes none ends its group: torch may wait there forever
        atexit.unregister(destroy_group_at_exit)
        if distributed.is_initialized() and distributed.get_world_size() == 1:
            distributed.destroy_process_group()


def explain_worker_death(error: Exception) -> Exception:
    """Return a readable error for a killed DataLoader worker; other errors unchanged."""
    match = re.search(r"DataLoader worker \(pid.*\) ([^.]*)", str(error))
    if not isinstance(error, RuntimeError) or match is None:
        return error
    if termination_requested() or "Terminated" in match[1]:  # want of memory kills
        by = "from outside"
        if external_launcher():
            by = "by its launcher, as all are where one has ended"
        cause = f"the training cannot continue: this process was ended {by} (SIGTERM)"
        return RunFailed.of(
            cause, f"read what the first process that ended has printed; {RESUME_HINT}"
        )
    cause = f"the training cannot continue: one of its `training.workers` {match[1]}"
    return RunFailed.of(
        cause, f"give the machine more memory, or set fewer `training.workers`; {RESUME_HINT}"
    )


def is_peer_error(error: BaseException) -> bool:
    """Return True if an error means that another process is gone or does not answer."""
    if isinstance(error, (ComposerError, OSError, torch.OutOfMemoryError)):
        return False
    words = ("gloo", "NCCL", "by peer", "TCPStore")
    from_library = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return from_library or isinstance(error, distributed.DistError)


def peer_error(error: Exception) -> BaseException:
    """Return the end of a process that has lost another: RunFailed if that hangs, else PeerLost."""
    noticed = time.time_ns()
    with suppress(SystemExit):  # of the launcher's SIGTERM
        time.sleep(PEER_SECONDS)
    if "imed out" not in str(error) and "imeout" not in str(error):
        message = one_line_error(error)[:MAX_LIBRARY_MESSAGE]
        message = f"the training cannot continue without another process: {message}"
        return PeerLost(message, noticed)
    cause = "the training cannot continue: another process does not answer"
    fix = "where it was only slow, raise `trainer.timeout_minutes`"
    return RunFailed.of(cause, f"{fix}; {RESUME_HINT}")
