"""Workers of a sweep, on this machine or on a Ray cluster, and the runner of one trial.

Ray, imported here alone, only starts commands, reports their exit status, and counts CPUs and GPUs.
All machines see the run folders on a shared file system, and have this package installed.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any

from composer.errors import RunError
from composer.formatting import count_noun
from composer.metrics.table import logged_key
from composer.model.machine import available_memory, visible_cpus, visible_gpus
from composer.processes.parent import ends_with_parent
from composer.processes.python import python_environment, secure_children, seqcomposer_command
from composer.run_dir import RunDir, is_locked
from composer.runs.record import Budget
from composer.sweeps.leases import Lease
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.sweep import Resources
from composer.sweeps.trial import (
    MAX_KILLS,
    Retry,
    Status,
    Trial,
    failures,
    final_score,
    killed_by,
    kills_in_place,
    read_log,
    read_run_records,
    retry_record,
    write_trial,
)

PACKAGES = Path(__file__).parents[2]
"""The folder that this package is imported from."""
PATIENCE = 300.0
"""Seconds that a training has to write its checkpoint after SIGTERM."""


def train_command(recipe: Path, run: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that trains a recipe into a run folder, resuming a run that was killed."""
    return seqcomposer_command("train", str(recipe), "--run", str(run), "--resume", *arguments)


class LocalJob:
    """A process on this machine, in its own process group; its output is appended to `log`.

    variables: Environment variables beside those of this process.
    """

    def __init__(
        self, command: Sequence[str], log: Path, variables: Mapping[str, str], folder: str
    ) -> None:
        with log.open("ab") as file:
            self.process = Popen(
                command,
                stdin=DEVNULL,
                stdout=file,
                stderr=STDOUT,
                env={**python_environment(os.environ), **variables},
                cwd=folder,
                process_group=0,
                preexec_fn=ends_with_parent(),
            )

    def poll(self) -> int | None:
        """Return the exit status, negative if a signal ended the process, or None while it runs."""
        return self.process.poll()

    def stop(self, number: int) -> None:
        """Send a signal; SIGKILL ends all processes that this one started."""
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)


class LocalWorkerPool:
    """Workers on this machine, each with the resources of a trial, or a share of all.

    Raises RunError if the machine has too few GPUs for the trials at once, or too few CPUs or too
    little memory for one.
    """

    def __init__(self, workers: int, resources: Resources) -> None:
        self.workers, self.resources, self.gpus = workers, resources, visible_gpus(os.environ)
        cpus, memory = visible_cpus(), available_memory()
        if (resources.cpus or 0) > cpus or (resources.memory or 0) > memory:
            available = Resources(len(self.gpus), cpus, None if math.isinf(memory) else int(memory))
            message = f"a trial needs {resources.describe()}"
            message += f", and this machine has {available.describe()}"
            hint = "write less under `resources`, or run the sweep on a larger machine"
            raise RunError.of(message, hint)
        if (needed := resources.gpus_of(workers)) > len(self.gpus):
            who = "a trial needs" if workers == 1 else f"{workers} trials at once need"
            message = f"{who} {count_noun(needed, 'GPU')}, and this machine has {len(self.gpus)}"
            hint = "write fewer `gpus` under `resources`, or use `--slurm` or `--ray ADDRESS`"
            raise RunError.of(message, hint)
        # a shell's background jobs ignore SIGINT, and trainings would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(self, command: Sequence[str], log: Path, slot: int) -> LocalJob:
        """Start a command, whose output is appended to `log`."""
        variables = worker_environment(os.environ, slot, self.workers, self.gpus, self.resources)
        return LocalJob(command, log, variables, os.getcwd())

    def close(self) -> None:
        """Do nothing: no resource is held."""


def worker_environment(
    environment: Mapping[str, str],
    slot: int,
    workers: int,
    gpus: Sequence[str],
    resources: Resources,
) -> dict[str, str]:
    """Return the environment variables of one worker: its threads and its GPUs."""
    variables = {}
    if "OMP_NUM_THREADS" not in environment:
        variables["OMP_NUM_THREADS"] = str(resources.cpus or max(1, visible_cpus() // workers))
    if gpus and resources.gpus is not None:
        first = resources.gpus_of(slot + 1) - resources.whole_gpus
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + resources.whole_gpus])
    elif len(gpus) >= workers > 1:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot % workers :: workers])
    elif gpus and workers > 1:
        variables["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return variables


class RayJob:
    """A LocalJob somewhere in the cluster; it is running while Ray looks for a machine."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.reply = actor.poll.remote()
        self.status: int | None = None

    def poll(self) -> int | None:
        """Return the last reply of the actor without waiting, and request the next one."""
        if self.status is None and self.ray.wait([self.reply], timeout=0)[0]:
            try:
                self.status = self.ray.get(self.reply)
            except self.ray.exceptions.RayError:
                self.status = -int(signal.SIGKILL)  # its machine or its actor died
            if self.status is None:
                self.reply = self.actor.poll.remote()
            else:
                self.ray.kill(self.actor)
        return self.status

    def stop(self, number: int) -> None:
        if self.status is None:
            self.actor.stop.remote(number)


class RayWorkerPool:
    """A Ray cluster at an address; `auto` finds one that runs here, `local` starts one.

    Ray places each trial on a node with room for it, including nodes that join later. Raises
    RunError if Ray is not installed, the cluster does not answer, or no node is large enough.
    """

    def __init__(self, address: str, workers: int, resources: Resources) -> None:
        try:
            import ray
        except ImportError:
            hint = "`pip install -c constraints.txt '.[ray]'`, or omit `--ray`"
            raise RunError.of("Ray is not installed", hint) from None
        self.ray: Any = ray
        self.workers = workers
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            host, colon, port = address.removeprefix("ray://").rpartition(":")
            # Ray itself would try for minutes
            if colon and port.isdecimal():
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            # Ray lets its workers import from the current folder, which must be this package's
            with secure_children(), chdir(PACKAGES):
                self.ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level="error",
                    configure_logging=True,
                )
        except (
            OSError,
            ValueError,
            OverflowError,
            RuntimeError,
            self.ray.exceptions.RayError,
        ) as error:
            message = f"no Ray cluster answers at `{address}`: {error}"
            hint = "start one with `ray start --head` and write its address, or write `--ray auto`"
            raise RunError.of(message, f"{hint} or `--ray local`") from None
        # Ray has installed its own handlers, with other exit statuses
        for number, handler in handlers.items():
            signal.signal(number, handler)
        self.reserve(resources)

    def reserve(self, resources: Resources) -> None:
        """Set the resources of the next trials. Raises RunError if no node is large enough."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        try:
            self.options = fit_in_nodes(resources, nodes)
        except RunError:
            self.ray.shutdown()
            raise

    def start(self, command: Sequence[str], log: Path, slot: int) -> RayJob:
        actor = self.ray.remote(LocalJob).options(**self.options, max_restarts=0)
        # the command has the environment of the actor, to which Ray has given its GPUs
        return RayJob(self.ray, actor.remote(command, log.absolute(), {}, os.getcwd()))

    def close(self) -> None:
        self.ray.shutdown()


def fit_in_nodes(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return Ray's options for one trial, by default one CPU, and one GPU if any node has GPUs.

    nodes: The resources of each node of the cluster, as Ray names them. Raises RunError if no node
    has as much.
    """
    gpus = resources.gpus
    if gpus is None:
        gpus = float(any(node.get("GPU") for node in nodes))
    memory = float(resources.memory or 0)
    needed = {"CPU": float(resources.cpus or 1), "GPU": gpus, "memory": memory}
    if not any(has_resources(node, needed) for node in nodes):
        available = []
        for node in nodes:
            has = Resources(node.get("GPU"), int(node.get("CPU", 0)), int(node.get("memory", 0)))
            available.append(has.describe())
        message = f"no node of the cluster has {resources.describe()}; its nodes have"
        message += f" {'; '.join(available) or 'nothing'}"
        hint = "write less under `resources`, or add a node with `ray start --address ...`"
        raise RunError.of(message, hint)
    return {"num_cpus": needed["CPU"], "num_gpus": needed["GPU"], "memory": needed["memory"]}


def has_resources(node: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    """True if a node of a cluster has the needed resources."""
    return all(node.get(name, 0.0) >= amount for name, amount in needed.items())


Job = LocalJob | RayJob
WorkerPool = LocalWorkerPool | RayWorkerPool


@dataclass
class TrialRunner:
    """Trains one trial in one slot of a worker pool, with `arguments` of `train`."""

    study: Study
    pool: WorkerPool
    suggestion: Suggestion
    trial: Trial
    lease: Lease
    slot: int
    arguments: Sequence[str]
    budget: Budget
    job: Job | None = None
    metrics_size: int = -1
    log_start: int = 0
    stop_time: float = math.inf

    def __post_init__(self) -> None:
        self.seeds, self.goal = self.study.sweep.seeds_of(self.trial), self.study.sweep.rank[0]
        self.seed = self.seeds[0]

    def poll(self) -> Trial:
        """Check the training once, take the next step, and return the current trial."""
        if self.job is None:
            self.start_next_seed()
            return self.trial
        status = self.job.poll()
        if status is None:
            self.prune_if_bad(self.job)
        else:
            self.job = None
            self.handle_exit(status)
        return self.trial

    def start_next_seed(self) -> None:
        """Start the next seed, unless the worker of a sweep that was killed still trains it."""
        self.trial = replace(self.trial, records=read_run_records(self.trial.folder))
        left = [seed for seed in self.seeds if seed not in self.trial.finished_seeds]
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif not left:
            self.finish()
        elif is_locked(run := RunDir(self.trial.run(left[0]))):
            return
        elif not run.is_empty() and not run.record.exists():
            cure = f"put it back, or remove {run.path}, and run the sweep with `--retry`"
            self.end("failed", error=f"{run.path} has no run.json: {cure}")
        else:
            self.seed = left[0]
            arguments = [f"training.seed={self.seed}", *self.arguments]
            command = train_command(self.trial.recipe, self.trial.run(self.seed), arguments)
            log = self.trial.log(self.seed)
            self.log_start = log.stat().st_size if log.exists() else 0
            self.job = self.pool.start(command, log, self.slot)

    def prune_if_bad(self, job: Job) -> None:
        """Report the first seed's progress to the study, and stop a training that it prunes."""
        if self.trial.pruned_at is not None:
            if time.monotonic() - self.stop_time > PATIENCE:
                job.stop(signal.SIGKILL)
        elif (step := self.report()) is not None:
            if len(self.seeds) == 1 and self.budget_spent(read_log(self.trial, self.seed)) == 1.0:
                return  # stopping it would save nothing, and lose its scores
            self.trial = replace(self.trial, pruned_at=step)
            # before the signal, so that the decision survives a kill of the sweep
            write_trial(self.trial)
            self.stop_time = time.monotonic()
            job.stop(signal.SIGTERM)

    def budget_spent(self, rows: Sequence[Mapping[str, object]]) -> float:
        """Return the spent share of a seed's budget, by the rows of its metrics."""
        last: dict[str, Any] = {"step": 0, "epoch": 0.0, "minutes": 0.0}
        for row in rows:  # rows of a test have neither an epoch nor minutes
            last |= row
        return self.budget.spent(last["step"], last["epoch"], last["minutes"])

    def report(self) -> int | None:
        """Report new scores of the first seed; return the step at which to prune, or None."""
        file = RunDir(self.trial.run(self.seed)).metrics
        size = file.stat().st_size if self.seed == self.seeds[0] and file.exists() else -1
        if size == self.metrics_size:
            return None
        self.metrics_size = size
        rows = read_log(self.trial, self.seed)
        metric = logged_key(rows, self.goal.metric)
        scores = {}
        for row in rows:
            if metric in row:  # null is NaN or infinity
                scores[row["step"]] = math.nan if row[metric] is None else float(row[metric])
        return self.study.report(self.suggestion, scores)

    def handle_exit(self, status: int) -> None:
        """Handle the end of a training: start the next seed, retry, or end the trial."""
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif status == 0:
            self.report()  # the last rows; it is too late to prune
            self.start_next_seed()
        elif name := killed_by(status):
            kill = retry_record("killed", name, RunDir(self.trial.run(self.seed)), self.seed)
            count = kills_in_place([*self.trial.retries, kill])
            if count < MAX_KILLS:
                self.retry(kill)
            else:
                error = f"its training was killed {count} times without a new checkpoint"
                self.fail(f"{error}, the last time by {name}")
        else:
            self.fail(error_excerpt(self.trial.log(self.seed), status, self.log_start))

    def fail(self, error: str) -> None:
        """Retry a failed training, or end the trial if the sweep's retries are used up."""
        if failures(self.trial.retries) < self.study.sweep.retries:
            self.retry(retry_record("failed", error, RunDir(self.trial.run(self.seed)), self.seed))
        else:
            self.end("failed", error=error)

    def retry(self, retry: Retry) -> None:
        """Record a retry of the same seed, which the next poll starts."""
        self.trial = replace(self.trial, retries=(*self.trial.retries, retry))
        write_trial(self.trial)

    def finish(self) -> None:
        """End a trial whose seeds have all finished, scored by all of the sweep's seeds it has."""
        seeds = [seed for seed in self.study.sweep.seeds if seed in self.trial.finished_seeds]
        scores = {seed: final_score(self.trial, seed, self.goal.metric) for seed in seeds}
        values = [value for value in scores.values() if value is not None]
        if len(values) == len(scores):
            self.end("finished", value=fmean(values))
            return
        missing = ", ".join(str(seed) for seed, value in scores.items() if value is None)
        scored = [record.scores for record in self.trial.records.values()]
        logged = ", ".join(sorted(set[str]().union(*scored)))
        error = f"no `{self.goal.metric}` was logged with seed {missing}; logged were: {logged}"
        self.end("failed", error=error)

    def end(self, status: Status, value: float | None = None, error: str | None = None) -> None:
        """Write the result of the trial, then tell the study, which is restored from the former."""
        records = read_run_records(self.trial.folder)
        self.trial = replace(self.trial, status=status, value=value, error=error, records=records)
        write_trial(self.trial)
        self.study.tell(self.suggestion.number, self.trial)

    def stop(self, number: int) -> None:
        """Send a signal to the training, if there is one."""
        if self.job is not None:
            self.job.stop(number)

    def has_stopped(self) -> bool:
        """True if no training of this trial runs any more."""
        return self.job is None or self.job.poll() is not None


def error_excerpt(log: Path, status: int, start: int = 0) -> str:
    """Return the last lines of a failed training's log, at most 12, the error first.

    start: The size of the log before this training.
    """
    text = log.read_bytes()[start:].decode("utf-8", errors="replace") if log.exists() else ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-12:]
    if not lines:
        return f"its training ended with exit status {status} and printed nothing"
    first = next((number for number, line in enumerate(lines) if "error[" in line), None)
    return "\n".join(lines[first:] if first is not None else [lines[-1], *lines[:-1]])
