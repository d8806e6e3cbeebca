"""Processes of a training: start them, find their rank, handle signals, end all with one error.

Lightning could start them, but ends them badly: a dead peer hangs the others, and each prints its
own traceback.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn, TypeVar

import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Store

from composer.errors import ComposerError, Fault, RunFailed
from composer.formatting import strip_control_characters
from composer.processes.python import same_command
from composer.run_dir import RESUME
from composer.training import EARLY_SIGNALS
from composer.training.lightning import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

T = TypeVar("T")
Processes = Sequence[subprocess.Popen[Any]]

RESUME_HINT = f"{RESUME} continues from the last checkpoint"
SHARE_FOLDER = "give all machines the same run folder, on a file system that they share"
"""Fix of a training whose processes see different folders."""
ERROR_KEY = "error"
"""Key in the rendezvous store under which a process leaves its error for the main one."""
LAUNCHED_BY = "SEQCOMPOSER_LAUNCHED_BY"
"""Environment variable: id of the process that started this one."""
POLL_SECONDS = 0.5
"""Seconds between two looks at the other processes."""
GRACE_SECONDS = 10.0
"""Seconds that a process has to notice by itself that another has died."""
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
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    return all(int(os.environ.get(name, "0")) == 0 for name in ("NODE_RANK", "LOCAL_RANK"))


def exit_with_launcher() -> None:
    """End this process when the one that started it is gone; nobody else would end it."""
    starter = int(os.environ.get(LAUNCHED_BY, os.getpid()))
    if starter != os.getpid():
        call_when(lambda: os.getppid() != starter, lambda: os._exit(1))
    elif external_launcher() == "torchrun":
        parent = os.getppid()
        call_when(lambda: os.getppid() != parent, lambda: os.kill(os.getpid(), signal.SIGTERM))


def call_when(
    condition: Callable[[], bool], action: Callable[[], object], delay: float = 0.0
) -> threading.Event:
    """Call `action` in a thread `delay` seconds after `condition` holds, unless it is set."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            if condition():
                if not over.wait(delay):
                    action()
                over.set()

    threading.Thread(target=poll, daemon=True, name="call_when").start()
    return over


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


class TrainingEnded(Exception):
    """Raised to end a training without a validation after its last step."""


class SignalHandler:
    """Handler that remembers the first signal; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received = 0
        self.before = {number: signal.getsignal(number) for number in HANDLED}

    def listen(self) -> None:
        """Install the handler, over any that was installed since; only a main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                signal.signal(number, self._handle)
            self.received = self.received or (EARLY_SIGNALS.pop() if EARLY_SIGNALS else 0)

    def restore(self) -> None:
        """Reinstall the handlers that were there when this was made."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise SystemExit(128 + number)
        self.received = number


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
def training_processes(local: int, nodes: int) -> Iterator[None]:
    """Run a block in `local` processes on each of `nodes` machines; start those that are missing.

    They all end together; the main process raises the first error of any as RunFailed. Lightning's
    own launcher then has nothing to start: with `LOCAL_RANK` set its environment says that the
    processes were created externally.
    """
    before, threads = dict(os.environ), torch.get_num_threads()
    processes: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    try:
        if local * nodes > 1 and not cluster_environment().creates_processes_externally:
            processes = start_processes(local, nodes)
            over = call_when(
                lambda: any(peer.poll() for peer in processes),
                lambda: abort(processes),
                GRACE_SECONDS,
            )
        if "OMP_NUM_THREADS" not in before:
            # set here, or Lightning sets it: to the cores of the machine, whatever was chosen
            # before
            os.environ["OMP_NUM_THREADS"] = str(max(1, threads // local))
            torch.set_num_threads(max(1, threads // local))
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning makes a plain 1 of it
            raise SystemExit(128 + signal.SIGINT) from None
        raise
    except TrainingInterrupted:
        raise
    except Exception as error:
        over.set()
        raise_first_error(explain_worker_death(error), processes)
    finally:
        over.set()
        destroy_process_group()
        wait_for_exit(processes)
        # what told ranks apart must not reach the next training of this process
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        torch.set_num_threads(threads)


def start_processes(local: int, nodes: int) -> list[subprocess.Popen[bytes]]:
    """Start this command again for every other local rank, in an environment in which they meet."""
    place = LightningEnvironment()
    os.environ |= {
        LAUNCHED_BY: str(os.getpid()),
        "MASTER_ADDR": place.main_address,
        "MASTER_PORT": str(place.main_port),
        "NODE_RANK": str(place.node_rank()),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(local * nodes),
    }
    own = {"PYTHONFAULTHANDLER": "1"}  # one that a library crashes says where it was
    command, environment = same_command()
    ranks = [environment | own | {"LOCAL_RANK": str(rank)} for rank in range(1, local)]
    return [subprocess.Popen(command, env=rank) for rank in ranks]


def abort(processes: Processes) -> NoReturn:
    """End this process from another thread: its main thread waits for a dead process."""
    # one that was interrupted before it could take part has ended by 130 or 143, and has nothing to
    # report
    status = next((process.returncode for process in processes if process.poll() in (130, 143)), 0)
    if not status:
        sys.stderr.write((read_reported_error() or peer_error(processes)).render() + "\n")
        sys.stderr.flush()
    for process in processes:
        process.kill()
    os._exit(status or RunFailed.status)


def explain_worker_death(error: Exception) -> Exception:
    """Return a readable error for a killed DataLoader worker; other errors unchanged."""
    match = re.search(r"DataLoader worker \(pid.*\) ([^.]*)", str(error))
    if not isinstance(error, RuntimeError) or match is None:
        return error
    if termination_requested() or "Terminated" in match[1]:  # want of memory kills
        launcher = external_launcher()
        by = f"by {launcher}, as all are where one has ended" if launcher else "from outside"
        cause = f"the training cannot continue: this process was ended {by} (SIGTERM)"
        return RunFailed.of(
            cause, f"read what the first process that ended has printed; {RESUME_HINT}"
        )
    cause = f"the training cannot continue: one of its `training.workers` {match[1]}"
    return RunFailed.of(
        cause, f"give the machine more memory, or set fewer `training.workers`; {RESUME_HINT}"
    )


def raise_first_error(error: Exception, processes: Processes) -> NoReturn:
    """Raise the first error of all processes in the main one; end any other process quietly."""
    by_peer = is_peer_error(error)
    if is_main_process() and by_peer:
        raise (read_reported_error() or peer_error(processes, str(error))) from error
    if is_main_process() or not (have_met() or by_peer):
        raise error
    if not by_peer and (termination_requested() or not report_to_main(error)):
        text = (
            error.render()
            if isinstance(error, ComposerError)
            else "".join(traceback.format_exception(error))
        )
        sys.stderr.write(f"{strip_control_characters(text)}\n")
    # it has nothing to write, and others wait until it is gone
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(RunFailed.status)


def is_peer_error(error: BaseException) -> bool:
    """Return True if an error means that another process is gone or does not answer."""
    if isinstance(error, (ComposerError, OSError, torch.OutOfMemoryError)):
        return False
    words = ("gloo", "NCCL", "by peer", "TCPStore")
    from_library = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return from_library or isinstance(error, distributed.DistError)


def peer_error(processes: Processes, message: str = "") -> RunFailed:
    """Return the error of a training that lost a process.

    message: The error of the communication library.
    """
    until = time.monotonic() + 1.0  # a connection breaks a moment before its process ends
    while (
        time.monotonic() < until and processes and not any(process.poll() for process in processes)
    ):
        time.sleep(0.05)
    ends = []
    for rank, process in enumerate(processes, start=1):
        if status := process.poll():
            end = (
                f"ended with status {status}"
                if status > 0
                else f"was ended by {signal.Signals(-status).name}"
            )
            ends.append(f"process {rank} {end}")
    cause, hint = "another process has ended", "see its output above"
    if ends:
        cause = ", ".join(ends)
    elif "imed out" in message or "imeout" in message:
        cause, hint = (
            "another process does not answer",
            "where it was only slow, raise `trainer.timeout_minutes`",
        )
    return RunFailed.of(f"the training cannot continue: {cause}", f"{hint}; {RESUME_HINT}")


def report_to_main(error: Exception) -> bool:
    """Report this process's error to the main one. True if that says enough.

    An unknown error needs its traceback.
    """
    expected = isinstance(error, (ComposerError, OSError, torch.OutOfMemoryError))
    if not isinstance(error, ComposerError):
        error = RunFailed.of(
            str(error) if expected else f"{type(error).__name__}: {error}", RESUME_HINT
        )
    with suppress(RuntimeError):
        rank = distributed.get_rank()
        faults = [
            fault.as_dict() | {"message": f"process {rank}: {fault.message}", "edit": None}
            for fault in error.faults
        ]
        rendezvous_store().set(ERROR_KEY, json.dumps(faults))
        return expected
    return False


def read_reported_error() -> RunFailed | None:
    """Return the error that another process reports within a second; None without any."""
    if not have_met():
        return None
    with suppress(RuntimeError):
        store = rendezvous_store()
        store.wait([ERROR_KEY], timedelta(seconds=1))
        return RunFailed([Fault(**fault) for fault in json.loads(store.get(ERROR_KEY))])
    return None


def have_met() -> bool:
    """True if this process is one of several that can reach each other."""
    return distributed.is_initialized() and distributed.get_world_size() > 1


def rendezvous_store() -> Store:
    """Return a new connection to the key-value store of the default process group.

    A new one, since another thread may wait in a call of the first. torch has no public way to it.
    """
    store: Any = distributed_c10d._get_default_store()
    return store.clone()


def destroy_process_group() -> None:
    """Destroy the process group but leak its memory.

    Dropping the last reference to a group joins its threads while holding the GIL, and a thread
    that still cleans up a collective waits for the GIL: a deadlock. So one reference stays.
    """
    if distributed.is_initialized():
        for group in list(distributed_c10d._world.pg_map):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def wait_for_exit(processes: Processes) -> None:
    """Wait until the other processes have ended, and kill those that need over 5 s."""
    until = time.monotonic() + 5.0
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()
