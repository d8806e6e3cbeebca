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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
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
)
from composer.formatting import UnfailingStream, strip_control_characters
from composer.processes.python import secure_children
from composer.processes.signals import terminate
from composer.training.devices import Devices
from composer.training.distributed import HANDLED, RESUME_HINT, external_launcher

STOP_SECONDS = 1800
"""Seconds that a process has to write its checkpoint after a signal, the largest over a network."""
NO_GUARD = 70
"""Exit status of a process that a script has started without a guard."""
ERRORS = {error.__name__: error for error in (RecipeError, DataError, RunError, RunFailed)}
"""The errors that a process can report, by name."""
LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing")
"""Loggers of torch that would print what a training's one error says."""


def processes_to_start(devices: Devices) -> int:
    """Return the number of processes that a training starts here: 1 if this one trains itself.

    Raises RunError for several machines without a launcher.
    """
    if external_launcher() or devices.accelerator == "tpu":  # Lightning starts a TPU's processes
        return 1
    if devices.num_nodes > 1:
        message = f"`trainer.num_nodes` is {devices.num_nodes}, and nothing has started this"
        message += " process on each machine"
        fix = "run `recipes/launch/torchrun.sh RECIPE RUN` on each of them, or use srun"
        raise RunError.of(message, fix)
    return devices.processes


def launch(train: Callable[[], object], processes: int) -> None:
    """Call `train` in so many processes, as ranks that torch's launcher has started.

    Raises the first error of any rank; KeyboardInterrupt and SystemExit after a signal.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(NO_GUARD)  # a script that a rank imports trains again
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    with TemporaryDirectory() as folder, quiet_launcher(), secure_children():
        # in a file: the next process starts when this one has read its pipe, which takes seconds
        job = Path(folder) / "job.pickle"
        job.write_bytes(pickle.dumps(train))
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
            kill_children()
            raise_reported_error(Path(folder))
            raise_for_signal(stopped.sigval)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def quiet_launcher() -> Iterator[None]:
    """Silence torch's launcher: the one error of a training says more than its warnings."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    nowhere = logging.NullHandler()
    for logger in loggers:
        logger.addHandler(nowhere)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(nowhere)
            logger.propagate = True


class RankError(Exception):
    """An error of a rank as JSON, which torch's launcher carries to the process that started it."""


def run_rank(job: Path) -> None:
    """Train as one rank, in a process of its own, which then ends without cleaning up.

    job: The pickled function to call, which the parent has written.
    """
    status: object = RunFailed.status
    signal.signal(signal.SIGTERM, terminate)
    try:
        train: Callable[[], object] = pickle.loads(job.read_bytes())  # noqa: S301
        train()
        status = 0
    except ComposerError as error:
        faults = [asdict(fault) for fault in error.faults]
        raise RankError(json.dumps({"kind": type(error).__name__, "faults": faults})) from None
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
        raise SystemExit(status) from None
    except SystemExit as end:
        if not end.code:
            end_process(0)  # interrupted: the launcher waits for an end, and not for a result
        status = end.code
        raise
    finally:
        # torch may wait forever for the threads of its process group, and Python with it
        atexit.register(end_process, status if isinstance(status, int) else RunFailed.status)


def end_process(status: int) -> NoReturn:
    """End this process at once, with its output written."""
    for stream in (sys.stdout, sys.stderr):
        UnfailingStream(stream).flush()
    os._exit(status)


def raise_first_error(folder: Path, failure: ProcessFailure) -> NoReturn:
    """Raise the error that a rank has reported into `folder`, or how the first one has ended."""
    raise_reported_error(folder)
    status, rank = failure.exitcode, failure.local_rank
    if status == NO_GUARD:
        message = "a training on several devices starts processes, which import this script"
        fix = 'call `train` below `if __name__ == "__main__":`'
        raise RunError.of(message, fix) from None
    if status - 128 in HANDLED:
        raise_for_signal(signal.Signals(status - 128))
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


def raise_reported_error(folder: Path) -> None:
    """Raise the error that the first of the ranks has reported, if any has."""
    files = sorted(folder.rglob("error.json"), key=lambda file: int(file.parent.name))
    if not files:
        return
    report = json.loads(files[0].read_text(encoding="utf-8"))["message"]
    rank, message = int(files[0].parent.name), str(report["message"])
    kind, _, text = message.partition(": ")
    if kind == RankError.__name__:
        raise read_error(text, rank) from None
    sys.stderr.write(strip_control_characters(report["extraInfo"]["py_callstack"]))
    raise RunFailed.of(f"process {rank}: {message}", RESUME_HINT) from None


def read_error(text: str, rank: int) -> ComposerError:
    """Return the error that a rank has reported; the first rank speaks for all."""
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


def kill_children() -> None:
    """Kill the processes that a second signal has left running."""
    for process in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            process.kill()
