"""Trainings as jobs of Slurm, submitted and requeued by submitit."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from composer.errors import RunError
from composer.processes.python import SAFE, python_environment, secure_children
from composer.sweeps.executors.training import LOST, TrainingCommand, TrainingProcess
from composer.sweeps.sweep import MEMORY_UNITS, Resources

DEFAULT_MINUTES = 24 * 60
"""Time limit of a job without `resources.minutes` and SBATCH_TIMELIMIT."""
MAX_REQUEUES = 1000
"""Jobs that may follow one that has reached its time limit."""
QUEUE_SECONDS = 5.0
"""Seconds between two looks at the queue."""
ANSWER_SECONDS = 60.0
GONE_SECONDS = 15.0
"""Seconds without a job in the queue until it is lost; its result may arrive later."""
NEVER = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")
"""Why a job waits that no node can run; some clusters take it all the same."""
LARGE = 1 << 20


class SlurmTraining:
    """A training as a job: preempted or out of time, it saves a checkpoint and is requeued."""

    def __init__(self, training: TrainingCommand) -> None:
        self.training = training
        self.process: TrainingProcess | None = None

    def __call__(self) -> int:
        """Train, and return the exit status."""
        self.process = TrainingProcess(self.training, {})
        return self.process.process.wait()

    def checkpoint(self) -> object:
        """End the training with a checkpoint, and return the job for submitit to requeue."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.process.terminate()
            with suppress(ChildProcessError):  # it has ended
                # not `wait`: the signal that led here interrupted it
                os.waitpid(self.process.process.pid, 0)
        return DelayedSubmission(SlurmTraining(self.training))


class SlurmExecutor:
    """Jobs of a cluster, which run on when the sweep is killed, and are found again by `submit`.

    Raises RunError if submitit is not installed.
    """

    def __init__(self, name: str, resources: Resources) -> None:
        try:
            import submitit
        except ImportError:
            hint = "`pip install -c constraints.txt '.[slurm]'`, or omit `--slurm`"
            raise RunError.of("submitit is not installed, and `--slurm` needs it", hint) from None
        self.submitit: Any = submitit
        self.parameters = job_parameters(name, resources)
        self.jobs: dict[str, Any] = {}
        self.queue, self.read_at = set[str](), -math.inf
        self.gone_since: dict[str, float] = {}

    def submit(self, training: TrainingCommand) -> str:
        """Submit a job, or find the one that an earlier sweep has submitted for this run."""
        folder = training.run.absolute().with_name(f"{training.run.name}.slurm")
        earlier = {file.name.partition("_")[0] for file in folder.glob("*_submitted.pkl")}
        for number in earlier & self.queued(ask_now=True) if earlier else ():
            job = self.submitit.SlurmJob(folder, number)
            if not job.paths.result_pickle.exists():  # one that has ended may be in the queue still
                self.jobs[number] = job
                return number
        try:
            executor = self.submitit.SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES)
            executor.update_parameters(**self.parameters)
            # a job has the environment of the process that submits it
            with secure_children(), outside_of_jobs():
                job = executor.submit(SlurmTraining(training))
        except (RuntimeError, OSError, self.submitit.core.utils.FailedJobError) as error:
            raise slurm_error("Slurm takes no job", error) from None
        self.jobs[job.job_id] = job
        self.queue.add(job.job_id)
        return str(job.job_id)

    def state(self, job: str) -> int | None:
        if self.jobs[job].paths.result_pickle.exists():
            error = self.jobs[job].exception()
            return int(self.jobs[job].result()) if error is None else lost_or_raise(str(error))
        if job in self.queued():
            self.gone_since.pop(job, None)
            return None
        since = self.gone_since.setdefault(job, time.monotonic())
        return LOST if time.monotonic() - since > GONE_SECONDS else None

    def cancel(self, job: str) -> None:
        """Cancel a job: Slurm sends SIGTERM, and SIGKILL after its `KillWait`."""
        with suppress(OSError, subprocess.SubprocessError):
            ask_slurm("scancel", job)

    def capacity(self) -> int:
        return LARGE  # Slurm keeps the others in its queue

    def queued(self, ask_now: bool = False) -> set[str]:
        """Return this user's jobs in the queue, as they were a few seconds ago.

        Where Slurm does not answer, all jobs are still there; with `ask_now` that raises RunError.
        """
        if not ask_now and time.monotonic() - self.read_at < QUEUE_SECONDS:
            return self.queue
        self.read_at = time.monotonic()
        try:
            rows = ask_slurm("squeue", "--me", "--noheader", "--format=%A %r").splitlines()
        except (OSError, subprocess.SubprocessError) as error:
            if ask_now:
                raise slurm_error("Slurm does not answer", error) from None
            self.queue |= self.jobs.keys()
            return self.queue
        self.queue = set()
        for row in rows:
            job, _, reason = row.partition(" ")
            self.queue.add(job)
            if job in self.jobs and reason in NEVER:
                raise slurm_error("Slurm will never start this job", RuntimeError(reason))
        return self.queue


@contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Remove what Slurm says of the job in which this process runs: its memory is not another's."""
    own = {}
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_")) and name != "SLURM_CONF":
            own[name] = os.environ.pop(name)
    try:
        yield
    finally:
        os.environ.update(own)


def ask_slurm(*command: str) -> str:
    """Return what a command of Slurm prints. Raises OSError and SubprocessError."""
    environment = python_environment(os.environ)
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS,
        check=True,
        start_new_session=True,  # Ctrl-C is for the sweep alone
    )
    return str(done.stdout)


def lost_or_raise(trace: str) -> int:
    """Return LOST for a job that could not be requeued. Raises RunError for any other error."""
    if "UncompletedJobError" in trace or "scontrol" in trace:
        return LOST
    reason = [line for line in trace.splitlines() if line and not line.startswith(("-", "You"))]
    message = f"a node cannot start trainings: {reason[-1].strip()}"
    raise RunError.of(message, "it needs this package, and the folders of this machine")


def slurm_error(message: str, error: Exception) -> RunError:
    """Return the error of a command of Slurm: its last line, and the partitions that there are."""
    hint = "submit where `sbatch` works (SLURM_CONF); SBATCH_PARTITION and SBATCH_ACCOUNT name"
    hint += " queue and account"
    output = getattr(error, "stderr", None) or str(error)
    reason = next(reversed(str(output).strip().splitlines()), "")
    with suppress(OSError, subprocess.SubprocessError):
        form = "%P has %D nodes of %c CPUs, %m MB, GPUs %G"
        partitions = ask_slurm("sinfo", "--noheader", f"--format={form}").splitlines()
        reason += f"; of the partitions, {'; '.join(partitions)}"
    return RunError.of(f"{message}: {reason}", hint)


def job_parameters(name: str, resources: Resources) -> dict[str, object]:
    """Return the parameters of a job, by sbatch's names."""
    parameters: dict[str, object] = {"job_name": name, "cpus_per_task": resources.cpus or 1}
    parameters["setup"] = [f"export {SAFE}=1"]  # SBATCH_EXPORT may drop the environment
    if resources.gpus:
        parameters["gpus_per_node"] = math.ceil(resources.gpus)
    if resources.memory is not None:
        parameters["mem"] = f"{math.ceil(resources.memory / MEMORY_UNITS['M'])}M"
    if resources.minutes is not None:
        parameters["time"] = math.ceil(resources.minutes)
    elif "SBATCH_TIMELIMIT" not in os.environ:
        parameters["time"] = DEFAULT_MINUTES
    return parameters
