"""Start the processes of a training on this machine by torch's elastic launcher; one error for all.

The launcher ends the others when one has failed or was killed. `torchrun` is the same launcher, on
many machines.
"""

from __future__ import annotations

import atexit
import json
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from composer.errors import (
    ComposerError,
    DataError,
    Edit,
    Fault,
    RecipeError,
    RunError,
    RunFailed,
    one_line_error,
)
from composer.formatting import strip_control_characters
from composer.processes.endings import end_process
from composer.processes.python import secure_children
from composer.processes.signals import interrupt, terminate
from composer.processes.streams import replace_closed_streams
from composer.training.devices import Devices
from composer.training.distributed import HANDLED, RESUME_HINT, PeerLost, external_launcher

STOP_SECONDS = 1800
"""Seconds that the ranks have to write a checkpoint after a signal to the process that started
them, the largest over a network.
"""
NO_GUARD = 70
"""Exit status of a process that a script has started without a guard."""
ERRORS = {
    error.__name__: error for error in (ComposerError, RecipeError, DataError, RunError, RunFailed)
}
"""The errors that a process can report, by name."""
LOST = "lost-{time}.txt"
"""File in which a rank that has lost another says so: of less weight than any error."""
LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing")
"""Loggers of torch that would print what a training's one error says."""


def processes_to_start(devices: Devices) -> int:
    """Return the number of processes that a training starts here: 1 if this one trains itself.

    Raises RunError for several machines without a launcher.
    """
    if external_launcher() or devices.accelerator == "tpu":  # Lightning starts a TPU's processes
        return 1
    if devices.num_nodes > 1:
        message = f"`trainer.num_nodes` is {devices.num_nodes}, and no launcher has started this"
        message += " process"
        fix = "run `recipes/launch/torchrun.sh RECIPE RUN` on each of them, or use srun"
        raise RunError.of(message, fix)
    return devices.processes


def launch(train: Callable[[], object], processes: int) -> None:
    """Call `train` in so many processes, as ranks that torch's launcher has started.

    Raises the first error of any rank; KeyboardInterrupt and SystemExit after a signal.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(NO_GUARD)  # a script that a rank imports trains again
    before = set(multiprocessing.active_children())
    with TemporaryDirectory() as folder, restored_handlers(), quiet_launcher(), secure_children():
        # in a file: the next process starts when this one has read its pipe, which takes seconds
        job = Path(folder) / "job.pickle"
        job.write_bytes(to_pickle(train))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="training",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            signals_to_handle=",".join(number.name for number in HANDLED),
            shutdown_timeout=STOP_SECONDS,
        )
        try:
            elastic_launch(config, run_rank)(job)
        except ChildFailedError as error:
            raise_first_error(Path(folder), error.get_first_failure()[1])
        except SignalException as stopped:
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            raise_reported_error(Path(folder), 0)
            raise_for_signal(stopped.sigval)


def to_pickle(train: Callable[[], object]) -> bytes:
    """Return what a rank reads. Raises RunError if callbacks or loggers cannot be sent."""
    try:
        return pickle.dumps(train)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        message = f"callbacks and loggers are sent to other processes: {one_line_error(error)}"
        fix = "define their classes and functions at the top of a module"
        raise RunError.of(message, fix) from None


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of signals that torch's launcher replaces; only a main thread can."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if is_main and handler is not None:
                signal.signal(number, handler)


@contextmanager
def quiet_launcher() -> Iterator[None]:
    """Silence torch's launcher: the one error of a training says more than its warnings."""
    loggers = {logging.getLogger(name): logging.getLogger(name).propagate for name in LOGGERS}
    nowhere = logging.NullHandler()
    for logger in loggers:
        logger.addHandler(nowhere)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagates in loggers.items():
            logger.removeHandler(nowhere)
            logger.propagate = propagates


class RankError(Exception):
    """An error of a rank as JSON, which torch's launcher carries to the process that started it."""


@dataclass
class RankEnd:
    """The exit status of a rank, with which its process ends after the exit hooks of libraries."""

    status: int = RunFailed.status

    def __call__(self) -> None:
        end_process(self.status)


def run_rank(job: Path) -> None:
    """Train as one rank, in a process of its own, which does not end its process group.

    job: The pickled function to call, which the parent has written.
    """
    end = RankEnd()
    atexit.register(end)  # first, so that it runs last
    replace_closed_streams()
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, interrupt)
    try:
        read_job(job)()
        end.status = 0
    except ComposerError as error:
        end.status = error.status
        raise to_rank_error(error) from None
    except PeerLost as lost:
        file = job.with_name(LOST.format(time=lost.time))
        file.write_text(str(lost.code), encoding="utf-8")
        raise SystemExit(end.status) from None
    except KeyboardInterrupt:
        end.status = 128 + signal.SIGINT
        raise SystemExit(end.status) from None
    except SystemExit as stop:
        if not stop.code and os.environ["RANK"] != "0":
            end_process(0)  # interrupted: the launcher waits for an end, and not for a result
        if not stop.code:
            raise to_rank_error(RunFailed.of("something in the training has called exit")) from None
        end.status = stop.code if isinstance(stop.code, int) else RunFailed.status
        raise


def read_job(job: Path) -> Callable[[], object]:
    """Return the function that a rank calls. Raises RunError if this process lacks a class."""
    try:
        train: Callable[[], object] = pickle.loads(job.read_bytes())  # noqa: S301
    except (AttributeError, ImportError) as error:
        message = f"callbacks and loggers are sent to other processes: {one_line_error(error)}"
        raise RunError.of(message, "define their classes at the top of a module") from None
    return train


def to_rank_error(error: ComposerError) -> RankError:
    """Return an error as what torch's launcher carries."""
    faults = [asdict(fault) for fault in error.faults]
    return RankError(json.dumps({"kind": type(error).__name__, "faults": faults}))


def raise_first_error(folder: Path, failure: ProcessFailure) -> NoReturn:
    """Raise the error that a rank has reported into `folder`, or how the first one has ended."""
    raise_reported_error(folder, failure.local_rank)
    status, rank = failure.exitcode, failure.local_rank
    if status == NO_GUARD:
        message = "a training on several devices starts processes, which import this script"
        fix = 'call `train` below `if __name__ == "__main__":`'
        raise RunError.of(message, fix) from None
    if status - 128 in HANDLED:
        raise_for_signal(signal.Signals(status - 128))
    lost = sorted(folder.glob(LOST.format(time="*")))
    if status == RunFailed.status and lost:
        raise RunFailed.of(lost[0].read_text(encoding="utf-8"), RESUME_HINT) from None
    end = f"ended with status {status}"
    if status < 0:
        end = f"was ended by {signal.Signals(-status).name}"
    cause = f"the training cannot continue: process {rank} {end}"
    raise RunFailed.of(cause, f"see its output above; {RESUME_HINT}") from None


def raise_for_signal(number: signal.Signals) -> NoReturn:
    """Raise what a signal raises in a training of one process."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt from None
    raise SystemExit(128 + number) from None


def raise_reported_error(folder: Path, first: int) -> None:
    """Raise the error that the `first` rank has reported, or else any rank."""
    reports = {int(file.parent.name): file for file in sorted(folder.rglob("error.json"))}
    if not reports:
        return
    rank = first if first in reports else min(reports)
    report = json.loads(reports[rank].read_text(encoding="utf-8"))["message"]
    message = str(report["message"])
    kind, _, text = message.partition(": ")
    if kind == RankError.__name__:
        raise read_error(text, rank) from None
    sys.stderr.write(strip_control_characters(report["extraInfo"]["py_callstack"]))
    raise RunFailed.of(f"process {rank}: {message}", RESUME_HINT) from None


def read_error(text: str, rank: int) -> ComposerError:
    """Return the error that a rank has reported; rank 0 speaks for all."""
    error = json.loads(text)
    faults = []
    for fault in error["faults"]:
        if fault["edit"] is not None:
            file, path, start, end, replacement = fault["edit"]
            fault["edit"] = Edit(file, path, tuple(start), tuple(end), replacement)
        if rank > 0:
            fault["message"] = f"process {rank}: {fault['message']}"
        faults.append(Fault(**fault))
    return ERRORS[error["kind"]](faults)
