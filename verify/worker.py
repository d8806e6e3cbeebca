"""A child process that runs cases: a crash, a hang or too much memory ends the case, and not the
benchmark.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

HANG_SECONDS = 180.0  # wall time after which a case counts as hanging; generous, for a busy machine
MEMORY = 6 << 30


class WorkerDied(Exception):
    """The child process ended, or was ended because it hung."""


class Worker:
    """A child process that calls `function(case, *arguments)` for cases, restarted when a case has
    killed it.

    memory: Bytes of data that it may have; None for no limit, which a GPU's driver needs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        hang_seconds: float = HANG_SECONDS,
        memory: int | None = MEMORY,
    ) -> None:
        self.call = (memory, function, *arguments)
        self.hang_seconds = hang_seconds
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve_cases, args=(theirs, *self.call), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, case: Any) -> Any:
        """Return what the function returns. Raises WorkerDied."""
        try:
            self.connection.send(case)
            if self.connection.poll(self.hang_seconds):
                return self.connection.recv()
            message = f"no answer within {self.hang_seconds:g} s"
        except (EOFError, OSError):
            self.process.join()
            message = f"the process ended with {self.process.exitcode}"
        self.end()
        self.start()
        raise WorkerDied(message)

    def end(self) -> None:
        """End the process, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()


def serve_cases(
    connection: Connection, memory: int | None, function: Callable[..., Any], *arguments: Any
) -> None:
    """Run cases from a connection until it is closed."""
    os.setsid()  # Ctrl-C is for the parent, which lets a case end
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            connection.send(function(connection.recv(), *arguments))
        except EOFError:
            return
