"""Run a sweep on Slurm: submitit submits a job array of workers, each `sweep --worker`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

from composer.errors import RunError
from composer.processes.parent import ends_with_parent
from composer.processes.python import SAFE, python_environment, secure_children, seqcomposer_command
from composer.sweeps.sweep import MEMORY_UNITS, Resources, Sweep

DEFAULT_MINUTES = 24 * 60
"""Time limit of a job without `resources.minutes` and SBATCH_TIMELIMIT."""


class SlurmWorker:
    """A worker as a job: preempted or out of time, it stops its training and is requeued."""

    def __init__(self, arguments: Sequence[str], folder: str) -> None:
        self.arguments, self.folder = arguments, folder
        self.process: Popen[bytes] | None = None

    def __call__(self, number: int) -> int:
        """Run until no trial is left, and return the exit status."""
        command = seqcomposer_command("sweep", *self.arguments, "--worker")
        env = python_environment(os.environ)
        # in its own session, so that only submitit gets the signal of a preemption
        options: dict[str, Any] = {"start_new_session": True, "preexec_fn": ends_with_parent()}
        self.process = Popen(command, cwd=self.folder, env=env, **options)
        return self.process.wait()

    def checkpoint(self, number: int) -> object:
        """Stop the training with a checkpoint, and return the job for submitit to requeue."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.terminate()
            with suppress(ChildProcessError):  # it has ended
                # not `wait`: the signal that led here interrupted it
                os.waitpid(self.process.pid, 0)
        return DelayedSubmission(SlurmWorker(self.arguments, self.folder), number)


def submit_workers(sweep: Sweep, folder: Path, arguments: Sequence[str], workers: int) -> str:
    """Submit workers of a sweep as a job array, and return its number.

    Args:
        arguments: The arguments of `seqcomposer sweep`.

    Raises:
        RunError: If submitit is not installed, or Slurm refuses.
    """
    try:
        import submitit
    except ImportError:
        hint = "`pip install -c constraints.txt '.[slurm]'`, or run"
        hint += " `seqcomposer sweep FILE --worker` in your own jobs"
        raise RunError.of("submitit is not installed, and `--slurm` needs it", hint) from None
    logs = folder.absolute() / "slurm"
    try:
        executor = submitit.SlurmExecutor(logs, max_num_timeout=1000)
        executor.update_parameters(**job_parameters(sweep.name, sweep.resources, workers))
        with secure_children():  # a job has the environment of the process that submits it
            jobs = executor.map_array(SlurmWorker(arguments, os.getcwd()), range(workers))
    except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
        hint = "submit where `sbatch` works (SLURM_CONF); SBATCH_PARTITION and SBATCH_ACCOUNT name"
        hint += " queue and account"
        reason = next(reversed(str(error).strip().splitlines()), "")
        raise RunError.of(f"Slurm takes no job: {reason}", hint) from None
    return str(jobs[0].job_id).partition("_")[0]


def job_parameters(name: str, resources: Resources, workers: int) -> dict[str, object]:
    """Return the parameters of submitit for each worker."""
    parameters: dict[str, object] = {
        "job_name": name,
        "array_parallelism": workers,
        "cpus_per_task": resources.cpus or 1,
    }
    parameters["setup"] = [f"export {SAFE}=1"]  # SBATCH_EXPORT may drop the environment
    if resources.whole_gpus:
        parameters["gpus_per_node"] = resources.whole_gpus
    if resources.memory is not None:
        parameters["mem"] = f"{math.ceil(resources.memory / MEMORY_UNITS['M'])}M"
    if resources.minutes is not None:
        parameters["time"] = math.ceil(resources.minutes)
    elif "SBATCH_TIMELIMIT" not in os.environ:
        parameters["time"] = DEFAULT_MINUTES
    return parameters
