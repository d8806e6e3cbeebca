"""The processes of one training: started together, ended together, and one error for whatever ends them."""

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import Store

from composer.errors import ComposerError, Fault, RunFailed
from composer.training.signals import TrainingInterrupted

GO_ON = "`--resume` goes on from the last checkpoint"
SMALLER = "set a smaller `training.tokens_per_batch`"
ENDED = "ended"
"""Where a process leaves the first one its error."""
LAUNCHED_BY = "SEQCOMPOSER_LAUNCHED_BY"
"""The process that has started this one; in the environment."""
POLL_SECONDS = 0.5
"""Seconds between two looks at the other processes."""
GRACE_SECONDS = 10.0
"""Seconds that a process has to notice by itself that another has died."""
EXIT_SECONDS = 5.0
"""Seconds that the others have to leave, once the first has done."""

# ------------------------------------------------------------------------------------------- who started this process


def external_launcher() -> str:
    """What has started this process among others: torchrun, srun, or nothing that is known."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # inside an allocation the same variables are there without srun; then there is one process
    in_step = "SLURM_STEP_ID" in os.environ and "SLURM_PROCID" in os.environ
    return "srun" if in_step and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive") else ""


def cluster_environment() -> ClusterEnvironment:
    """How the processes find each other; SLURM is left to requeue by itself, with nothing beside the run's folder."""
    started = external_launcher()
    if started == "srun":
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(launched_world()[0]))
        return SLURMEnvironment(auto_requeue=False)
    return TorchElasticEnvironment() if started == "torchrun" else LightningEnvironment()


def launched_world() -> tuple[int, int]:
    """How many processes the launcher has started on each machine, and on how many machines."""
    if external_launcher() == "torchrun":
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    nodes = int(os.environ.get("SLURM_NNODES", "1"))
    return int(os.environ.get("SLURM_NTASKS", "1")) // nodes, nodes


def is_main_process() -> bool:
    """Whether this process is the first of those that train together; known before they meet."""
    if started := external_launcher():
        return os.environ["RANK" if started == "torchrun" else "SLURM_PROCID"] == "0"
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    return all(int(os.environ.get(name, "0")) == 0 for name in ("NODE_RANK", "LOCAL_RANK"))


def exit_with_launcher() -> None:
    """Has this process end when the one that started it is gone: nobody else would end it."""
    if LAUNCHED_BY in os.environ and os.environ[LAUNCHED_BY] != str(os.getpid()):
        watch(lambda: os.getppid() != int(os.environ[LAUNCHED_BY]), lambda: os._exit(1))
    elif external_launcher() == "torchrun":
        parent = os.getppid()
        watch(lambda: os.getppid() != parent, lambda: os.kill(os.getpid(), signal.SIGTERM))


def watch(until: Callable[[], bool], then: Callable[[], None]) -> threading.Event:
    """Does `then` as soon as `until` is true, unless the event that is returned is set before."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(POLL_SECONDS):
            if until():
                then()
                over.set()

    threading.Thread(target=look, daemon=True, name="watch").start()
    return over


# ------------------------------------------------------------------------------------------- together


class Launcher(_SubprocessScriptLauncher):
    """Lightning's launcher of processes, but for its end: all of them end, and the first says why."""

    def launch(self, function: Callable[..., Any], *given: Any, trainer: Any = None, **more: Any) -> Any:
        """Calls `function` in all processes, which this starts where nothing else has. Raises RunFailed."""
        before, threads = dict(os.environ), torch.get_num_threads()
        over = threading.Event()
        try:
            if self.num_processes * self.num_nodes > 1 and not self.cluster_environment.creates_processes_externally:
                os.environ[LAUNCHED_BY] = str(os.getpid())
                self._call_children_scripts()
                over = watch(PeerWatchdog(self.procs), self.give_up)
            if "OMP_NUM_THREADS" not in before:
                torch.set_num_threads(max(1, threads // self.num_processes))
            return function(*given, **more)
        except KeyboardInterrupt:  # which Lightning would make a status of its own of
            raise SystemExit(128 + signal.SIGINT) from None
        except TrainingInterrupted:
            raise
        except Exception as error:
            over.set()
            raise_first_error(explain_worker_death(error), self.procs)
        finally:
            over.set()
            destroy_process_group()
            wait_for_exit(self.procs)
            restore_environment(before)
            torch.set_num_threads(threads)

    def give_up(self) -> NoReturn:
        """Ends this process where its main thread cannot: it waits inside a library for one that is dead."""
        asked = interrupt_status(self.procs)
        if not asked:
            sys.stderr.write(peer_error(self.procs).render() + "\n")
            sys.stderr.flush()
        for process in self.procs:
            process.kill()
        os._exit(asked or RunFailed.status)


class PeerWatchdog:
    """True some time after one of the processes has died."""

    def __init__(self, processes: Sequence[subprocess.Popen[Any]]) -> None:
        self.processes, self.since = processes, 0.0

    def __call__(self) -> bool:
        if not self.since and any(process.poll() for process in self.processes):
            self.since = time.monotonic()
        return bool(self.since) and time.monotonic() - self.since > GRACE_SECONDS


def explain_worker_death(error: Exception) -> Exception:
    """In words that a process which prepares batches has died; any other error as it is."""
    found = re.search(r"DataLoader worker \(pid.*?\) ([^.]*)", str(error))
    if not isinstance(error, RuntimeError) or found is None:
        return error
    return RunFailed.of(
        f"the training cannot go on: one of its `training.workers` {found[1]}",
        f"give the machine more memory, or set fewer `training.workers`; {GO_ON}",
    )


def raise_first_error(error: Exception, processes: Sequence[subprocess.Popen[Any]]) -> NoReturn:
    """Raises what the first process says: its own error, or else another's; the others leave with status 1."""
    of_others = is_peer_error(error)
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        if not of_others:
            raise error
        if not is_main_process():
            exit_quietly()
        raise peer_error(processes, str(error)) from error
    if is_main_process():
        if of_others:
            raise (read_reported_error() or peer_error(processes, str(error))) from error
        raise error
    if not of_others and not report_to_main(error):
        traceback.print_exception(error)
    exit_quietly()


def is_peer_error(error: BaseException) -> bool:
    """Whether another process is to blame: it is gone, or does not answer."""
    if isinstance(error, (ComposerError, OSError, torch.OutOfMemoryError)):
        return False
    said = str(error)
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and any(word in said for word in ("gloo", "NCCL", "by peer", "TCPStore"))
    )


def interrupt_status(processes: Sequence[subprocess.Popen[Any]]) -> int:
    """The status of one that was asked to end before it could take part, 130 or 143; 0 where there is none."""
    asked = {128 + signal.SIGINT, 128 + signal.SIGTERM}
    return next((status for process in processes if (status := process.poll()) in asked), 0)


def peer_error(processes: Sequence[subprocess.Popen[Any]], said: str = "") -> RunFailed:
    """The error of a training of which a process is gone, or does not answer."""
    ended = [(rank, status) for rank, status in enumerate(exit_statuses(processes), start=1) if status]
    if ended:
        told = ", ".join(f"process {rank} {describe_exit(status)}" for rank, status in ended)
        return RunFailed.of(f"the training cannot go on: {told}", f"look at what it has said; {GO_ON}")
    if "imed out" in said or "imeout" in said:
        hint = f"where it was only slow, raise `trainer.timeout_minutes`; {GO_ON}"
        return RunFailed.of("the training cannot go on: another process does not answer", hint)
    return RunFailed.of("the training cannot go on: another process has ended", f"look at what it has said; {GO_ON}")


def exit_statuses(processes: Sequence[subprocess.Popen[Any]]) -> list[int | None]:
    """How the processes have ended, as soon as one is known to have; a connection breaks a moment before."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until and processes and not any(process.poll() for process in processes):
        time.sleep(0.05)
    return [process.poll() for process in processes]


def describe_exit(status: int) -> str:
    """The end of a process, in words."""
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


# ------------------------------------------------------------------------------------------- what others say


def report_to_main(error: Exception) -> bool:
    """Leaves the first process this one's error; whether that is enough to be said of it."""
    known = isinstance(error, (ComposerError, OSError, torch.OutOfMemoryError))
    if not isinstance(error, ComposerError):
        hint = SMALLER if isinstance(error, torch.OutOfMemoryError) else ""
        error = RunFailed.of(str(error) if known else f"{type(error).__name__}: {error}", hint)
    with suppress(RuntimeError):
        rank = distributed.get_rank()
        told = [each.as_dict() | {"message": f"process {rank}: {each.message}"} for each in error.faults]
        rendezvous_store().set(ENDED, json.dumps(told))
        return known
    return False


def read_reported_error() -> RunFailed | None:
    """The error that another process has left."""
    until = time.monotonic() + 1.0
    with suppress(RuntimeError):
        while not (there := rendezvous_store().check([ENDED])) and time.monotonic() < until:
            time.sleep(POLL_SECONDS / 10)
        told = json.loads(rendezvous_store().get(ENDED)) if there else []
        return RunFailed([Fault(**each | {"hint": with_way_on(each["hint"])}) for each in told]) if told else None
    return None


def with_way_on(hint: str) -> str:
    """A hint that also says how to go on."""
    return hint if GO_ON in hint else f"{hint}; {GO_ON}".removeprefix("; ")


def rendezvous_store() -> Store:
    """Where the processes have met."""
    return distributed_c10d._get_default_store()


# ------------------------------------------------------------------------------------------- apart


def destroy_process_group() -> None:
    """Leaves the others, but for the memory of them.

    Whoever drops the last reference to a group joins its threads with Python's lock held, and a thread that still
    drops a collective of its own waits for that lock: so there is always one reference more.
    """
    if distributed.is_initialized():
        for group in list(distributed_c10d._world.pg_map):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def exit_quietly() -> NoReturn:
    """Ends a process that is not the first at once: it has nothing to write, and others wait until it is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(RunFailed.status)


def wait_for_exit(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """Waits until the other processes have left, and ends those that do not; none outlives the first."""
    until = time.monotonic() + EXIT_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()


def restore_environment(environment: dict[str, str]) -> None:
    """What was told to the others in the environment does not concern the next training of this process."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


class NoSignals(_SignalConnector):
    """Takes no signal: Lightning's handler would wait, inside a signal, for all processes to have had it."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False
