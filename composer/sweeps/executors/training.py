"""A training as an executor starts it, and the four calls of an executor."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Protocol

from composer.processes.parent import ends_with_parent
from composer.processes.python import python_environment

PATIENCE = 300.0
"""Seconds that a training has to write its checkpoint after SIGTERM."""
LOST = -int(signal.SIGKILL)
"""Exit status of a training whose engine has lost it."""


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains into `run`, and appends its output to `log`.

    It resumes the run from its last checkpoint, so an engine may lose it at any moment.
    `directory` is the one it is started in.
    """

    name: str
    command: tuple[str, ...]
    run: Path
    log: Path
    directory: str


class Executor(Protocol):
    """Starts trainings, and knows each by the name of its job."""

    def submit(self, training: TrainingCommand) -> str:
        """Start a training, or find the job that still runs it; return the job's name."""

    def state(self, job: str) -> int | None:
        """Return the exit status, negative if a signal ended it; None until it has ended."""

    def cancel(self, job: str) -> None:
        """Ask a training to save a checkpoint and end; the second time, end it at once."""

    def capacity(self) -> int:
        """Return the number of trainings that can run at once."""


class TrainingProcess:
    """A training as a process, in a group of its own; it ends with the process that started it.

    variables: Environment variables beside those of this process.
    """

    def __init__(self, training: TrainingCommand, variables: Mapping[str, str]) -> None:
        self.is_cancelled = False
        with training.log.open("ab") as log:
            self.process = Popen(
                training.command,
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                env={**python_environment(os.environ), **variables},
                cwd=training.directory,
                process_group=0,
                preexec_fn=ends_with_parent(),
            )

    def status(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self.process.poll()

    def cancel(self) -> None:
        """Send SIGTERM; the second time, SIGKILL to all processes of the group."""
        if self.status() is not None:
            return
        with suppress(ProcessLookupError):
            if self.is_cancelled:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.terminate()
        self.is_cancelled = True
